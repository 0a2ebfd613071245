"""The packages: what the wheel, the sdist and the zoo's packages hold, what they ask for, how large they are."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "zoo"
MODELS = ["cifar10", "cifar100"]
MIB = 2**20


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist of semmix."""
    pytest.importorskip("hatchling")
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def build(folder: Path, out: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_the_wheel_holds_every_file_of_the_package(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < MIB
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("semmix/")}
        licences = {Path(name).name for name in archive.namelist() if "/licenses/" in name}
    source = ROOT / "src"
    files = [path for path in (source / "semmix").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert held == {path.relative_to(source).as_posix() for path in files}
    assert {"semmix/py.typed", "semmix/__init__.pyi", "semmix/report/templates/base.html"} <= held
    assert licences == {"LICENSE", "NOTICE"}


def test_the_sdist_holds_sources_tests_and_docs_but_no_results_and_no_zoo(built):
    (sdist,) = built.glob("*.tar.gz")
    assert sdist.stat().st_size < 10 * MIB
    with tarfile.open(sdist) as archive:
        top = {name.split("/")[1] for name in archive.getnames()}
    assert {"src", "tests", "docs", "examples", "tools", "Makefile", "constraints.txt", "README.md", "NOTICE"} <= top
    assert not top & {"results", "zoo", ".venv", "demo", "runs", "site"}


def test_the_zoo_is_one_package_for_each_model_and_one_that_asks_for_all():
    assert sorted(path.parent.name for path in ZOO.glob("*/pyproject.toml")) == MODELS
    assert sorted(path.parent.name for path in ZOO.glob("*/generator.json")) == MODELS
    wanted = [f"semmix-zoo-{name} @ {{root:uri}}/{name}" for name in MODELS]
    assert project(ZOO)["dependencies"] == wanted
    for name in MODELS:
        assert project(ZOO / name)["name"] == f"semmix-zoo-{name}"
        assert project(ZOO / name)["entry-points"]["semmix.zoo"] == {name: "semmix_zoo"}


def test_no_file_of_the_repository_is_too_large_for_its_hosts():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    sizes = {name: (ROOT / name).stat().st_size for name in tracked if name and (ROOT / name).is_file()}
    assert {name: size for name, size in sizes.items() if size >= 100e6} == {}


def test_a_model_packed_and_unpacked_is_found_by_its_entry_point(tmp_path):
    """The package of a model with small weights, built as the real one and put on the path of another Python."""
    pytest.importorskip("hatchling")
    source = tmp_path / "cifar10"
    for path in (ZOO / "cifar10").rglob("*"):
        if path.is_file():
            (source / path.relative_to(ZOO / "cifar10")).parent.mkdir(parents=True, exist_ok=True)
            small = path.read_bytes() if path.suffix in (".toml", ".md", ".json") else b"small"
            (source / path.relative_to(ZOO / "cifar10")).write_bytes(small)
    (wheel,) = build(source, tmp_path / "dist", "-t", "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import sys; sys.path.insert(0, 'site'); from semmix.core.zoo import find_zoo; print(find_zoo('cifar10'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = tmp_path / done.stdout.strip()
    assert found == tmp_path / "site" / "semmix_zoo" / "cifar10"
    packed = {path.relative_to(found) for path in found.rglob("*") if path.is_file()}
    assert packed == {p.relative_to(source) for p in source.rglob("*") if p.is_file()} - {Path("pyproject.toml")}


def test_what_the_tests_import_is_pinned_and_installed_by_the_extra_for_them():
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    optional = project(ROOT)["optional-dependencies"]
    asked = [*project(ROOT)["dependencies"], *(line for name in ("dev", "docs", "hub") for line in optional[name])]
    names = {re.match(r"[\w-]+", line)[0].lower() for line in asked} - {"semmix"}
    assert names <= {name.lower() for name in pinned}
    assert version("torch").split("+")[0] == pinned["torch"]


def test_versions_agree():
    import semmix

    assert f"\nversion: {semmix.__version__}\n" in (ROOT / "CITATION.cff").read_text()
