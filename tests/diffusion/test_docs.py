"""The documented example of a user's own generator runs as printed."""

import re
from pathlib import Path

from semmix.mixing.store import MixSets

DOCS = Path(__file__).parents[2] / "docs" / "generators.md"


def test_own_generator_example_runs(tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(example, names)
    store = MixSets.open(tmp_path / "mixsets")
    assert store.generator["trained_on"] == names["data"].train.digest
    # an exact denoiser draws images it was given: pure ends are training images of their class
    train = names["data"].train
    for n in (0, 17, 44):
        i, j = store.pair(n)
        for member, label in ((0, j), (-1, i)):
            image = store.read_set(n)[member].float()
            distance = (train.images.float() - image).abs().flatten(1).amax(1)
            assert distance.min() <= 2
            assert train.labels[distance.argmin()] == label


def test_example_is_as_short_as_promised():
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 30
