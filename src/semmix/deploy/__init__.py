"""From a finished run to predictions that can be relied on: export, predict, serve, choose."""

from semmix.deploy.model import Caution, Model, Prediction, how_to_predict, load_model
from semmix.deploy.model_folder import export_model
from semmix.deploy.programs import can_write_onnx

__all__ = ["Caution", "Model", "Prediction", "can_write_onnx", "export_model", "how_to_predict", "load_model"]
