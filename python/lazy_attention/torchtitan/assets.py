"""The folder `model` of a training: config.json and the tokenizer of the corpus. Together with the weights that
`lazy_attention.torchtitan.export` writes they are a model folder of `lazy` and transformers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from torch import distributed
from torchtitan.config import JobConfig

from .arguments import LazyModelArgs, fail


def write_assets(args: LazyModelArgs, job_config: JobConfig) -> None:
    """Writes DUMP_FOLDER/model (rank 0). Raises ValueError if the corpus has ids that the embedding lacks."""
    corpus = Path(job_config.training.dataset_path)
    tokenizer = json.loads((corpus / "corpus.json").read_text(encoding="utf-8"))["tokenizer"]
    if tokenizer["vocab_size"] > args.vocab_size:
        fail(f"{corpus}: expected at most {args.vocab_size} tokens (vocab_size), found {tokenizer['vocab_size']}")
    if distributed.is_initialized() and distributed.get_rank() != 0:
        return
    folder = Path(job_config.job.dump_folder) / "model"
    shutil.copytree(corpus / tokenizer["path"], folder, dirs_exist_ok=True)
    config = args.to_json() | {
        key: None if tokenizer[key] < 0 else tokenizer[key] for key in ("bos_id", "eos_id") if key in tokenizer
    }
    config["bos_token_id"], config["eos_token_id"] = config.pop("bos_id", None), config.pop("eos_id", None)
    config["tokenizer_fingerprint"] = tokenizer["fingerprint"]
    written = folder / "config.json.tmp"
    written.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    os.replace(written, folder / "config.json")
