"""The report as a file: well formed, self-contained, inert, small, the same every time."""

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import tyro

from semmix import runs
from semmix.calibration import METRICS, USUAL, TemperatureScaler, ece, interval
from semmix.core.errors import SemmixError
from semmix.report import Gallery, Predictions, ReportConfig, draw_evaluation, run_report, runs_page, write_report
from semmix.report.charts import Series, class_lines, pair_lines, verdict
from semmix.report.rendering import signed
from semmix.report.rows import TEMPERATURE, aggregate, percent, results_table, show_change, show_estimate
from semmix.runs import Run

VOID = {"meta", "link", "input", "img", "br", "hr"}
NASTY = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Collects elements; every tag must close in order."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts = [], [], {}
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def report(run_folders, gallery, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    names = ["zero", "one", "two", NASTY]
    return write_report(run_folders, out, title="T & <T>", class_names=names, gallery=gallery)


@pytest.fixture(scope="module")
def page(report):
    return Page(report)


def test_nothing_is_loaded_from_outside(page):
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert "url(" not in re.sub(r"url\(#hatch(-on-colour)?\)", "", page.texts["style"])
    assert "@import" not in page.texts["style"]
    assert not re.search(r"https?:", page.source)


def test_the_policy_allows_this_style_and_script_only(page):
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for name in ("style", "script"):
        digest = hashlib.sha256(page.texts[name].encode()).digest()
        assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert len(page.all("style")) == len(page.all("script")) == 1
    for _, attributes in page.elements:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]


def test_names_are_inert(page):
    assert page.source.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.source
    assert "<title>T &amp; &lt;T&gt;</title>" in page.source


def test_everything_has_a_name_for_those_who_do_not_see(page):
    labels = {a["for"] for a in page.all("label") if "for" in a}
    sliders = [a for a in page.all("input") if a["type"] == "range"]
    assert {a["id"] for a in sliders} <= labels
    assert "pick" in labels
    assert all(a["alt"] for a in page.all("img"))
    for attributes in page.all("svg"):
        assert "aria-hidden" in attributes or attributes["aria-label"]
    assert all(a.get("aria-label") for _, a in page.elements if a.get("role") == "region")
    assert len(page.all("caption")) >= 4
    assert page.all("html") == [{"lang": "en"}]


def test_ids_are_unique_and_links_lead_somewhere(page):
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for a in page.all("a")]
    named = [a["aria-labelledby"] for a in page.all("section")]
    assert {*links, *named} <= set(ids)
    assert "sets" in links


def test_it_says_what_the_numbers_say(page, report):
    text = page.source.replace("\N{NO-BREAK SPACE}", " ")
    assert re.search(r'<p class="headline">CSM is \d\.\d times better calibrated than CE', text)
    assert "semmix train digits --method csm --seed 2" in text
    assert "2026-01-02T03:04:05" in text
    assert "even a perfectly calibrated CSM would show an ECE near" in text
    assert len(page.all("img")) == 4


def cells(source, section, table=0):
    """Return the texts of each row of a table of a section, its headings first."""
    part = source.split(f'<section id="{section}"')[1].split("</section>")[0]
    rows = part.split("<table")[table + 1].split("</table>")[0].split("<tr")[1:]
    texts = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[" ".join(unescape(re.sub("<[^>]*>", " ", text)).split()) for text in row] for row in texts]


