"""`semmix predict`: answer images with a model."""

from semmix.deploy.predict import Predict, predict_command


class PredictCommand(Predict):
    """Answer images with a model."""

    run = predict_command
