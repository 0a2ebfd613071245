"""Read back how much of each class a mixed image shows (paper, section 3.3).

An encoder turns images into features; class prototypes are the mean features of the training split.
lambda_E is where a feature falls on the line from prototype j (0) to prototype i (1), whatever it
shows besides. lambda = sigmoid(s (lambda_E - 1/2)), with one scale s for all classes, is the label.
"""

from semmix.annotation.algebra import class_prototypes, lambda_e, lambda_from
from semmix.annotation.annotation import LABEL_SCHEMES, Annotation
from semmix.annotation.diagnosis import diagnose
from semmix.annotation.scale import SCALES, choose_scale, scale_curve
from semmix.annotation.stage import annotate, check_fits
from semmix.networks.encoders.features import embed_all, embed_split

__all__ = [
    "LABEL_SCHEMES",
    "SCALES",
    "Annotation",
    "annotate",
    "check_fits",
    "choose_scale",
    "class_prototypes",
    "diagnose",
    "embed_all",
    "embed_split",
    "lambda_e",
    "lambda_from",
    "scale_curve",
]
