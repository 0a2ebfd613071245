"""`semmix predict`: answer images with a model."""

from semmix.deploy.predict import Predict, predict_command


class PredictCommand(Predict):
    """Answer images with a model."""

    def run(self) -> int:
        """Answer every image; return 1 only if none could be read."""
        return predict_command(self)
