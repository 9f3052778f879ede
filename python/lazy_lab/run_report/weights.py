"""Reads the learned offsets and distance biases of a model folder without its large tensors."""

import json
import re

import numpy

from ..errors import UserError

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
            header = json.loads(file.read(size))
            for name, entry in header.items():
                if not (match := NAME.fullmatch(name)):
                    continue
                begin, end = entry["data_offsets"]
                file.seek(8 + size + begin)
                values = numpy.frombuffer(file.read(end - begin), TYPES[entry["dtype"]])
                if entry["dtype"] == "BF16":  # the upper half of an fp32 number
                    values = (values.astype("<u4") << 16).view("<f4")
                found[KINDS[match[2]], int(match[1])] = values.reshape(entry["shape"]).astype(float)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: expected a safetensors file, found {error}") from None
    return found


def read_folder(folder):
    """Returns {"tau": {layer: [head]}, "distance_bias": {layer: [head][distance]}, "initial": float}."""
    learned = {"tau": {}, "distance_bias": {}}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for path in sorted(folder.glob("model*.safetensors")):
        for (kind, layer), values in read_file(path).items():
            learned[kind][layer] = values.ravel() if kind == "tau" else values
    learned["initial"] = config.get("offset_init", -1.0)
    return {name: dict(sorted(value.items())) if isinstance(value, dict) else value for name, value in learned.items()}


def learned_parameters(folder):
    """Returns the learned parameters (see read_folder) of a model folder. For a run folder, returns the parameters of
    its finished model or otherwise of its newest checkpoint. Returns None if no model exists. A training in progress
    may remove a checkpoint while this function reads it."""
    for model in (folder / "model", folder):
        if (model / "config.json").is_file():
            return read_folder(model)
    for _ in range(10):
        steps = sorted((folder / "checkpoints").glob("step-*"))
        if not steps:
            break
        try:
            return read_folder(steps[-1])
        except (OSError, ValueError, UserError):
            if steps[-1].exists():
                raise
    return None
