"""What a run leaves on the way: its stats, forgotten where they will be written again."""

from semmix.training.checkpoint import append_stats, rewind_stats


def test_lines_after_the_checkpoint_and_half_lines_are_forgotten(tmp_path):
    path = tmp_path / "stats.jsonl"
    rewind_stats(path, 0)  # before the first line there is no file
    assert not path.exists()
    for nimg in (60, 120, 180):
        append_stats(path, {"nimg": nimg, "loss": 1 / nimg})
    lines = path.read_text().splitlines(keepends=True)
    rewind_stats(path, 179)
    assert path.read_text() == "".join(lines[:2])
    path.write_text("".join(lines)[:-1])  # killed while it was written
    rewind_stats(path, 180)
    assert path.read_text() == "".join(lines[:2])
    rewind_stats(path, 120)
    assert path.read_text() == "".join(lines[:2])
    rewind_stats(path, 0)
    assert path.read_text() == ""
