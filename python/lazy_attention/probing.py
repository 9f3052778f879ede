"""lazy_attention.probe: reads statistics or whole tensors at named points ("places") of a model's forward pass.

It runs the command `lazy probe`, which `make` builds. docs/guides/sinks.md lists the places, such as
"layers.*.residual", and the interventions.
"""

from __future__ import annotations

import json
import os
import reprlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ._library import LIBRARY
from .arguments import expect_types

CHANGES = ("set_zero", "replace", "add", "swap_positions")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass
class PlaceStatistics:
    """Statistics of the tensor at one named point of the forward pass, without the batch dimension. The scalars are
    computed over all finite entries. norm and variance have one value per position. They are None if the tensor has no
    position dimension."""

    shape: tuple[int, ...]
    mean: float
    deviation: float
    lowest: float
    highest: float
    norm: Tensor | None = None  # (length): L2 norm of the entries of each position, over all heads
    variance: Tensor | None = None  # (length): unbiased variance of the entries of each position, over all heads


@dataclass
class Probed:
    """The statistics and tensors that `probe` returns."""

    ids: list[int]
    places: dict[str, PlaceStatistics]  # statistics by name of the place, in execution order
    tensors: dict[str, Tensor]  # tensors of the saved places: fp32, on the CPU, without the batch dimension
    attention: dict[
        str, Tensor
    ]  # keys: sink_ratio, density, released_mass, alive_fraction; values (layers, heads); {} without attention layers


def probe(
    model,
    text: str | Sequence[int] | Tensor,
    *,
    read: Iterable[str] = (),
    save: Iterable[str] = (),
    interventions: Iterable[tuple[str, str]] = (),
    tokenizer=None,
    bos: bool = False,
    length: int | None = None,
    device: str = "auto",
    dtype: str = "fp32",
) -> Probed:
    """Runs one text through a model and reads tensors at named points ("places") of the forward pass.

    Args:
        model: a model folder, or a transformers model, whose weights are first written to a temporary folder. The
            supported families and places are the same as for `lazy sinks` (docs/guides/sinks.md).
        text: a string, or token ids that are used unchanged.
        read: names of the places to measure, with the wildcards ``*``, ``?`` and ``[a-z]``: ``"layers.*.residual"``. If
            it is empty: every place except the attention scores and weights, whose memory is quadratic in the length.
        save: places whose whole tensors are returned in addition to their statistics.
        interventions: pairs of an operation ("set_zero", "replace", "add" or "swap_positions") and its argument as on
            the command line, applied in order: ``("add", "layers.1.residual[0]=epe[1] - epe[0]")``.
        tokenizer: tokenizer for a string and a transformers model. A model folder has its own tokenizer.
        bos: whether to insert a BOS token before a string.
        length: maximum number of tokens.
        device: "cpu", "cuda", or "auto" (a GPU if available).
        dtype: "fp32" or "bf16" (or the PyTorch type), the type of the computation.

    Raises ValueError or TypeError for invalid arguments, and RuntimeError if the measurement fails.
    """
    device, dtype = str(device), DTYPES.get(dtype, dtype)
    if device not in DEVICES or dtype not in DTYPES.values():
        raise ValueError(
            f"probe: expected a device of {', '.join(DEVICES)} and a dtype of {', '.join(DTYPES.values())}, "
            f"found {device} and {dtype}"
        )
    expect_types("probe", {"length": "Optional[int]", "bos": "bool"}, {"length": length, "bos": bos})
    if length is not None and length < 1:
        raise ValueError(f"probe: expected length of at least 1, found {length}")
    read, save = _strings("read", read), _strings("save", save)
    interventions = list(interventions)
    for pair in interventions:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(t, str) for t in pair):
            raise TypeError(
                "probe: expected interventions to be a list of pairs (operation, argument) of strings, such as "
                f'[("set_zero", "layers.0.mlp.output")], found {pair!r}'
            )
        if pair[0] not in CHANGES:
            raise ValueError(f"probe: expected an intervention of {', '.join(CHANGES)}, found {pair[0]!r}")
    with tempfile.TemporaryDirectory(prefix="lazy-probe-") as temporary:
        work = Path(temporary)
        folder = _model_folder(model, work)
        command = [str(program()), "probe", str(folder), *_text_options(text, model, tokenizer, bos, work)]
        for option, places in (("--read", read), ("--save", save)):
            for place in places:
                command += [option, place]
        tensors = work / "tensors.safetensors"
        if save:
            command += ["--output", str(tensors)]
        for change, what in interventions:
            command += ["--" + change.replace("_", "-"), what]
        if length is not None:
            command += ["--length", str(length)]
        command += ["--device", device, "--dtype", dtype, "--json", str(work / "probe.json")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise (ValueError if done.returncode == 2 else RuntimeError)(done.stderr.strip().removeprefix("lazy: "))
        found = json.loads((work / "probe.json").read_text())
        saved = _read_safetensors(tensors) if save else {}
    attention = {name: torch.tensor(values, dtype=torch.float64) for name, values in found.get("attention", {}).items()}
    places = {name: _statistics(values) for name, values in found["places"].items()}
    return Probed(found["ids"], places, {name: saved[name] for name in places if name in saved}, attention)


def program() -> Path:
    """Returns the path of the command `lazy`. If the environment variable LAZY_BINARY is set, only its path is tried.
    Otherwise the function searches the build folder of the loaded library, the directory of the Python interpreter
    (where the package lazy-attention-cli installs the command) and PATH."""
    named = os.environ.get("LAZY_BINARY")
    built, installed = LIBRARY.parent.with_name("lazy"), Path(sys.executable).with_name("lazy")
    places = [Path(named)] if named else [built, installed, Path(shutil.which("lazy") or "lazy")]
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    searched = ", ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"probe: expected the command lazy, found none of: {searched}. "
        "Run `make` in the source tree, or set LAZY_BINARY"
    )


