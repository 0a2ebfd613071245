"""The ground floor: files that are whole or absent, digests, seeds, errors, manifests."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from semmix.core import artifact as _artifact
from semmix.core.artifact import begin_artifact, open_artifact, working_alone
from semmix.core.device import describe_environment, pick_device
from semmix.core.errors import SemmixError, unknown_name
from semmix.core.files import (
    digest,
    digest_file,
    digest_tensors,
    read_json,
    read_named_tensors,
    whole_file,
    write_bytes,
    write_json,
    write_tensors,
)
from semmix.core.progress import duration, progress
from semmix.core.seeds import fold_seed


def test_failed_write_keeps_the_old_file_and_leaves_no_trace(tmp_path):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    with pytest.raises(RuntimeError, match="half way"), whole_file(path) as temporary:
        temporary.write_bytes(b"new")
        raise RuntimeError("half way")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_tensors_that_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(SemmixError, match="cannot read"):
        read_named_tensors(path, "logits")
    write_tensors(path, {"logits": torch.arange(3), "labels": torch.arange(2)})
    assert [t.tolist() for t in read_named_tensors(path, "labels", "logits")] == [[0, 1], [0, 1, 2]]
    with pytest.raises(SemmixError, match="holds no 'weights'"):
        read_named_tensors(path, "weights")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SemmixError, match="cannot read"):
        read_named_tensors(path, "logits")


def test_unwritable_place_is_explained(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SemmixError, match="cannot write") as error:
        write_bytes(tmp_path / "file" / "below", b"")
    assert "choose a writable folder" in error.value.fix


def test_unreadable_json_is_explained(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for name in ("bad.json", "missing.json"):
        with pytest.raises(SemmixError, match=name):
            read_json(tmp_path / name)


def test_json_round_trip(tmp_path):
    write_json(tmp_path / "a.json", {"λ": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json") == {"λ": [1, 2.5, None]}
    assert (tmp_path / "a.json").read_text("utf-8") == '{\n  "λ": [\n    1,\n    2.5,\n    null\n  ]\n}\n'


def test_same_tensors_same_bytes(tmp_path):
    tensors = {"b": torch.arange(4.0), "a": torch.ones(2, 2).T}
    write_tensors(tmp_path / "1", tensors, {"y": 1, "x": 2})
    write_tensors(tmp_path / "2", dict(reversed(tensors.items())), {"x": 2, "y": 1})
    assert digest_file(tmp_path / "1") == digest_file(tmp_path / "2")


def test_digests_see_names_types_shapes_and_values():
    a = torch.arange(6, dtype=torch.int32)
    others = [{"b": a}, {"a": a.view(2, 3)}, {"a": a.view(torch.float32)}, {"a": a + 1}]
    digests = [digest_tensors(t) for t in [{"a": a}, *others]]
    assert len(set(digests)) == 5
    assert digest({"x": 1, "y": 2}) == digest({"y": 2, "x": 1}) != digest({"x": 1, "y": 3})


def test_folded_seeds_do_not_run_together():
    assert fold_seed("a", 12) != fold_seed("a1", 2)
    assert 0 <= fold_seed("x") < 2**63


def test_near_names_are_offered_whatever_their_case():
    error = unknown_name("data set", "CIFAR-10", ["cifar10", "cifar100", "digits"])
    assert "did you mean 'cifar10'" in str(error)
    assert "did you mean" not in str(unknown_name("data set", "zzz", ["digits"]))


@pytest.mark.skipif(sys.platform == "win32", reason="has no such modes")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_are_as_private_as_the_user_wants_them(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "new", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == mode


def test_artifact_begins_goes_on_finishes(tmp_path):
    first = begin_artifact(tmp_path, "m.json", "thing", {"a": 1})
    assert not first.finished
    again = begin_artifact(tmp_path, "m.json", "thing", {"a": 1})
    again.finish(more=2)
    assert begin_artifact(tmp_path, "m.json", "thing", {"a": 1}).manifest["more"] == 2


def test_what_keeps_nothing_before_its_end_may_begin_anew(tmp_path):
    begin_artifact(tmp_path, "m.json", "thing", {"a": 1}, keeps_parts=False)
    begin_artifact(tmp_path, "m.json", "thing", {"a": 2}, keeps_parts=False).finish()
    assert open_artifact(tmp_path, "m.json", "thing").manifest["inputs"] == {"a": 2}
    with pytest.raises(SemmixError, match="a was 2, now 3"):
        begin_artifact(tmp_path, "m.json", "thing", {"a": 3}, keeps_parts=False)


def test_artifact_of_other_inputs_kind_or_format_is_refused(tmp_path):
    begin_artifact(tmp_path, "m.json", "thing", {"a": 1, "b": 2})
    with pytest.raises(SemmixError, match="a was 1, now 5"):
        begin_artifact(tmp_path, "m.json", "thing", {"a": 5, "b": 2})
    begin_artifact(tmp_path, "n.json", "thing", {"deep": {"lr": 0.1, "epochs": 3}, "d": "a" * 64})
    with pytest.raises(SemmixError) as error:
        begin_artifact(tmp_path, "n.json", "thing", {"deep": {"lr": 1, "epochs": 3}, "d": "b" * 64})
    assert error.value.seen == "deep.lr was 0.1, now 1, d changed"
    with pytest.raises(SemmixError, match="does not describe a run"):
        open_artifact(tmp_path, "m.json", "run")
    with pytest.raises(SemmixError, match="no run here"):
        open_artifact(tmp_path / "none", "m.json", "run")
    write_json(tmp_path / "m.json", {"kind": "thing", "format": 99})
    with pytest.raises(SemmixError, match="another format"):
        open_artifact(tmp_path, "m.json", "thing")


def test_an_artifact_within_the_folder_is_named(tmp_path):
    begin_artifact(tmp_path / "photos" / "runs" / "ce-0", "config.json", "run", {})
    begin_artifact(tmp_path / "photos" / "generator", "generator.json", "generator", {})
    with pytest.raises(SemmixError, match=r"name one in it, such as .*photos/generator$"):
        open_artifact(tmp_path / "photos", "generator.json", "generator")
    for outer in (tmp_path / "photos", tmp_path / "photos" / "runs"):
        with pytest.raises(SemmixError, match=r"name one in it, such as .*photos/runs/ce-0$"):
            open_artifact(outer, "config.json", "run")


def test_plain_progress_ends_with_a_line(capsys):
    with progress("work", 3) as bar:
        for _ in range(3):
            bar.advance(note="fine")
    assert capsys.readouterr().out == "work: 3/3  took 0:00  fine\n"


def test_plain_progress_tells_the_time_left(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("semmix.core.progress.time.monotonic", lambda: now[0])
    with progress("work", 7, done=1) as bar:
        now[0] += 9.9
        bar.advance()  # no line yet
        now[0] += 10.1
        bar.advance()  # 2 in 20 seconds, 4 are left
        now[0] += 5
        bar.advance(4)
    assert capsys.readouterr().out == "work: 3/7  0:40 left\nwork: 7/7  took 0:25\n"


def test_progress_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with progress("work", 2) as bar:
        bar.advance(2, "fine")
    assert "2/2" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["meta", "vulkan", "hpu", "cuda:99"])
def test_a_device_that_is_not_here_is_refused_in_words(name):
    with pytest.raises(SemmixError, match=rf"'{name}'\n.*--device cpu"):
        pick_device(name)
    assert pick_device("cpu") == torch.device("cpu")


def test_a_device_that_nobody_knows_is_refused_in_words():
    with pytest.raises(SemmixError, match=r"^unknown device: 'gpu'\n  -> use auto, cpu, cuda or cuda:1$"):
        pick_device("gpu")


def test_the_recorded_command_can_be_typed_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/semmix", "fit", "my photos", "caf\udce9"])
    assert describe_environment()["command"] == "semmix fit 'my photos' 'caf\\xe9'"


def test_the_recorded_command_of_a_module_can_be_typed_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/lib/semmix/__main__.py", "fit", "digits"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.util.find_spec("semmix.__main__"))
    assert describe_environment()["command"] == "semmix fit digits"


def test_durations_read_well():
    assert [duration(s) for s in (0.4, 65, 7384)] == ["0:00", "1:05", "2:03:04"]


def test_a_second_process_is_refused_while_one_works(tmp_path):
    artifact = begin_artifact(tmp_path, "m.json", "thing", {})
    for _ in range(2):
        with working_alone(artifact):
            with pytest.raises(SemmixError, match="another process works"), working_alone(artifact):
                pass
            with pytest.raises(SemmixError, match="another process works"), working_alone(artifact):
                pass  # the first refusal took nothing away
        assert [path.name for path in tmp_path.iterdir()] == ["m.json"]
    with pytest.raises(KeyboardInterrupt), working_alone(artifact):
        raise KeyboardInterrupt
    with working_alone(artifact):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_the_dead_work_nowhere_and_leave_nothing(tmp_path):
    """A checkpoint that a killed process was writing must not stay for ever."""
    artifact = begin_artifact(tmp_path, "m.json", "thing", {})
    (tmp_path / ".hidden").write_text("the user's own")
    code = (
        "import pathlib, sys, time\n"
        "from semmix.core.artifact import open_artifact, working_alone\n"
        "from semmix.core.files import whole_file\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with working_alone(open_artifact(folder, 'm.json', 'thing')), whole_file(folder / 'a'):\n"
        "    print('works', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "works\n"
        with pytest.raises(SemmixError, match="another process works"), working_alone(artifact):
            pass
        process.kill()
    assert len(list(tmp_path.glob(".a.*"))) == 1
    with working_alone(artifact):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "m.json"]


def test_work_that_another_has_just_finished_is_not_done_again(tmp_path):
    seen_unfinished = begin_artifact(tmp_path, "m.json", "thing", {})
    open_artifact(tmp_path, "m.json", "thing").finish()
    with pytest.raises(SemmixError, match="just finished"), working_alone(seen_unfinished):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_a_lock_that_is_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    artifact = begin_artifact(tmp_path, "m.json", "thing", {})
    told, is_there = [False, False], _artifact._is_there
    monkeypatch.setattr(_artifact, "_is_there", lambda *file: told.pop() if told else is_there(*file))
    with working_alone(artifact):
        assert told == []
        with pytest.raises(SemmixError, match="another process works"), working_alone(artifact):
            pass


def test_where_files_have_no_identity_work_goes_on_without_locks(tmp_path, monkeypatch):
    artifact = begin_artifact(tmp_path, "m.json", "thing", {})
    monkeypatch.setattr(_artifact, "_is_there", lambda *file: False)
    with working_alone(artifact):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="has no such modes")
def test_a_lock_is_as_private_as_the_user_wants_it(tmp_path):
    artifact, before = begin_artifact(tmp_path, "m.json", "thing", {}), os.umask(0o002)
    try:
        with working_alone(artifact):
            assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files")
def test_a_file_system_without_locks_refuses_nothing_and_keeps_no_file_open(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError("no locks available")

    artifact, before = begin_artifact(tmp_path, "m.json", "thing", {}), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("fcntl.flock", no_locks)
    with working_alone(artifact), working_alone(artifact):
        assert [path.name for path in tmp_path.iterdir()] == ["m.json"]
        assert len(os.listdir("/proc/self/fd")) == before


def test_without_locks_all_may_work(tmp_path, monkeypatch):
    artifact = begin_artifact(tmp_path, "m.json", "thing", {})
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with working_alone(artifact), working_alone(artifact):
        assert [path.name for path in tmp_path.iterdir()] == ["m.json"]
