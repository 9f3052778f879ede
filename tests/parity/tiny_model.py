#!/usr/bin/env python3
"""Writes a tiny Llama model folder. All weights are computed by integer arithmetic, so that the files are the same on
every machine.

    python tests/parity/tiny_model.py FOLDER

The tokenizer is a byte-level BPE that is trained on the rows in tests/parity/data. The script only needs the standard
library."""

import collections
import json
import re
import struct
import sys
from pathlib import Path

VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, LENGTH = 448, 32, 80, 2, 4, 2, 96
MASK = (1 << 64) - 1


def byte_symbols():
    """Returns the characters with which byte-level BPE represents the 256 bytes: printable bytes as themselves, the
    other bytes as U+0100, U+0101, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return {b: chr(b) if b in printable else chr(next(others)) for b in range(256)}


def learn_merges(text, count):
    symbols = byte_symbols()
    words = collections.Counter(re.findall(r" ?\w+| ?[^\s\w]+|\s+", text))
    parts = {word: [symbols[b] for b in word.encode()] for word in words}
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, pieces in parts.items():
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for pieces in parts.values():
            i = 0
            while i + 1 < len(pieces):
                if (pieces[i], pieces[i + 1]) == best:
                    pieces[i : i + 2] = ["".join(best)]
                i += 1
    return merges


def tokenizer(text):
    special = ["<s>", "</s>"]
    vocabulary = {token: i for i, token in enumerate([*special, *byte_symbols().values()])}
    merges = []
    for pair in learn_merges(text, VOCABULARY - len(vocabulary)):
        merges.append(list(pair))
        vocabulary.setdefault("".join(pair), len(vocabulary))
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(special)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    template = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def uniform(state):
    """Computes one step of the random number generator splitmix64. Returns the next state and a number in [-1, 1) that
    is a multiple of 2^-23."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, ((z ^ (z >> 31)) >> 40) / (1 << 23) - 1


def weights():
    """Yields (name, shape, bytes) of each tensor. The random numbers are multiplied by powers of two, so every weight
    is exact in fp32."""
    head = HIDDEN // HEADS
    tensors = [("model.embed_tokens.weight", (VOCABULARY, HIDDEN), 1.0)]
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        tensors += [
            (layer + "input_layernorm.weight", (HIDDEN,), None),
            (layer + "self_attn.q_proj.weight", (HEADS * head, HIDDEN), 0.5),
            (layer + "self_attn.k_proj.weight", (KV_HEADS * head, HIDDEN), 0.5),
            (layer + "self_attn.v_proj.weight", (KV_HEADS * head, HIDDEN), 0.5),
            (layer + "self_attn.o_proj.weight", (HIDDEN, HEADS * head), 0.5),
            (layer + "post_attention_layernorm.weight", (HIDDEN,), None),
            (layer + "mlp.gate_proj.weight", (INNER, HIDDEN), 0.25),
            (layer + "mlp.up_proj.weight", (INNER, HIDDEN), 0.25),
            (layer + "mlp.down_proj.weight", (HIDDEN, INNER), 0.25),
        ]
    tensors += [("model.norm.weight", (HIDDEN,), None), ("lm_head.weight", (VOCABULARY, HIDDEN), 0.25)]
    state = 2601
    for name, shape, scale in tensors:
        values = []
        for _ in range(shape[0] * (shape[1] if len(shape) > 1 else 1)):
            state, value = uniform(state)
            values.append(1 + value / 4 if scale is None else value * scale)
        yield name, shape, struct.pack(f"<{len(values)}f", *values)


def write(folder, length=LENGTH):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = Path(__file__).parent / "data"
    # Exclude the rows of LAMBADA, because the last rows end in a word that this model predicts.
    text = "\n".join(
        file.read_text(encoding="utf-8") for file in sorted(data.iterdir()) if not file.name.startswith("lambada")
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": length,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(text)), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "add_bos_token": True,
                "add_eos_token": False,
                "clean_up_tokenization_spaces": False,
                "model_max_length": length,
            }
        ),
        encoding="utf-8",
    )
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, shape, content in weights():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(words)) + words + body)


if __name__ == "__main__":
    write(sys.argv[1])
