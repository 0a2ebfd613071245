"""The doctor's exit status tells."""

from semmix import doctor
from semmix.doctor import DoctorConfig, run_doctor


def test_a_sound_installation_passes_the_self_test(capsys, tmp_path):
    assert run_doctor(DoctorConfig(root=tmp_path)) == 0
    out = capsys.readouterr().out
    assert "all is well" in out
    assert "torch" in out
    assert "digits, generator to report" in out


def test_a_missing_package_and_a_failing_check_are_told(capsys, tmp_path, monkeypatch):
    def failing(folder):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(doctor, "SELF_TESTS", {"metrics": failing})
    monkeypatch.setattr(doctor, "CORE", ("torch", "no-such-package"))
    assert run_doctor(DoctorConfig(root=tmp_path)) == 1
    out = capsys.readouterr().out
    assert "!! missing" in out
    assert "!! broken on purpose" in out
