#!/usr/bin/env python3
"""Writes a random Llama folder of a given shape, with the tokenizer of another folder.

    python tests/parity/random_model.py FOLDER --tokenizer DIR [--hidden 512 --layers 12 --heads 8 --intermediate 1408]

The script needs torch and transformers, but no network. The weights have a larger standard deviation than in an
untrained model, so that the predicted distributions are far from uniform. Then differences between two programs are
visible, and the most likely token is unambiguous.
"""

import argparse
import shutil
from pathlib import Path


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument(
        "--tokenizer",
        required=True,
        help="folder with tokenizer.json and tokenizer_config.json; the tokenizer has 32000 ids or --vocabulary",
    )
    p.add_argument("--vocabulary", type=int, default=32000)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--intermediate", type=int, default=352)
    p.add_argument("--length", type=int, default=1024, help="max_position_embeddings (default %(default)s)")
    p.add_argument("--untied", action="store_true", help="do not share the embedding's weights with the head")
    p.add_argument("--scale", type=float, default=0.06, help="standard deviation of the weights (default %(default)s)")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(a.seed)
    config = LlamaConfig(
        vocab_size=a.vocabulary,
        hidden_size=a.hidden,
        intermediate_size=a.intermediate,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        num_key_value_heads=a.heads,
        max_position_embeddings=a.length,
        tie_word_embeddings=not a.untied,
        initializer_range=a.scale,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(a.folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model"):
        if (Path(a.tokenizer) / name).exists():
            shutil.copy(Path(a.tokenizer) / name, a.folder)


if __name__ == "__main__":
    main()
