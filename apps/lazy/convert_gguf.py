"""Writes a GGUF file as a Hugging Face folder, with the packages gguf and numpy.

The first line of standard input is {"file": a GGUF file, "folder": an empty folder, "dtype": "fp32" or "bf16"}. The
script answers {"ready": true, "architecture": ..., "tensors": number of tensors}. For each further line {"next": n}, it
writes one tensor and answers {"name": ..., "bytes": ...}. After the last tensor, the folder is complete.
"""

import json
import math
import os
import struct
import sys

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types

# Tensor names in GGUF files and their names in transformers. {} is the layer.
TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{}.attn_norm.weight": "model.layers.{}.input_layernorm.weight",
    "blk.{}.ffn_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "blk.{}.attn_q.weight": "model.layers.{}.self_attn.q_proj.weight",
    "blk.{}.attn_k.weight": "model.layers.{}.self_attn.k_proj.weight",
    "blk.{}.attn_v.weight": "model.layers.{}.self_attn.v_proj.weight",
    "blk.{}.attn_output.weight": "model.layers.{}.self_attn.o_proj.weight",
    "blk.{}.attn_q.bias": "model.layers.{}.self_attn.q_proj.bias",
    "blk.{}.attn_k.bias": "model.layers.{}.self_attn.k_proj.bias",
    "blk.{}.attn_v.bias": "model.layers.{}.self_attn.v_proj.bias",
    "blk.{}.attn_q_norm.weight": "model.layers.{}.self_attn.q_norm.weight",
    "blk.{}.attn_k_norm.weight": "model.layers.{}.self_attn.k_norm.weight",
    "blk.{}.ffn_gate.weight": "model.layers.{}.mlp.gate_proj.weight",
    "blk.{}.ffn_up.weight": "model.layers.{}.mlp.up_proj.weight",
    "blk.{}.ffn_down.weight": "model.layers.{}.mlp.down_proj.weight",
}
ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
# Tensor names in GGUF files of Gemma: names that differ from TENSORS, and names of additional tensors.
GEMMA_TENSORS = {
    "blk.{}.post_attention_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "blk.{}.ffn_norm.weight": "model.layers.{}.pre_feedforward_layernorm.weight",
    "blk.{}.post_ffw_norm.weight": "model.layers.{}.post_feedforward_layernorm.weight",
}
# Maps an architecture to (n, layers), two properties of Gemma that GGUF files do not store. Every n-th layer has full
# attention, and all other layers have a sliding window. `layers` is the number of layers of the 27B model. A model with
# this number of layers scales its scores with hidden_size / num_attention_heads instead of the head size.
GEMMA_LAYERS = {"gemma2": (2, 46), "gemma3": (6, 62)}
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Maps tokenizer.ggml.pre to (pre-tokenizer steps before ByteLevel, whether ByteLevel splits text as in GPT-2).
PRE_TOKENIZERS = {
    "gpt-2": ([], True),
    "smollm": ([{"type": "Digits", "individual_digits": True}], True),
    "llama-bpe": ([ENDINGS + r"|\p{N}{1,3}" + TAIL], False),
    "qwen2": ([ENDINGS + r"|\p{N}" + TAIL], False),
}


class Refused(Exception):
    pass


