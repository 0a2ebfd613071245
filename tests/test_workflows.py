"""The workflow of the hosted checks: it parses, its commands exist, and its Pythons are those the package promises."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())["jobs"]


def commands(jobs: dict) -> list[str]:
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_every_workflow_parses_and_may_only_read():
    assert WORKFLOWS
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        assert set(workflow[True]) == {"push", "pull_request"}  # YAML reads `on` as true


@pytest.mark.parametrize("command", commands(JOBS))
def test_every_command_is_a_target_of_make(command):
    target = re.fullmatch(r"make (\w+)", command)[1]
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^\.PHONY:.*\b{target}\b", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_they_are_what_make_test_does_and_the_packages():
    assert commands(JOBS) == ["make lint", "make tests", "make docs", "make dist"]
    done = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True)
    assert all(
        tool in done.stdout for tool in ("ruff check", "ruff format --check", "pyright", "mkdocs build", "pytest")
    )


def test_every_job_checks_out_and_sets_python_up():
    for name, job in JOBS.items():
        used = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
        assert used[:2] == ["actions/checkout", "actions/setup-python"], name


def test_the_tests_run_on_the_oldest_python_that_is_promised_and_newer_ones():
    pythons = JOBS["tests"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={pythons[0]}"
    assert pythons == ["3.11", "3.12", "3.13"]
    assert f"Python :: {pythons[-1]}" in " ".join(project["classifiers"])
