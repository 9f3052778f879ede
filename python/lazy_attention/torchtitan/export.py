"""Writes a torchtitan checkpoint (DCP) as a model folder that `lazy` and transformers read.

python -m lazy_attention.torchtitan.export outputs/checkpoint/step-1000 model
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from .arguments import LazyModelArgs, fail
from .state_dict import LazyStateDictAdapter

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def export(checkpoint: Path, output: Path, assets: Path | None = None, dtype: torch.dtype = torch.float32) -> None:
    """Writes `output` from the checkpoint and from the folder `assets` with config.json and the tokenizer. Default: the
    folder `model` that the training wrote next to its folder of checkpoints. Needs no GPU and no process group."""
    assets = assets or checkpoint.parent.parent / "model"
    args = LazyModelArgs()
    args.read_json(assets / "config.json")
    adapter = LazyStateDictAdapter(args, None)
    if not (checkpoint / ".metadata").is_file():
        fail(f"{checkpoint}: expected a checkpoint folder step-N of torchtitan")
    stored = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in stored.items()
        if name in adapter.names
    }
    if "output.weight" not in tensors:
        fail(f"{checkpoint}: expected a checkpoint of the model of {assets}")
    dcp.load(tensors, checkpoint_id=checkpoint, no_dist=True)
    # Per-head parameters decide which keys have weight, so they stay fp32.
    kept = {name: t if name.split(".")[-2] == "per_head" else t.to(dtype) for name, t in tensors.items()}
    if output.resolve() != assets.resolve():
        shutil.copytree(assets, output)
    save_file(adapter.to_hf(kept), output / "model.safetensors", metadata={"format": "pt"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lazy_attention.torchtitan.export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="checkpoint folder, such as outputs/checkpoint/step-1000")
    parser.add_argument("output", type=Path, help="model folder to write; it must not exist")
    parser.add_argument("--assets", type=Path, help="folder with config.json and the tokenizer (default: DUMP/model)")
    parser.add_argument("--dtype", choices=TYPES, default="float32", help="type of the weights (default: %(default)s)")
    given = parser.parse_args()
    if given.output.exists():
        parser.error(f"{given.output} exists")
    try:
        export(given.checkpoint, given.output, given.assets, TYPES[given.dtype])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