def _model_folder(model, work: Path) -> Path:
    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    if not hasattr(model, "save_pretrained"):
        raise TypeError(f"probe: expected a model folder or a transformers model, found {type(model).__name__}")
    if model.get_output_embeddings() is None:
        raise TypeError(
            f"probe: expected a causal language model, found {type(model).__name__}, which has no language-model head"
        )
    model.save_pretrained(work / "model")
    return work / "model"


def _text_options(text, model, tokenizer, bos: bool, work: Path) -> list[str]:
    of_folder = isinstance(model, (str, os.PathLike)) and tokenizer is None
    if isinstance(text, str) and of_folder:
        (work / "text.txt").write_text(text, encoding="utf-8")
        return ["--text", str(work / "text.txt"), *(["--bos"] if bos else [])]
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError(
                "probe: a transformers model has no tokenizer: pass tokenizer=, or token ids instead of a string"
            )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if bos and tokenizer.bos_token_id is None:
            raise ValueError("probe: bos=True: the tokenizer has no BOS token")
        ids = [tokenizer.bos_token_id, *ids] if bos else ids
    else:
        if bos:
            raise ValueError("probe: bos=True requires a string; token ids are used unchanged")
        try:
            ids = torch.as_tensor(text)
        except (TypeError, ValueError, RuntimeError):  # not a list of numbers
            raise TypeError(f"probe: expected a string or token ids, found {reprlib.repr(text)}") from None
        if ids.dim() != 1:
            raise ValueError(f"probe: expected the ids of one text, found shape {tuple(ids.shape)}")
        if len(ids) > 0 and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
            raise TypeError(f"probe: expected integer token ids, found {ids.dtype}")
        ids = ids.tolist()
    (work / "ids.txt").write_text(" ".join(str(int(i)) for i in ids))
    return ["--ids", str(work / "ids.txt")]


def _strings(name: str, places: str | Iterable[str]) -> list[str]:
    """Converts the argument to a list of names of places. A single string is treated as one name."""
    found = [places] if isinstance(places, str) else list(places) if isinstance(places, Iterable) else [places]
    if not all(isinstance(place, str) for place in found):
        raise TypeError(f"probe: expected {name} to be names of probe points, found {reprlib.repr(places)}")
    return found


def _statistics(values: dict) -> PlaceStatistics:
    by_position = {key: _numbers(values.pop(key)) for key in ("norm", "variance") if key in values}
    return PlaceStatistics(tuple(values.pop("shape")), **values, **by_position)


def _numbers(values: list) -> Tensor:
    """Converts a JSON list to a tensor. JSON null represents NaN, such as the variance of a single entry."""
    return torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Reads the fp32 tensors of a safetensors file that `lazy` has written."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    out = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        part = torch.frombuffer(data, dtype=torch.float32, offset=begin + first, count=(last - first) // 4)
        out[name] = part.reshape(entry["shape"]).clone()
    return out