def answer(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


class Metadata:
    def __init__(self, reader):
        self.fields = reader.fields

    def get(self, key, default=None):
        field = self.fields.get(key)
        return default if field is None else field.contents()

    def need(self, key):
        value = self.get(key)
        if value is None:
            raise Refused(f"{key}: is missing")
        return value


def config_of(metadata, names):
    architecture = metadata.need("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise Refused(f"general.architecture: expected one of {known}, found {architecture}")
    model_type, class_name = ARCHITECTURES[architecture]
    of = lambda key, default=None: metadata.get(f"{architecture}.{key}", default)
    need = lambda key: metadata.need(f"{architecture}.{key}")
    gemma = architecture in GEMMA_LAYERS
    for key in ("expert_count", *(() if gemma else ("attention.sliding_window", "rope.scaling.type"))):
        if of(key) not in (None, 0, "none"):
            raise Refused(f"{architecture}.{key}: {of(key)} is not supported")
    heads, width = need("attention.head_count"), need("embedding_length")
    if not isinstance(heads, int) or not isinstance(of("attention.head_count_kv", heads), int):
        raise Refused(f"{architecture}.attention.head_count: values that differ between layers are not supported")
    head_size = of("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if of(key, head_size) != head_size:
            raise Refused(f"{architecture}.{key}: expected {head_size}, the size of a head, found {of(key)}")
    tokens = metadata.need("tokenizer.ggml.tokens")
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": len(tokens),
        "hidden_size": width,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": head_size,
        "hidden_act": "silu",
        "max_position_embeddings": need("context_length"),
        # The file stores a float32. Rounding to six digits restores the original decimal value.
        "rms_norm_eps": float(f"{need('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": of("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in names,
    }
    if gemma:
        config.update(gemma_fields(of, need, architecture, config))
        del config["hidden_act"]
    for key, field in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        config[key] = metadata.get(f"tokenizer.ggml.{field}_token_id")
    return config


def gemma_fields(of, need, architecture, config):
    """Returns the fields that only Gemma's config.json has."""
    period, largest = GEMMA_LAYERS[architecture]
    if of("attention.sliding_window_pattern", period) != period:
        raise Refused(f"{architecture}.attention.sliding_window_pattern: expected {period}")
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    fields = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": need("attention.sliding_window"),
        "layer_types": ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)],
        "query_pre_attn_scalar": config["hidden_size"] // heads if layers == largest else config["head_dim"],
        "final_logit_softcapping": of("final_logit_softcapping"),
        "attn_logit_softcapping": of("attn_logit_softcapping"),
    }
    if architecture == "gemma3":
        fields["rope_theta"] = of("rope.freq_base", 1000000.0)
        fields["rope_local_base_freq"] = of("rope.freq_base_swa", 10000.0)
    scaling = of("rope.scaling.type")
    if scaling not in (None, "none", "linear"):
        raise Refused(f"{architecture}.rope.scaling.type: {scaling} is not supported")
    if scaling == "linear":
        fields["rope_scaling"] = {"rope_type": "linear", "factor": need("rope.scaling.factor")}
    return fields


def merges_of(pieces, scores, types):
    """Returns the BPE merges of a SentencePiece vocabulary: all ways to form a piece from two other pieces, ordered by
    descending score.

    SentencePiece extracts user-defined pieces from a text before all other pieces, independently of their scores.
    """
    ids = {piece: i for i, piece in enumerate(pieces) if types[i] in (NORMAL, USER_DEFINED)}
    merges = []
    for piece, i in ids.items():
        for at in range(1, len(piece)):
            if piece[:at] in ids and piece[at:] in ids:
                merges.append((types[i] != USER_DEFINED, -scores[i], [piece[:at], piece[at:]]))
    return [pair for _, _, pair in sorted(merges, key=lambda m: m[:2])]


def tokenizer_of(metadata):
    kind = metadata.need("tokenizer.ggml.model")
    tokens = metadata.need("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    # llama.cpp stores user-defined tokens that are runs of spaces with plain spaces. The normalizer of tokenizer.json
    # replaces each space of a text by U+2581, so these tokens become ordinary entries of the vocabulary, spelled with
    # U+2581, instead of added tokens.
    spaces = {
        i: token.replace(" ", SPACE)
        for i, token in enumerate(tokens)
        if kind == "llama" and types[i] == USER_DEFINED and token and not token.strip(" ")
    }
    if not set(spaces.values()) & set(tokens):
        tokens = [spaces.get(i, token) for i, token in enumerate(tokens)]
    else:
        spaces = {}
    vocab = {}
    for i, token in enumerate(tokens):
        if vocab.setdefault(token, i) != i:
            raise Refused(f'tokenizer.ggml.tokens: "{token}" has the ids {vocab[token]} and {i}')
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
    }
    out = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    if kind == "gpt2":
        pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
        if pre not in PRE_TOKENIZERS:
            raise Refused(f"tokenizer.ggml.pre: expected one of {', '.join(PRE_TOKENIZERS)}, found {pre}")
        splits, use_regex = PRE_TOKENIZERS[pre]
        steps = [
            {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
            if isinstance(step, str)
            else step
            for step in splits
        ]
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex})
        out["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        out["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        if pre == "qwen2":
            out["normalizer"] = {"type": "NFC"}
        model["ignore_merges"] = pre == "llama-bpe"
        model["merges"] = [merge.split(" ") for merge in metadata.need("tokenizer.ggml.merges")]
    elif kind == "llama":
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        prepend = metadata.get("tokenizer.ggml.add_space_prefix", True)
        out["normalizer"] = {
            "type": "Sequence",
            "normalizers": ([{"type": "Prepend", "prepend": SPACE}] if prepend else []) + [replace],
        }
        decoders = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if prepend:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        out["decoder"] = {"type": "Sequence", "decoders": decoders}
        unknown = [token for token, type_ in zip(tokens, types) if type_ == UNKNOWN]
        if (i := metadata.get("tokenizer.ggml.unknown_token_id")) is not None and 0 <= i < len(tokens):
            unknown.append(tokens[i])
        model.update(
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
            merges=merges_of(tokens, metadata.need("tokenizer.ggml.scores"), types),
        )
    else:
        raise Refused(f"tokenizer.ggml.model: expected gpt2 or llama, found {kind}")
    for i, (token, type_) in enumerate(zip(tokens, types)):
        if type_ in (UNKNOWN, CONTROL, USER_DEFINED) and i not in spaces:
            out["added_tokens"].append(
                {
                    "id": i,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": type_ != USER_DEFINED,
                }
            )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for key, field in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        i = metadata.get(f"tokenizer.ggml.{field}_token_id")
        if i is not None and 0 <= i < len(tokens):
            config[key] = tokens[i]
    if metadata.get("tokenizer.ggml.add_bos_token", kind == "llama") and "bos_token" in config:
        bos = config["bos_token"]
        first = {"SpecialToken": {"id": bos, "type_id": 0}}
        text = lambda name: {"Sequence": {"id": name, "type_id": 0}}
        out["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [first, text("A")],
            "pair": [first, text("A"), text("B")],
            "special_tokens": {bos: {"id": bos, "ids": [vocab[bos]], "tokens": [bos]}},
        }
    return out, config


def layer_name(name):
    """Splits a tensor name into the name with {} in place of the layer number, and the layer number."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit():
        return ".".join([parts[0], "{}", *parts[2:]]), parts[1]
    return name, ""


def checked_reader(gguf, numpy):
    """Returns a subclass of gguf.GGUFReader that rejects incomplete files with a clear message. The package itself
    would read a shorter array and report an error about its shape."""

    class CheckedReader(gguf.GGUFReader):
        def _get(self, offset, dtype, count=1, *arguments, **named):
            end, size = int(offset) + numpy.dtype(dtype).itemsize * int(count), len(self.data)
            if end > size:
                raise Refused(f"the file is truncated or damaged: it has {size} bytes and ends within its header")
            return super()._get(offset, dtype, count, *arguments, **named)

        def _build_tensors(self, start, fields):
            expected, size = int(start), len(self.data)
            for field in fields:
                *_, dims, kind, offset = field.parts
                block, size_of_block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind[0])]
                elements = math.prod(int(n) for n in dims)
                expected = max(expected, int(start) + int(offset[0]) + elements * size_of_block // block)
            if expected > size:
                raise Refused(
                    f"the file is truncated or damaged: its tensors need {expected} bytes, found {size} "
                    f"({100 * size // expected} %)"
                )
            return super()._build_tensors(start, fields)

    return CheckedReader


def main():
    try:
        import gguf
        import numpy
    except ImportError as error:
        answer(error=f"Python's packages `gguf` and `numpy` are needed ({error}); pip install gguf numpy", missing=True)
        return
    lines = sys.stdin.buffer
    first = json.loads(lines.readline())
    try:
        reader = checked_reader(gguf, numpy)(first["file"])
    except Refused as error:
        answer(error=str(error))
        return
    except Exception as error:  # gguf raises exceptions of several types for damaged files
        answer(error=f"not a GGUF file, or a damaged GGUF file: {error or type(error).__name__}")
        return
    metadata = Metadata(reader)
    try:
        config = config_of(metadata, {tensor.name for tensor in reader.tensors})
        tokenizer, tokenizer_config = tokenizer_of(metadata)
        gemma = config["model_type"].startswith("gemma")
        known = TENSORS | GEMMA_TENSORS if gemma else TENSORS
        tensors = []
        for tensor in reader.tensors:
            pattern, layer = layer_name(tensor.name)
            if pattern not in known:
                raise Refused(f"tensor {tensor.name} is not supported")
            tensors.append((known[pattern].format(layer), tensor))
    except Refused as error:
        answer(error=str(error))
        return
    tensors.sort(key=lambda entry: entry[0])

    folder = first["folder"]

    def write(name, content):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(
                content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2) + "\n"
            )

    write("config.json", config)
    write("tokenizer.json", tokenizer)
    write("tokenizer_config.json", tokenizer_config)
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = sorted({end for end in ends if end is not None})
    write("generation_config.json", {"bos_token_id": config["bos_token_id"], "eos_token_id": ends})
    if template := metadata.get("tokenizer.chat_template"):
        write("chat_template.jinja", template)

    size = 4 if first["dtype"] == "fp32" else 2
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        count = int(numpy.prod(shape))
        header[name] = {
            "dtype": "F32" if size == 4 else "BF16",
            "shape": shape,
            "data_offsets": [at, at + size * count],
        }
        at += size * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        answer(ready=True, architecture=config["model_type"], tensors=len(tensors))
        for line, (name, tensor) in zip(lines, tensors):
            try:
                values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
                values = values.reshape(header[name]["shape"])
                if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                    # llama.cpp applies RoPE to adjacent pairs of rows of a head, transformers to pairs that consist of
                    # a row of the first half and a row of the second half. Therefore the rows are reordered.
                    heads = config["num_attention_heads" if name.endswith("q_proj.weight") else "num_key_value_heads"]
                    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, values.shape[1])
                    values = pairs.swapaxes(1, 2).reshape(values.shape)
                if gemma and name.endswith("norm.weight"):
                    values = values - 1  # Gemma: llama.cpp stores weight + 1, transformers stores weight
                if not numpy.isfinite(values).all():
                    raise ValueError("has values that are not finite")
                data = numpy.ascontiguousarray(values)
                if size == 2:  # convert to bf16: round to nearest, ties to even
                    bits = data.view(numpy.uint32)
                    data = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)
                file.write(data.tobytes())
            except Exception as error:
                answer(error=f"tensor {tensor.name}: {error or type(error).__name__}")
                return
            if name == tensors[-1][0]:
                file.flush()
                os.fsync(file.fileno())
            answer(name=name, bytes=int(data.nbytes))


main()