def test_tables_hold_the_numbers_of_each_row(report, run_folders):
    rows, source = aggregate(run_folders), report.read_text()
    groups, headings, *lines = cells(source, "results")
    assert groups == ["", "as trained", "after temperature scaling", ""]
    names = [metric.heading for metric in USUAL]
    assert [heading.split(" ↕")[0] for heading in headings] == ["Method", *names, "T", *names[1:], "Seeds"]
    for row, line in zip(rows, lines, strict=True):
        before = [show_estimate(metric, row.before[metric.name]) for metric in USUAL]
        after = [show_estimate(metric, row.after[metric.name]) for metric in USUAL[1:]]
        assert line == [row.name, *before, show_estimate(TEMPERATURE, row.temperature), *after, "3"]
    headings, (name, *changes) = cells(source, "results", 1)
    assert (name, changes[-1]) == ("CSM − CE", "3")
    for metric, change in zip([*USUAL, METRICS["ece"]], changes[:-1], strict=True):
        stage = rows[1].change_after if change is changes[-2] else rows[1].change_before
        assert change.endswith(show_change(metric, stage[metric.name]))
    headings, *lines = cells(source, "risk")
    assert lines[1][0] == "CSM"
    csm = Series("CSM", tuple(run.before for run in rows[1].runs))
    assert lines[1][1:] == [f"{100 * value:.2f}" for value in [*map(csm.risk_at, (0.5, 0.8, 0.9, 0.95, 1.0)), csm.aurc]]
    headings, *lines = cells(source, "runs")
    assert [line[:2] for line in lines] == [[row.name, str(run.seed)] for row in rows for run in row.runs]
    run = rows[1].runs[2]
    error = interval(ece, run.before.probs, run.before.labels)
    assert lines[5][2:] == [
        f"{100 * run.before.metrics['acc']:.2f}",
        f"{100 * error.value:.2f} [{100 * error.low:.2f}, {100 * error.high:.2f}]",
        f"{run.temperature:.2f}",
        "2026-01-02T03:04:05",
        "CPU",
        str(run.folder),
    ]
    meta = source.split('<p class="meta">')[1].split("</p>")[0]
    assert meta == "6 runs in 2 rows · dataset digits · classifier small · 600 test images"
    shared = source.split("<h3>The same for all</h3>")[1].split("</dl>")[0]
    assert "<dt>epochs</dt><dd>5</dd>" in shared
    assert "<dt>method</dt>" not in shared


def test_classes_and_confusions_are_those_of_the_predictions(report, run_folders):
    row = aggregate(run_folders)[0]
    series = Series(row.name, tuple(run.before for run in row.runs))
    names = ["zero", "one", "two", NASTY]
    _, *lines = cells(report.read_text(), "classes")
    first = class_lines(series, names)[0]
    shown = [
        f"{first.images:.0f}",
        f"{100 * first.found:.1f}",
        f"{first.predictions:.0f}",
        f"{100 * first.confidence:.1f}",
    ]
    assert lines[0] == [first.name, *shown, f"{100 * first.right:.1f}", signed(first.gap)]
    assert len(lines) == 4
    _, *lines = cells(report.read_text(), "classes", 1)
    first = pair_lines(series, names)[0]
    shown = [f"{first.images:.1f}", f"{100 * first.share:.1f}", f"{100 * first.confidence:.1f}"]
    assert lines[0] == [first.truth, first.prediction, *shown]


def test_each_set_goes_from_class_j_to_class_i(page):
    figures = [a for a in page.all("figure") if a.get("class") == "set card"]
    assert [a["data-classes"] for a in figures] == ["0 1", "0 2", "1 3", "2 3"]
    assert figures[0]["data-requested"] == "0.00 0.25 0.50 0.75 1.00"
    assert figures[0]["data-annotated"] == "0.00 0.06 0.25 0.56 1.00"
    image = page.all("img")[1]
    assert image["alt"] == "5 images that go from two to zero"
    assert (image["width"], image["height"]) == ("30", "6")
    assert "λ requested 0.00–1.00, annotated 0.00–1.00</output>" in page.source
    assert "<figcaption>one → zero</figcaption>" in page.source
    assert [a["value"] for a in page.all("option")] == ["few", "all", "0", "1", "2", "3"]


def test_the_same_runs_give_the_same_bytes(run_folders, gallery, report, tmp_path):
    names = ["zero", "one", "two", NASTY]
    again = write_report(run_folders, tmp_path / "again.html", title="T & <T>", class_names=names, gallery=gallery)
    assert again.read_bytes() == report.read_bytes()


def test_a_single_run_without_curve_gallery_or_baseline(tmp_path, make_run):
    folder = make_run(tmp_path / "run", "mine", 0)
    (folder / "stats.jsonl").unlink()
    page = Page(write_report([folder], tmp_path / "r.html", title="one"))
    assert "The baseline (ce) is not among these runs" in page.source
    assert {"training", "sets"}.isdisjoint(a["href"][1:] for a in page.all("a"))


def test_a_curve_that_was_cut_off_is_named(tmp_path, make_run):
    folder = make_run(tmp_path / "run", "mine", 0)
    (folder / "stats.jsonl").write_text('{"epoch": 1}\n{"epo')
    with pytest.raises(SemmixError, match=r"cannot read .*stats\.jsonl"):
        write_report([folder], tmp_path / "r.html", title="one")


def test_class_names_must_fit(run_folders, tmp_path):
    with pytest.raises(SemmixError, match="2 names for 4 classes"):
        write_report(run_folders, tmp_path / "r.html", title="", class_names=["a", "b"])


