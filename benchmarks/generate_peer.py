#!/usr/bin/env python3
"""Compares the speed of `lazy serve` with llama.cpp on a CPU, for a Llama model and one sequence at a time.

    python benchmarks/generate_peer.py --model DIR --lazy build/lazy [--threads 2] [--json FILE]

Prints tokens per second and the time for the prompt. Run it with an interpreter that has llama_cpp (llama-cpp-python,
built on this machine), gguf, safetensors and numpy. The weights of the model folder are written to a temporary
directory as GGUF in F32, BF16 and Q8_0 (8 bits with one scale per 32 weights; the 8-bit weights of `lazy` have one
scale per row). Both programs get the same token ids and sample greedily without an end token. Before anything is timed,
the first tokens that both programs generate in fp32 are compared. The decode speed is measured over --tokens additional
tokens, and the prompt time over --prompt tokens. The best of --repeat runs is used. The two programs run alternately.
"""

import argparse
import contextlib
import json
import random
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TYPES = {
    "fp32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "int8": gguf.GGMLQuantizationType.Q8_0,
}


def write_gguf(folder, path, precision):
    config = json.loads((folder / "config.json").read_text())
    try:
        weights = load_file(folder / "model.safetensors")
    except TypeError as error:  # NumPy cannot represent bfloat16
        raise SystemExit(f"{folder / 'model.safetensors'}: expected weights in fp32 or fp16: {error}") from error
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")

    def add(name, x):
        if x.ndim == 1 or precision == "fp32":
            writer.add_tensor(name, x.astype(np.float32))
        else:
            writer.add_tensor(name, gguf.quantize(x, TYPES[precision]), raw_dtype=TYPES[precision])

    def interleaved(x, count):  # llama.cpp applies RoPE to pairs of adjacent rows
        rows = x.shape[0] // count
        return x.reshape(count, 2, rows // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)

    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    add("output.weight", weights.get("lm_head.weight", weights["model.embed_tokens.weight"]))
    for layer in range(layers):
        for theirs, ours in PARTS.items():
            x = weights[f"model.layers.{layer}.{theirs}.weight"]
            if ours == "attn_q":
                x = interleaved(x, heads)
            if ours == "attn_k":
                x = interleaved(x, config["num_key_value_heads"])
            add(f"blk.{layer}.{ours}.weight", x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


class Llama:
    def __init__(self, path, threads, context):
        self.model = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_batch=512,
            n_ubatch=512,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def generate(self, prompt, tokens):
        self.model.reset()
        self.model.eval(prompt)
        out = []
        for n in range(tokens):
            out.append(int(self.model.sample(temp=0.0)))
            if n + 1 < tokens:
                self.model.eval(out[-1:])
        return out


class Ours:
    def __init__(self, url):
        self.url = url

    def generate(self, prompt, tokens):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.post("/v1/completions", body)["choices"][0]["text"]

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def equal_tokens(self, ids, text):
        """Returns the number of leading tokens of `ids` whose text is a prefix of `text`."""
        for count in range(len(ids), 0, -1):
            if text.startswith(self.post("/detokenize", {"tokens": ids[:count]})["prompt"].lstrip(" ")):
                return count
        return 0


@contextlib.contextmanager
def serve(a, arguments):
    command = [a.lazy, "--threads", str(a.threads), "serve", a.model, "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield Ours(process.stdout.readline().split()[-1])
    finally:
        process.terminate()
        process.wait()


def measure(sides, a, vocabulary):
    """Measures the times of both programs. The programs run alternately, so that other load on the machine affects both
    of them."""

    def time_of(side, length, tokens):
        prompt = [random.randrange(5, vocabulary) for _ in range(length)]  # random, so that no cached prefix is reused
        begin = time.perf_counter()
        side.generate(prompt, tokens)
        return time.perf_counter() - begin

    runs = {name: [] for name in sides}
    for side in sides.values():
        side.generate([1, 2, 3], 4)
    for _ in range(a.repeat):
        for name, side in sides.items():
            decode = time_of(side, 8, a.tokens + 4) - time_of(side, 8, 4)
            runs[name].append((decode, time_of(side, a.prompt, 1) - time_of(side, 8, 1)))
    best = {name: [min(times) for times in zip(*some, strict=True)] for name, some in runs.items()}
    return {
        name: {"tokens_per_second": a.tokens / decode, "prompt_tokens_per_second": (a.prompt - 8) / prompt}
        for name, (decode, prompt) in best.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lazy", default="build/lazy")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json")
    a = parser.parse_args()
    flags = {
        "fp32": ["--dtype", "fp32"],
        "bf16": ["--dtype", "bf16"],
        "int8": ["--dtype", "fp32", "--weights", "int8"],
    }
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for precision, arguments in flags.items():
            path = Path(scratch) / "model.gguf"
            config = write_gguf(Path(a.model), path, precision)
            theirs = Llama(path, a.threads, a.prompt + a.tokens + 64)
            with serve(a, arguments) as ours:
                if precision == "fp32":
                    start = [1, 50, 700, 901, 33]
                    equal = ours.equal_tokens(theirs.generate(start, 24), ours.generate(start, 24).lstrip(" "))
                    print(f"greedy decoding in fp32: the first {equal} of 24 tokens are equal", flush=True)
                    if equal < 8:
                        raise SystemExit("the two programs do not compute the same model")
                results[precision] = measure({"lazy": ours, "llama.cpp": theirs}, a, config["vocab_size"])
            del theirs
            for side, figures in results[precision].items():
                print(precision, side, {key: round(value, 1) for key, value in figures.items()}, flush=True)
            for key in ("tokens_per_second", "prompt_tokens_per_second"):
                ratio = results[precision]["lazy"][key] / results[precision]["llama.cpp"][key]
                print(f"{precision} {key}: lazy / llama.cpp = {ratio:.2f}", flush=True)
    if a.json:
        Path(a.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
