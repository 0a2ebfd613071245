"""The documentation: its Python runs, its links lead somewhere, its commands exist.

Links between the pages of docs/ are checked by the site's own build, which `make docs` runs too.
"""

import contextlib
import html
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import semmix
from semmix.cli.main import COMMANDS, run_command, split_command

ROOT = Path(__file__).parents[1]
OUTSIDE = [
    ROOT / "README.md",
    ROOT / "NOTICE",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "results" / "README.md",
    *sorted((ROOT / "zoo").rglob("*.md")),
]
PAGES = [*OUTSIDE, *sorted((ROOT / "docs").glob("*.md"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_readme_python_runs(capsys, tmp_path, monkeypatch):
    (block,) = python_blocks(ROOT / "README.md")
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "Run('runs/readme': ce on digits, seed 0" in shown
    assert "after temperature 0." in shown
    assert (tmp_path / "reliability.png").stat().st_size > 10_000


def test_own_parts_run_as_documented(tmp_path, monkeypatch):
    """The page on plug-ins: its classes go to mine.py, its other lines run one after the other."""
    blocks = python_blocks(ROOT / "docs" / "extend.md")
    classes = [block for block in blocks if block.startswith("# mine.py\n")]
    assert len(classes) == 4
    (tmp_path / "mine.py").write_text("\n\n".join(classes))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict = {}
    for block in blocks:
        if block not in classes:
            exec(compile(block, "extend.md", "exec"), names)
    assert names["sets"].verify() == []
    assert names["annotation"].lam().shape == (45, 8)
    given, mine = (names["evaluation"].results[name].measures for name in ("as given", "mine:Shrunken"))
    assert mine["acc"].value > 0.5
    assert mine["ece"] != given["ece"]


def test_the_evaluation_runs_as_documented(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in python_blocks(ROOT / "docs" / "evaluate.md"):
        exec(compile(block, "evaluate.md", "exec"), names)
    given, *calibrated = names["evaluation"].to_json()["results"]
    assert given["metrics"]["oe"] == pytest.approx(given["metrics"]["ece"], abs=1e-3)
    assert all(after["metrics"]["ece"] < given["metrics"]["ece"] for after in calibrated)
    assert all(after["metrics"]["nll"] < 0.7 for after in calibrated)


@pytest.mark.parametrize(("page", "figure"), [("calibration", "demo"), ("results", "cifar10")])
def test_reliability_is_drawn_as_documented(page, figure, tmp_path, monkeypatch):
    (block,) = python_blocks(ROOT / "docs" / f"{page}.md")
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, page, "exec"), {})
    drawn, shown = (tmp_path / "reliability.png", ROOT / "docs" / "images" / f"reliability-{figure}.png")
    assert drawn.stat().st_size == pytest.approx(shown.stat().st_size, rel=0.2)


def build_site(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does: a dead link or anchor is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    quiet = {**os.environ, "NO_COLOR": "1", "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=quiet)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The pages as a site."""
    out = tmp_path_factory.mktemp("site")
    done = build_site(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("link", ["gone.md", "index.md#gone", "/index.md"])
def test_dead_links_break_the_build(link, tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for folder in ("src", "tools"):  # for the reference
        (tmp_path / folder).symlink_to(ROOT / folder)
    page = tmp_path / "docs" / "index.md"
    page.write_text(f"{page.read_text()}\n[broken]({link})\n")
    done = build_site(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert link in done.stderr


def test_pages_load_nothing_from_elsewhere(site):
    pages = sorted(site.glob("*.html"))
    assert {page.stem for page in pages} == {"404", *(page.stem for page in (ROOT / "docs").glob("*.md"))}
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:img|iframe|source|script)[^>]*\ssrc=\"([^\"]+)\"", text)
        loaded += re.findall(r"<link[^>]*\shref=\"([^\"]+)\"", text)
        assert loaded
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == []


def test_style_sheets_load_nothing_from_elsewhere(site):
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


@pytest.fixture
def served(site):
    """The address of the site on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site))) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_the_search_finds_a_public_name_and_asks_no_other_host(served, browser):
    browser.open(f"{served}/index.html?q=TemperatureScaler")
    hits = browser.wait_for("[...document.querySelectorAll('.md-search-result__link')].map(a => a.href).join(' ')")
    assert f"{served}/api.html" in hits
    assert [url for url in browser.requests if not url.startswith((served, "blob:", "data:"))] == []
    assert browser.complaints == []


def test_the_reference_shows_every_public_name_with_its_example(site):
    shown = re.findall(r"^::: semmix\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(set(semmix.__all__) - {"__version__"}), "list it in docs/api.md"
    page = (site / "api.html").read_text()
    for name in shown:
        assert f'id="semmix.{name}"' in page
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for name in shown:
        for line in re.findall(r"^ *>>> ([^#\n]+)", inspect.getdoc(getattr(semmix, name)) or "", re.MULTILINE):
            assert f">>> {line.rstrip()}" in text, name


@pytest.mark.parametrize("page", OUTSIDE, ids=name_of)
def test_links_lead_somewhere(page, site):
    """Links of pages outside the site, their anchors in it included."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        assert (page.parent / path).exists(), target
        if anchor:
            built = site / f"{Path(path).stem}.html"
            assert built.exists(), f"{target}: anchors of pages outside the site are not checked"
            assert f'id="{anchor}"' in built.read_text(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_named_exist(page):
    groups = {name.split()[0] for name in COMMANDS}
    for command in re.findall(r"(?:`|\n    |\$ )semmix ([a-z]+)", page.read_text()):
        assert command in groups, command


@cache
def options_of(name: str) -> set[str]:
    """Return the options that a command's help names; `fit` shows all only with its images."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        run_command(name, [*(["digits"] if name == "fit" else []), "--help"])
    return set(re.findall(r"(?<=[\s,])--?[a-z][a-z-]*", shown.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_named_exist(page):
    text = page.read_text().replace("\\\n", " ")
    groups = "|".join({name.split()[0] for name in COMMANDS})
    for line in re.findall(rf"(?:^|`|\$ |    )semmix ((?:{groups})\b[^`\n#]*)", text, re.MULTILINE):
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line):
            name, _ = split_command(line.split())
            assert name is not None
            assert option in options_of(name), line


def test_every_command_has_a_place_in_the_guide():
    guide = (ROOT / "docs" / "commands.md").read_text()
    for name in COMMANDS:
        assert f"semmix {name}" in guide, name
