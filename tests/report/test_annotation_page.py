"""The page on an annotation, its JSON, and the sets it offers for exclusion."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch

from semmix import MixPlan, MixSets, SemmixError, classifier
from semmix.annotation import LABEL_SCHEMES, annotate
from semmix.data import Split
from semmix.mixing.plan import all_pairs
from semmix.networks.saved import save_classifier
from semmix.report.annotation_page import curve_chart, headline, judge_images, write_diagnosis
from semmix.report.svg import Frame
from semmix.training.mixed import load_mixed

NAMES = ("cat", "<b>dog</b>", "ship & sea", "truck")


class PixelEncoder:
    name, dim, digest = "pixels", 192, "pixels"

    def embed(self, images):
        return images.flatten(1).float()


def make_notes(folder, members=8):
    """Sets that slide from one noisy class colour to another, a few of them from a wrong one."""
    draw = torch.Generator().manual_seed(0)
    colours = torch.randint(40, 216, (4, 3, 1, 1), generator=draw)
    lams = tuple(k / (members - 1) for k in range(members))
    plan = MixPlan(num_classes=4, num_sets=24, pairs=all_pairs(4), lams=lams)
    store = MixSets.create(folder / "mix", plan, (3, 8, 8), {"digest": "g", "trained_on": None}, {})
    sets = []
    for n in range(24):
        i, j = (0, 3) if n % 8 == 7 else store.pair(n)
        clean = torch.stack([colours[i] * lam + colours[j] * (1 - lam) for lam in lams])
        sets.append(clean + 6 * torch.randn(members, 3, 8, 8, generator=draw))
    store.write_shard(0, torch.stack(sets).round().clamp(0, 255).to(torch.uint8))
    labels = torch.arange(40) % 4
    real = colours[labels] + 25 * torch.randn(40, 3, 8, 8, generator=draw)
    split = Split(real.round().clamp(0, 255).to(torch.uint8), labels)
    return annotate(store, PixelEncoder(), (split, split), folder / "notes")


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    return make_notes(tmp_path_factory.mktemp("diagnosis"))


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_and_json(notes, tmp_path):
    path = write_diagnosis(notes, tmp_path, NAMES)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert all(source.startswith(("#", "data:")) for source in page.sources)
    assert "<b>dog</b>" not in text
    assert page.tags.count("img") == 10 + 3  # the contact sheet, and the odd sets
    assert text.count("gen. 0.14") == 13
    assert f"anno. {notes.lam()[0, -1]:.2f}" in text
    found = json.loads((tmp_path / "diagnosis.json").read_text())
    assert found["odd_sets"] == [7, 15, 23]
    assert found["class_names"] == list(NAMES)
    assert found["pairs"][0]["num_sets"] == 4


def test_the_same_annotation_gives_the_same_page(notes, tmp_path):
    first, second = (write_diagnosis(notes, tmp_path / name, NAMES) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_sets_without_a_middle(tmp_path):
    path = write_diagnosis(make_notes(tmp_path, members=2), tmp_path, NAMES)
    assert "third class." not in path.read_text().split("</header>")[0]


def test_headline_says_what_was_found():
    text = headline({"monotone_share": 0.96, "third_class_share": 0.445})
    assert text.startswith("In 96\N{NO-BREAK SPACE}% of the sets")
    assert "44\N{NO-BREAK SPACE}% of the middle images show a third class" in text


def test_the_curve_cuts_off_what_is_hopeless():
    scale = {"candidates": [0.5, 4, 64], "gap": [0.7, 0.3, 9.0], "chosen": 4.0}
    chart = str(curve_chart(scale, "gap", "chosen"))
    points = chart.split('<polyline points="')[1].split('"')[0].split()
    assert len(points) == 2
    assert "scale in use is 4.00" in chart
    frame = Frame((-1, 6), (0.3 - 0.05 * (1.05 * 0.7 - 0.3), 1.05 * 0.7), height=230)
    assert points == [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in ((-1, 0.7), (2, 0.3))]
    mark = re.search('<line x1="([^"]*)" y1="([^"]*)" x2="([^"]*)" y2="([^"]*)" class="mark dashed">', chart).groups()
    assert [float(place) for place in mark] == pytest.approx([frame.x(2), 190, frame.x(2), 10], abs=0.01)
    labels = re.findall(r'<text x="([\d.]*)" y="205" class="middle">([\d.]*)<', chart)
    assert [(float(x), label) for x, label in labels] == [
        (pytest.approx(frame.x(k), abs=0.01), label)
        for k, label in enumerate(("0.5", "1", "2", "4", "8", "16", "32", "64"), start=-1)
    ]
    assert re.search('y="225" class="name middle">scale s<', chart)


@pytest.mark.parametrize(("last", "num"), [(0.4998, 3), (0.5001, 2)])
def test_the_curve_of_a_good_first_scale_is_cut_a_tenth_above_the_best(last, num):
    """What is 1.05 times the best and a tenth is shown, here .4999."""
    best = 0.4999 / 1.05 - 0.1
    scale = {"candidates": [0.5, 4, 64], "gap": [best, best, last], "chosen": 4.0}
    points = str(curve_chart(scale, "gap", "chosen")).split('<polyline points="')[1].split('"')[0].split()
    assert len(points) == num


def test_odd_sets_are_left_out_on_request(notes, tmp_path):
    write_diagnosis(notes, tmp_path, NAMES)
    mixsets, annotation = notes.store.folder, notes.artifact.folder
    everything = load_mixed(mixsets, annotation)
    fewer = load_mixed(mixsets, annotation, exclude=tmp_path / "diagnosis.json")
    kept = [n for n in range(24) if n not in (7, 15, 23)]
    assert torch.equal(fewer.images.images, everything.images.images[kept])
    assert torch.equal(fewer.images.soft_labels, everything.images.soft_labels[kept])
    assert torch.equal(fewer.images.pairs, everything.images.pairs[kept])
    assert "excluded" not in everything.inputs
    assert fewer.inputs["excluded"]
    (tmp_path / "other.json").write_text('{"annotation": "another", "odd_sets": [1]}')
    with pytest.raises(SemmixError, match="not one of the annotation in use"):
        load_mixed(mixsets, annotation, exclude=tmp_path / "other.json")


@pytest.mark.parametrize("labels", ["third_class", "encoder_softmax", "biased"])
def test_training_can_use_every_scheme(notes, labels):
    source = load_mixed(notes.store.folder, notes.artifact.folder, labels, scale=3.0)
    assert torch.equal(source.images.soft_labels, notes.soft_labels(labels, 3.0))
    assert source.inputs["scale"] == 3.0


def test_a_judge_is_compared_with_every_scheme(notes, tmp_path):
    labels = notes.soft_labels("third_class")
    write_diagnosis(notes, tmp_path, NAMES, judge=labels)
    found = json.loads((tmp_path / "diagnosis.json").read_text())["agreement"]
    assert list(found) == list(LABEL_SCHEMES)
    assert found["third_class"]["total_variation"] == pytest.approx(0, abs=1e-6)
    requested = notes.soft_labels("requested")
    expected = (labels - requested).abs().sum(-1).mean() / 2
    assert found["requested"]["total_variation"] == pytest.approx(expected.item(), rel=1e-4)
    assert "encoder_softmax</th>" in (tmp_path / "diagnosis.html").read_text()


def test_a_trained_run_can_judge(notes, tmp_path):
    torch.manual_seed(0)
    network = classifier("small", num_classes=4, in_channels=3, image_size=8).eval()
    save_classifier(network, "small", (3, 8, 8), tmp_path)
    probs = judge_images(notes.store, tmp_path, torch.device("cpu"))
    assert probs.shape == (24, 8, 4)
    expected = network(notes.store.read_set(5)).softmax(-1)
    assert torch.allclose(probs[5], expected, atol=1e-5)


def test_page_opens_without_complaints(notes, tmp_path, browser):
    path = write_diagnosis(notes, tmp_path, NAMES)
    for width in (360, 1280):
        browser.open(path, width=width)
        assert browser.complaints == []
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
