"""Where zoo:NAME is looked up: each place, their order, and what an unknown name is told."""

import sys
from pathlib import Path

import pytest

from semmix.core.errors import SemmixError
from semmix.core.files import cache_folder
from semmix.core.zoo import MANIFEST, fetched_folder, find_zoo, is_zoo_name, package_folders, zoo_entries, zoo_folders

CLONE = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No zoo is named or fetched, and the working folder has none."""
    monkeypatch.delenv("SEMMIX_ZOO", raising=False)
    monkeypatch.setenv("SEMMIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def put(zoo: Path, name: str) -> Path:
    """Put an entry into a zoo; return its folder."""
    (zoo / name).mkdir(parents=True)
    (zoo / name / MANIFEST).write_text("{}")
    return zoo / name


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package whose entry point names a module; it must not be imported."""
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(site))

    def add(package: str, module: str | None = None) -> Path:
        folder = site / (module or package).replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[semmix.zoo]\n{package} = {module or package}\n")
        return folder

    return add


def test_the_zoo_of_the_clone_is_found_from_anywhere():
    assert find_zoo("zoo:cifar10") == find_zoo("cifar10") == CLONE / "zoo" / "cifar10"
    assert {"cifar10", "cifar100"} <= set(zoo_entries())


def test_a_package_is_found_by_its_entry_point_and_not_imported(install):
    folder = install("owl_zoo")
    owls = put(folder, "owls")
    assert find_zoo("owls") == owls
    assert "owls" in zoo_entries()
    assert "owl_zoo" not in sys.modules


def test_a_zoo_may_be_one_module_beside_its_entries(install, tmp_path):
    install("single", "single_module")
    (tmp_path / "site-packages" / "single_module" / "__init__.py").unlink()
    (tmp_path / "site-packages" / "single_module").rmdir()
    (tmp_path / "site-packages" / "single_module.py").write_text("raise RuntimeError('imported')")
    owls = put(tmp_path / "site-packages", "owls")
    assert find_zoo("owls") == owls


def test_a_package_that_is_broken_hides_no_other(install):
    install("a_broken_zoo", "nobody.is.here")
    parent = install("b_broken_zoo", "absent")
    (parent / "__init__.py").unlink()
    parent.rmdir()
    owls = put(install("owl_zoo"), "owls")
    assert find_zoo("owls") == owls


def test_packages_of_several_models_may_share_a_folder(install):
    shared = [install(package, "shared_zoo") for package in ("owl_zoo", "bat_zoo")]
    assert package_folders() == shared[:1]


def test_of_two_entries_with_one_name_the_first_place_counts(install, tmp_path, monkeypatch):
    monkeypatch.setenv("SEMMIX_ZOO", str(tmp_path / "named"))
    places = [tmp_path / "named", Path("zoo"), install("owl_zoo"), cache_folder("zoo"), CLONE / "zoo"]
    assert zoo_folders() == places
    for place in reversed(places[:-1]):
        owls = put(place, "owls")
        assert find_zoo("owls") == owls


def test_what_was_fetched_lies_in_the_users_cache(tmp_path, monkeypatch):
    assert fetched_folder() == tmp_path / "cache" / "zoo"
    monkeypatch.setenv("SEMMIX_CACHE", "")
    assert fetched_folder() == Path.home() / ".cache" / "semmix" / "zoo"
    monkeypatch.delenv("SEMMIX_CACHE")
    assert fetched_folder() == Path.home() / ".cache" / "semmix" / "zoo"


def test_a_folder_without_a_manifest_is_no_entry(tmp_path):
    (tmp_path / "here" / "zoo" / "empty").mkdir(parents=True)
    assert "empty" not in zoo_entries()
    with pytest.raises(SemmixError, match="unknown zoo generator"):
        find_zoo("empty")


def test_an_unknown_name_says_how_to_get_it(monkeypatch):
    with pytest.raises(SemmixError, match="did you mean 'cifar10'") as caught:
        find_zoo("zoo:cifar11")
    assert caught.value.seen == "'cifar11'"
    assert "semmix zoo get" in caught.value.fix
    assert "pip install ./zoo" in caught.value.fix
    monkeypatch.setattr("semmix.core.zoo.zoo_folders", list)
    with pytest.raises(SemmixError, match="known: none; "):
        find_zoo("cifar10")


@pytest.mark.parametrize(("spec", "is_name"), [("zoo:owls", True), (Path("zoo:owls"), True), ("zoo/owls", False)])
def test_a_name_is_told_from_a_path(spec, is_name):
    assert is_zoo_name(spec) is is_name