def test_rows_without_a_shared_seed_are_not_compared(tmp_path, make_run):
    folders = [make_run(tmp_path / "a", "ce", 0), make_run(tmp_path / "b", "ls", 1)]
    page = Page(write_report(folders, tmp_path / "r.html", title="apart"))
    assert "LS and CE share no seed, so they are not compared." in page.texts["li"]
    assert "Difference to the baseline" not in page.source


def test_a_leak_is_said_aloud(tmp_path, make_run):
    folders = [make_run(tmp_path / "a", "ce", 0), make_run(tmp_path / "b", "csm", 0, leak=True)]
    source = write_report(folders, tmp_path / "r.html", title="leak").read_text()
    assert "Not a fair comparison." in source
    assert "mixed sets behind CSM were not made from the training split alone" in source


def test_a_training_that_differs_is_said_aloud(tmp_path, make_run, capsys):
    folders = [make_run(tmp_path / "a", "ce", 0), make_run(tmp_path / "b", "ls", 0, epochs=7)]
    run_report(ReportConfig(runs=tuple(folders), out=tmp_path / "r.html"))
    difference = "LS against CE: epochs 7, not 5"
    assert f"not trained alike: {difference}\n" in capsys.readouterr().out
    assert f"<li>{difference}</li>" in (tmp_path / "r.html").read_text()
    alike = write_report([folders[0]], tmp_path / "alike.html", title="alone").read_text()
    assert "Not trained alike" not in alike


def test_twenty_large_runs_stay_under_eight_megabytes(tmp_path, make_run):
    folders = [
        make_run(tmp_path / f"{method}{seed}", method, seed, num=2000, num_classes=100)
        for method in ("ce", "ls", "fl", "mixup", "csm")
        for seed in range(4)
    ]
    draw = np.random.default_rng(0)
    lam = np.tile(np.linspace(0, 1, 8), (4950, 1))
    pairs = [(i, j) for i in range(100) for j in range(i + 1, 100)]
    images = draw.integers(0, 256, (60, 8, 3, 64, 64), dtype=np.uint8)  # noise: worst for PNG
    gallery = Gallery(images=images, pairs=pairs, lam_requested=lam, lam=lam)
    out = write_report(folders, tmp_path / "r.html", title="large", gallery=gallery)
    assert out.stat().st_size < 8_000_000
    assert "4890 more are left out" in out.read_text()


def test_the_command_writes_a_report(run_folders, tmp_path, capsys):
    args = [*map(str, run_folders), "-o", str(tmp_path / "r.html"), "--title", "By command"]
    path = run_report(tyro.cli(ReportConfig, args=args))
    assert path == tmp_path / "r.html"
    assert "By command" in path.read_text()
    assert str(path) in capsys.readouterr().out


def test_the_command_shows_mixed_sets_with_and_without_an_annotation(run_folders, tmp_path, gallery, monkeypatch):
    asked = []
    monkeypatch.setattr(runs_page, "open_gallery", lambda *args: (asked.append(args), gallery)[1])
    for given in ({}, {"annotation": Path("notes")}, {"num_sets": 1}):
        config = ReportConfig(runs=tuple(run_folders[:1]), out=tmp_path / "r.HTM", mixsets=Path("sets"), **given)
        assert 'id="sets"' in run_report(config).read_text()
    assert asked == [(Path("sets"), None, 45), (Path("sets"), Path("notes"), 45), (Path("sets"), None, 1)]
    assert ReportConfig(runs=(tmp_path,)).mixsets is None


def test_a_method_may_be_the_baseline(run_folders, tmp_path):
    source = run_report(ReportConfig(runs=tuple(run_folders), out=tmp_path / "r.html", baseline="csm")).read_text()
    assert "CE − CSM" in source
    assert "CE is" in source.split('<ul class="words">')[1]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"runs": ()}, "nothing"),
        ({"annotation": Path("x")}, "needs the mixed sets: annotation=x"),
        ({"num_sets": 0, "mixsets": Path("x")}, "shows sets"),
        ({"num_sets": 3}, "counts mixed sets"),
        ({"out": Path("reports")}, r"one page: reports\n.*end its name in \.html"),
    ],
)
def test_bad_configs_are_refused(fields, what):
    with pytest.raises(SemmixError, match=what):
        ReportConfig(**{"runs": ("run",), **fields})


