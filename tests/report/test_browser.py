"""The report in a real browser: it works, asks nobody for anything, and fits every screen."""

import base64
import io
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from semmix.report import draw_evaluation, write_report
from semmix.runs import Predictions, Run, logits_file

END, RIGHT, ENTER, SPACE = ("End", 35), ("ArrowRight", 39), ("Enter", 13, "\r"), (" ", 32, " ")


@pytest.fixture(scope="module")
def report(run_folders, gallery, tmp_path_factory):
    """A report with everything in it: mixed sets, and logits on OOD images."""
    root = tmp_path_factory.mktemp("report")
    runs = [shutil.copytree(run, root / run.name) for run in run_folders]
    for run in runs:
        shutil.copy(run / "logits-val.safetensors", run / logits_file("ood-elsewhere"))
    names = ["zero", "one", "two", "<script>document.title = 'owned'</script>"]
    out = root / "report.html"
    return write_report(runs, out, title="A title", class_names=names, gallery=gallery)


@pytest.fixture(scope="module")
def evaluation(run_folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "evaluation.html"
    run = Run.open(run_folders[0])
    known = {"cross_entropy": None, "kl_divergence": 0.1, "total_variation": 0.2}
    agreement = {"one-hot labels": {**known, "entropy_correlation": 0.3}}
    human = {"entropy": 0.5, "agreement": agreement}
    predictions = {"as given": run.before, "scaled": run.after}
    return draw_evaluation(predictions, out, title="A title", human=human)


def first_column(browser):
    script = "[...document.querySelectorAll('.results tbody')[0].rows].map(r => r.cells[0].innerText)"
    return browser.run(script)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["report", "evaluation"])
def test_it_opens_in_peace(browser, request, name, width, dark):
    path = request.getfixturevalue(name)
    browser.open(path, width=width, dark=dark)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [f"file://{path}"]
    assert browser.run("document.title") == "A title"
    assert browser.run("document.documentElement.scrollWidth") == width
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    lightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert (lightness < 60) is dark
    assert (lightness > 230) is not dark


def test_new_parts_are_shown(browser, report, evaluation):
    for path, section in ((report, "ood"), (evaluation, "people")):
        browser.open(path, width=390)
        visible = f"document.querySelector('#{section} table').checkVisibility()"
        assert browser.run(visible)
        assert browser.run(f"document.querySelectorAll('nav a[href=\"#{section}\"]').length") == 1


def test_headings_sort_by_click_and_by_key(browser, report):
    browser.open(report)
    assert first_column(browser) == ["CE", "CSM"]
    heading = ".results thead tr:last-child th:nth-child(3)"  # ECE
    browser.click(f"{heading} button")
    assert first_column(browser) == ["CSM", "CE"]
    assert browser.run(f"document.querySelector('{heading}').ariaSort") == "ascending"
    for key in (ENTER, SPACE):
        browser.press(*key)
    assert browser.run(f"document.querySelector('{heading}').ariaSort") == "ascending"
    browser.press(*ENTER)
    assert first_column(browser) == ["CE", "CSM"]
    assert browser.run("document.querySelectorAll('th[aria-sort]').length") == 1
    assert browser.complaints == []


def test_a_slider_walks_its_set_and_the_master_walks_all(browser, report):
    browser.open(report)
    browser.run("document.getElementById('set-2').focus()")
    browser.press(*END)
    outputs = browser.run("[...document.querySelectorAll('.set output')].map(o => o.innerText)")
    assert outputs[1] == "λ requested 1.00\nλ annotated 1.00"
    assert outputs[0] == "λ requested 0.50\nλ annotated 0.25"
    shift = "document.querySelectorAll('.set img')[{}].style.transform"
    assert browser.run(shift.format(1)) == "translateX(-80%)"
    text = browser.run("document.getElementById('set-2').getAttribute('aria-valuetext')")
    assert text == "requested 1.00, annotated 1.00"
    browser.run("document.getElementById('walk').focus()")
    browser.press(*RIGHT)
    assert [browser.run(shift.format(k)) for k in range(4)] == ["translateX(-60%)"] * 4


def test_the_window_shows_one_member(browser, report):
    browser.open(report)
    window, image = (
        browser.run(f"document.querySelector('{s}').getBoundingClientRect().width") for s in (".window", ".window img")
    )
    assert image == pytest.approx(5 * window, abs=1)


def test_sets_are_picked_by_class(browser, report):
    browser.open(report)
    shown = "[...document.querySelectorAll('.set')].map(s => !s.hidden)"
    assert browser.run(shown) == [True] * 4
    browser.run("pick.value = '1'; pick.dispatchEvent(new Event('change'))")
    assert browser.run(shown) == [True, False, True, False]


def test_the_switch_shows_scaled_classifiers(browser, report):
    browser.open(report)
    visible = "[...document.querySelectorAll('.card.before, .card.after')].map(c => c.checkVisibility())"
    assert browser.run(visible) == [True, True, False, False]
    browser.click("input[value=after]")
    assert browser.run(visible) == [False, False, True, True]
    browser.open(report, media="print")
    assert browser.run(visible) == [True] * 4


def test_tab_reaches_every_control(browser, report):
    browser.open(report)
    reached = set()
    for _ in range(150):
        browser.press("Tab", 9)
        reached.add(browser.run("document.activeElement.id || document.activeElement.tagName"))
    assert {"walk", "pick", "set-1", "set-4", "BUTTON", "SUMMARY", "PRE"} <= reached


def test_sets_that_are_not_annotated_can_be_walked(browser, run_folders, gallery, tmp_path):
    alone = replace(gallery, lam=None)
    browser.open(write_report(run_folders, tmp_path / "r.html", title="t", gallery=alone))
    browser.run("document.getElementById('set-2').focus()")
    browser.press(*END)
    assert browser.run("document.querySelectorAll('.set output')[1].innerText") == "λ requested 1.00"
    assert browser.run("document.getElementById('set-2').getAttribute('aria-valuetext')") == "requested 1.00"
    assert browser.complaints == []


def test_the_bar_shows_through_the_hatch_of_an_under_confident_bin(browser, tmp_path):
    """The colour of the bar is seen up to the accuracy, here 1, though the hatch covers it from .6 on."""
    probs = np.array([[0.6, 0.4]] * 50)
    page = draw_evaluation({"as given": Predictions(probs, np.zeros(50, int))}, tmp_path / "e.html", title="t")
    browser.open(page)
    place = browser.run(
        "(() => { const bar = document.querySelector('.gap'); bar.scrollIntoView({block: 'center'});"
        "const r = bar.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
    )
    clip = dict(zip(("x", "y", "width", "height"), place, strict=True), scale=1)
    clip["y"] += browser.run("window.scrollY")
    clip["x"] += browser.run("window.scrollX")
    data = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).reshape(-1, 3).astype(int)
    dark = (pixels.max(1) < 140).mean()  # the first series' colour; hatch and ground are lighter
    assert 0.25 < dark < 0.9
