"""`semmix evaluate`: measure and calibrate the predictions of any model."""

from semmix.evaluation import EvaluateConfig, evaluate_file


class EvaluateCommand(EvaluateConfig):
    """Measure and calibrate logits or probabilities from any model."""

    run = evaluate_file
