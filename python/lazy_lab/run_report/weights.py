"""Reads the learned offsets and distance biases of a model folder without its large tensors."""

import json
import re

import numpy

from ..errors import UserError
from .fields import Field

# Names of tau and the distance bias: in checkpoints of this project, and in models that were converted in transformers.
KINDS = {
    "softmax_offset": "tau",
    "lazy_tau": "tau",
    "learnable_bias_diagonals": "distance_bias",
    "lazy_distance_bias": "distance_bias",
}
NAME = re.compile(rf"(?:.*\.)?(\d+)\.(?:\w+\.)*({'|'.join(KINDS)})")
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_file(path):
    """Returns {(kind, layer): array} for the tensors of KINDS in a safetensors file: 8 bytes with the length of the
    header, the header as JSON, and the data."""
    found = {}
    with open(path, "rb") as file:
        try:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError(f"a header of {size} bytes in a file of {path.stat().st_size} bytes")
            for name, entry in json.loads(file.read(size)).items():
                if match := NAME.fullmatch(name):
                    begin, end = entry["data_offsets"]
                    file.seek(8 + size + begin)
                    values = numpy.frombuffer(file.read(end - begin), TYPES[entry["dtype"]])
                    if entry["dtype"] == "BF16":  # the upper half of an fp32 number
                        values = (values.astype("<u4") << 16).view("<f4")
                    found[KINDS[match[2]], int(match[1])] = values.reshape(entry["shape"]).astype(float)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: expected a safetensors file, found {error}") from None
    return found


def read_model(folder):
    """Returns {"tau": {layer: [head]}, "distance_bias": {layer: [head][distance]}, "initial": float}."""
    config = Field.read(folder / "config.json")
    found = {"tau": {}, "distance_bias": {}}
    for path in folder.glob("model*.safetensors"):
        for (kind, layer), values in read_file(path).items():
            found[kind][layer] = values.ravel() if kind == "tau" else values
    found = {kind: dict(sorted(layers.items())) for kind, layers in found.items()}
    return found | {"initial": config["offset_init"].number() if "offset_init" in config else -1.0}


def learned_parameters(folder):
    """Returns the learned parameters (see read_model) of a model folder. For a run folder, returns the parameters of
    its finished model or otherwise of its newest checkpoint. Returns {} if no model exists."""
    while True:
        folders = [folder / "model", folder, *sorted(folder.glob("checkpoints/step-*"), reverse=True)]
        model = next((model for model in folders if (model / "config.json").is_file()), None)
        if model is None:
            return {}
        try:
            return read_model(model)
        except (OSError, UserError):
            if model.exists():  # otherwise a running training has replaced this checkpoint by a newer one
                raise