def test_the_evaluation_page(run_folders, tmp_path):
    run = Run.open(run_folders[0])
    page = Page(
        draw_evaluation(
            {"as given": run.before, NASTY: run.after},
            tmp_path / "e.html",
            title="logits.npz",
            notes=["Fitted on the validation split."],
        )
    )
    assert page.source.count("<script>") == 1
    assert "over-confident by" in page.texts["p"]
    assert "Fitted on the validation split." in page.texts["p"]
    assert page.source.count('class="card "') == 2
    headline = page.source.split('<p class="headline">')[1].split("</p>")[0]
    assert verdict(run.before.confidence.mean(), run.before.metrics["acc"]) in headline
    assert f"Its ECE is {percent(run.before.metrics['ece'])}, interval " in headline
    assert '<p class="meta">600 images</p>' in page.source


def test_a_perfect_classifier_can_be_reported(tmp_path):
    probs = np.eye(3)[np.arange(30) % 3]
    perfect = Predictions(probs, np.arange(30) % 3)
    page = Page(draw_evaluation({"as given": perfect}, tmp_path / "e.html", title="perfect"))
    assert "nan" not in page.texts["td"].lower()


def test_one_pair_of_runs_has_no_interval_to_include_zero(tmp_path, make_run):
    folders = [make_run(tmp_path / "a", "ce", 0), make_run(tmp_path / "b", "csm", 0)]
    page = Page(write_report(folders, tmp_path / "r.html", title="pair", baseline="ce"))
    assert "one pair: no interval" in page.source
    assert 'title="no clear difference"' not in page.source


def counted(monkeypatch, counts, where, name):
    """Count the calls of a function."""
    function = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *args: (counts.update([name]), function(*args))[1])


def test_a_report_of_ten_runs_opens_ten_manifests_and_fits_ten_temperatures(tmp_path, make_run, monkeypatch, capsys):
    folders = [make_run(tmp_path / f"{m}{seed}", m, seed) for m in ("ce", "csm") for seed in range(5)]
    counts = Counter()
    for where, name in ((TemperatureScaler, "fit"), (runs, "open_artifact"), (runs, "read_named_tensors")):
        counted(monkeypatch, counts, where, name)
    run_report(ReportConfig(runs=tuple(folders), out=tmp_path / "r.html"))
    assert counts == {"open_artifact": 10, "fit": 10, "read_named_tensors": 20}
    assert "CSM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (["ce"], "All of these runs are of the baseline: there is no other method to compare it with."),
        (["csm"], "The baseline (ce) is not among these runs"),
        (["ce", "csm"], "it may be chance"),
    ],
)
def test_what_is_said_where_nothing_can_be_compared(tmp_path, make_run, methods, said):
    folders = [make_run(tmp_path / method, method, 0) for method in methods]
    words = Page(write_report(folders, tmp_path / "r.html")).source.split("<h3>In words</h3>")[1].split("</div>")[0]
    assert said in words


def test_a_baseline_on_other_images_is_not_called_missing(tmp_path, make_run):
    folders = [make_run(tmp_path / "a", "ce", 0, classifier="resnet18"), make_run(tmp_path / "b", "ls", 0)]
    assert (
        "No method has the test images and the classifier of the baseline (ce)"
        in Page(write_report(folders, tmp_path / "r.html")).source
    )


def test_rows_runs_and_folders_give_the_same_page(run_folders, tmp_path):
    opened = [Run.open(folder) for folder in run_folders]
    rows = aggregate(opened)
    pages = [write_report(given, tmp_path / "r.html").read_bytes() for given in (run_folders, opened, rows)]
    assert pages[0] == pages[1] == pages[2]
    assert aggregate(rows) == rows
    assert str(results_table(run_folders)) == str(results_table(rows))


def test_mixed_sets_that_are_not_annotated_are_shown_with_what_was_requested(run_folders, gallery, tmp_path):
    alone = replace(gallery, lam=None)
    page = Page(write_report(run_folders, tmp_path / "r.html", gallery=alone))
    figures = [a for a in page.all("figure") if a.get("class") == "set card"]
    assert [a["data-requested"] for a in figures] == ["0.00 0.25 0.50 0.75 1.00"] * 4
    assert "data-annotated" not in figures[0]
    assert "λ requested 0.00–1.00</output>" in page.source
    assert "annotated" not in page.source.split('<section id="sets"')[1].split("</section>")[0]


def test_a_baseline_that_no_run_has_is_refused(run_folders, tmp_path):
    with pytest.raises(SemmixError, match="did you mean 'csm'"):
        run_report(ReportConfig(runs=tuple(run_folders), out=tmp_path / "r.html", baseline="csmm"))
