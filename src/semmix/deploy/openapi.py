"""The server's OpenAPI document: what it takes and gives, limits included."""

import base64
import io
from typing import Any, get_type_hints

from PIL import Image

from semmix import __version__
from semmix.deploy.bodies import FIELD, FORM, JSON
from semmix.deploy.counters import CONTENT_TYPE
from semmix.deploy.messages import Limits
from semmix.deploy.model import Prediction

REFUSALS = {
    400: "The body is not what it should be.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    415: "The type of the body is unknown, or it is compressed.",
    503: "Too much at once; come again.",
}
TYPES: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list[str]: {"type": "array", "items": {"type": "string"}},
}
BASE64 = {"contentEncoding": "base64", "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"}


def describe_api(class_names: list[str], limits: Limits) -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "semmix",
            "version": __version__,
            "description": f"Sorts images into {len(class_names)} classes: class, calibrated "
            "confidence, prediction set, warning of unusual images, whether to ask a person.",
        },
        "paths": {
            "/": {"get": _get("A page to try images by hand.", "text/html", {"type": "string"})},
            "/health": {"get": _get("Whether the model is ready.", JSON, _health(class_names))},
            "/metrics": {"get": _get("Counters for Prometheus.", CONTENT_TYPE, TYPES[str])},
            "/openapi.json": {"get": _get("This document.", JSON, {"type": "object"})},
            "/predict": {"post": _predict(class_names, limits)},
        },
    }


def _get(summary: str, content_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _response(summary, content_type, schema)}}


def _response(description: str, content_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {content_type: {"schema": schema}}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _health(class_names: list[str]) -> dict[str, Any]:
    return _object(
        {
            "status": {"const": "ok"},
            "semmix": {"type": "string"},
            "class_names": {"const": class_names},
            "image_shape": {"type": "array", "items": {"type": "integer"}},
            "coverage": {"type": "number"},
            "abstain": {"type": "number"},
        }
    )


def _predict(class_names: list[str], limits: Limits) -> dict[str, Any]:
    answers = _object({"predictions": {"type": "array", "items": _prediction(class_names)}})
    refusal = _object({"error": {"type": "string"}})
    refused = {str(k): _response(text, JSON, refusal) for k, text in REFUSALS.items()}
    return {
        "summary": "Predict the classes of images.",
        "description": f"Up to {limits.max_images} PNG, JPEG or WebP images of at most "
        f"{limits.max_megapixels:g} megapixels in at most {limits.max_body_mib:g} MiB. Answers "
        "stand in the order of the images; an image that cannot be read has an error instead.",
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": _object({FIELD: _files(limits, BASE64)}), "example": {FIELD: [_example_image()]}},
                FORM: {"schema": _object({FIELD: _files(limits, {"format": "binary"})})},
            },
        },
        "responses": {
            "200": _response("At least one image was predicted.", JSON, answers),
            "422": _response("No image could be read.", JSON, answers),
            **refused,
        },
    }


def _example_image() -> str:
    """Return a small grey PNG file in base64."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8), 128).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _files(limits: Limits, how: dict[str, str]) -> dict[str, Any]:
    item = {"type": "string", "description": "The bytes of an image file.", **how}
    return {"type": "array", "items": item, "minItems": 1, "maxItems": limits.max_images}


def _prediction(class_names: list[str]) -> dict[str, Any]:
    """Return the schema of a prediction, or of an error in its place."""
    answer = {name: TYPES[of] for name, of in get_type_hints(Prediction).items()}
    answer["class_name"] = {"enum": class_names}
    return {
        "anyOf": [
            _object({**answer, "error": {"type": "null"}}),
            _object({**{name: {"type": "null"} for name in answer}, "error": {"type": "string"}}),
        ]
    }
