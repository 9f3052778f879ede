"""lazy_attention.probe: the tensors at named places of a model's pass, as streamed statistics or whole.

It runs the command `lazy probe`, which `make` builds. Places and interventions: docs/sinks.md.
"""

from __future__ import annotations

import json
import os
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

CHANGES = ("set_zero", "replace", "add", "swap_positions")


@dataclass
class PlaceStatistics:
    """One place's tensor, without its batch: numbers over all finite entries, and by position if it has positions."""

    shape: tuple[int, ...]
    mean: float
    deviation: float
    lowest: float
    highest: float
    norm: Tensor | None = None  # (length): L2 norm of each position's entries, all heads together
    variance: Tensor | None = None  # (length): their unbiased variance


@dataclass
class Probed:
    """Result of `probe`."""

    ids: list[int]
    places: dict[str, PlaceStatistics]  # in the order of the pass
    tensors: dict[str, Tensor]  # the saved places: fp32, on the CPU, without the batch
    attention: dict[
        str, Tensor
    ]  # sink_ratio, density, released_mass, alive_fraction: (layers, heads); {} of other mixers


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
    """Runs one text through a model and reads tensors at named places.

    Args:
        model: a model folder, or a transformers model: which is first written to a temporary folder of the size of
            its weights. Families and places are those of `lazy sinks` (docs/sinks.md).
        text: a string, or token ids that are taken as they are.
        read: places to measure, patterns of ``*``, ``?`` and ``[a-z]``: ``"layers.*.residual"``. None: every place but
            attention's scores and weights, whose memory is quadratic in the length.
        save: places whose whole tensors are returned; they are measured as well.
        interventions: pairs of "set_zero", "replace", "add" or "swap_positions" and its argument, as on the command
            line, applied in order: ``("add", "layers.1.residual[0]=epe[1] - epe[0]")``.
        tokenizer: of a transformers model, for a string; a folder has its own.
        bos: BOS before a string.
        length: tokens at most.
        device: "cpu", "cuda", or "auto": a GPU where there is one.
        dtype: "fp32" or "bf16", of the computation.
    """
    with tempfile.TemporaryDirectory(prefix="lazy-probe-") as temporary:
        work = Path(temporary)
        folder = _model_folder(model, work)
        command = [str(program()), "probe", str(folder), *_text_options(text, model, tokenizer, bos, work)]
        for option, places in (("--read", read), ("--save", save)):
            for place in [places] if isinstance(places, str) else places:
                command += [option, place]
        tensors = work / "tensors.safetensors"
        if save:
            command += ["--output", str(tensors)]
        for change, what in interventions:
            if change not in CHANGES:
                raise ValueError(f"probe: expected an intervention of {', '.join(CHANGES)}, found {change!r}")
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
    """The command `lazy`: named by LAZY_BINARY, of the build folder with this library, beside the interpreter (of the
    package lazy-attention-cli in the same environment), or on PATH."""
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
            raise ValueError("probe: bos=True goes with a string; ids are taken as they are")
        ids = torch.as_tensor(text)
        if ids.dim() != 1:
            raise ValueError(f"probe: expected the ids of one text, found shape {tuple(ids.shape)}")
        ids = ids.tolist()
    (work / "ids.txt").write_text(" ".join(str(int(i)) for i in ids))
    return ["--ids", str(work / "ids.txt")]


def _statistics(values: dict) -> PlaceStatistics:
    by_position = {key: _numbers(values.pop(key)) for key in ("norm", "variance") if key in values}
    return PlaceStatistics(tuple(values.pop("shape")), **values, **by_position)


def _numbers(values: list) -> Tensor:
    """JSON has null for what is no number, such as the variance of a single entry."""
    return torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """The fp32 tensors of a file that `lazy` wrote."""
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
