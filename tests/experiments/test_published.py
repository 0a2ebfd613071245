"""The paper's numbers in the package are those of its tables: no digit may change."""

import pytest

from semmix import SemmixError
from semmix.core.files import digest
from semmix.experiments.catalog import TABLES, plan_table
from semmix.experiments.paper import list_published, published, published_rows

# Lines and digest of each file, as transcribed from the paper.
GOLDEN = {
    "ablation_cifar100_resnet50": (10, "0b2d0cf09357ce28"),
    "densenet121": (7, "4cb778ff4f181fbc"),
    "eq_data": (6, "a55ad33b9d43abe9"),
    "imagenet_resnet50": (7, "c4a9c6075231d745"),
    "imagenet_swinv2": (7, "08a04ffbfb2fdac4"),
    "long_tailed": (24, "f6955c6c601bbd2e"),
    "main": (90, "95a98877b8eb0ec5"),
    "num_aug": (6, "868249e170caa10d"),
    "ood_auroc": (36, "376de6ac22c5619b"),
    "test_time_cifar100_resnet50": (3, "b2c3bb3877fb1e26"),
    "training_time": (7, "6b9c9da0bf58c85e"),
    "wide_resnet": (14, "0746e6efb07fda1a"),
}


def test_every_number_is_as_printed():
    seen = {name: (len(published_rows(name)), digest(list(published_rows(name)))[:16]) for name in list_published()}
    assert seen == GOLDEN


@pytest.mark.parametrize(
    ("table", "keys", "metric", "value"),
    [
        ("main", {"method": "CSM", "dataset": "cifar100", "network": "resnet50"}, "ece", 0.0129),
        ("main", {"method": "CE", "dataset": "cifar10", "network": "resnet101"}, "aece", 0.0355),
        ("ablation_cifar100_resnet50", {"variant": "CSM (L2, ours)"}, "temperature", 1.0),
        ("training_time", {"method": "CE"}, "hours", 2.63),
        (
            "ood_auroc",
            {"method": "CSM", "in_distribution": "cifar100", "out_of_distribution": "cifar10"},
            "auroc",
            0.7902,
        ),
    ],
)
def test_shares_are_fractions_and_others_as_they_are(table, keys, metric, value):
    assert published(table, **keys)[metric] == pytest.approx(value, abs=1e-12)


def test_an_empty_field_is_no_number():
    assert "ece_ts" not in published("ablation_cifar100_resnet50", variant="CSM (L2) w/ CLIP labels")


def test_misspelt_names_are_answered():
    with pytest.raises(SemmixError, match="did you mean 'eq_data'"):
        published("eqdata", method="CSM")
    with pytest.raises(SemmixError, match="0 published lines"):
        published("eq_data", method="Csm")


def test_every_published_line_stands_beside_a_cell():
    cells = [cell for name in TABLES for cell in plan_table(name)]
    lines = sum(len(published_rows(name)) for name in list_published())
    leaking = [cell for cell in cells if "leaking" in cell.row]
    assert sum(bool(cell.paper) for cell in cells) - len(leaking) == lines
