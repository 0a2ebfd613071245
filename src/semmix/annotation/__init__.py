"""Read back how much of each class a mixed image shows (paper, section 3.3).

An encoder turns images into features; class prototypes are the mean features of the training split. lambda_E is where a
feature falls on the line from prototype j (0) to prototype i (1), whatever it shows besides. The label is
lambda = sigmoid(s (lambda_E - 1/2)), with one scale s for all classes.
"""

from semmix.annotation.algebra import lambda_e, lambda_from
from semmix.annotation.annotation import LABEL_SCHEMES, Annotation, annotate, check_fits
from semmix.annotation.diagnosis import diagnose

__all__ = ["LABEL_SCHEMES", "Annotation", "annotate", "check_fits", "diagnose", "lambda_e", "lambda_from"]
