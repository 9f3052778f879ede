#!/usr/bin/env python3
"""Measures the training speed of flash-linear-attention's (FLA's) models, for comparison with `lazy bench mixers`. The
models have the same shapes as our 340M models; forward and backward are in bf16.

    python benchmarks/mixers_peer.py [--model NAME ...] [--length N ...] [--tokens 32768] [--ours FILE] [--json FILE]
                                     [--quick-tuning]

Prints tokens/s of training. If --ours names a file that `lazy bench mixers --json FILE` wrote, its figures are printed
in the same table. The speed of FLA's Mamba2 depends on the installed packages (mamba_ssm, causal_conv1d); the packages
that it used are printed. Needs flash-linear-attention.
"""

import argparse
import gc
import importlib.util
import json
import statistics

import fla_guard
import quick_tuning
import torch

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--model", nargs="*", default=["retnet", "delta_net", "gated_delta_net", "mamba2"])
p.add_argument("--length", nargs="*", type=int, default=[2048, 4096, 8192])
p.add_argument("--tokens", type=int, default=32768, help="tokens per training step; at least one sequence is used")
p.add_argument("--steps", type=int, default=5)
p.add_argument("--layers", type=int, default=0, help="number of layers; 0: as in the 340M shape")
p.add_argument("--ours", help="file that `lazy bench mixers --json` wrote")
p.add_argument("--json")
quick_tuning.add_argument(p)
a = p.parse_args()
if a.quick_tuning:
    quick_tuning.install()

# Maps model names to (name in configs/models/, prefix of FLA's class names, arguments of FLA's configuration).
SHAPES = {
    "retnet": ("retnet", "RetNet", {"hidden_size": 1024, "num_hidden_layers": 24, "num_heads": 4}),
    "delta_net": ("deltanet", "DeltaNet", {"hidden_size": 1024, "num_hidden_layers": 24, "num_heads": 8}),
    "gated_delta_net": (
        "gated-deltanet",
        "GatedDeltaNet",
        {"hidden_size": 768, "num_hidden_layers": 21, "num_heads": 6, "head_dim": 256},
    ),
    "mamba2": (
        "mamba2",
        "Mamba2",
        {"hidden_size": 1024, "num_hidden_layers": 48, "num_heads": 32, "head_dim": 64, "expand": 2, "state_size": 128},
    ),
}


def build(name):
    import fla.models as models

    _, stem, shape = SHAPES[name]
    config = getattr(models, stem + "Config")(vocab_size=32000, use_cache=False, **shape)
    if a.layers:
        config.num_hidden_layers = a.layers
    model = getattr(models, stem + "ForCausalLM")(config).to("cuda", torch.bfloat16).train()
    return model, sum(t.numel() for t in model.parameters())


def step_ms(model, length):
    ids = torch.randint(0, 32000, (max(1, a.tokens // length), length), device="cuda")

    def step():
        model(input_ids=ids, labels=ids).loss.backward()
        for t in model.parameters():
            t.grad = None

    for _ in range(3):  # warm-up: compilation and autotuning
        step()
    times = []
    for _ in range(a.steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times), ids.numel()


def ran_on(name):
    if name != "mamba2":
        return "FLA's Triton kernels"
    found = [m for m in ("mamba_ssm", "causal_conv1d") if importlib.util.find_spec(m)]
    return " and ".join(found) if found else "PyTorch operations (neither mamba_ssm nor causal_conv1d is installed)"


warning = fla_guard.lift()
if warning:
    print(warning)
ours = {}
if a.ours:
    with open(a.ours) as file:
        ours = {(row["model"], row["length"]): row["train_tokens_per_second"] for row in json.load(file)["rows"]}
rows = []
print(
    "| model | parameters | length | FLA tokens/s | lazy tokens/s | lazy / FLA | FLA GiB | FLA ran on |\n"
    "|---|--:|--:|--:|--:|--:|--:|---|"
)
for name in a.model:
    model, parameters = build(name)
    for length in a.length:
        row = {"model": name, "length": length, "parameters": parameters, "ran_on": ran_on(name)}
        try:
            torch.cuda.reset_peak_memory_stats()
            ms, tokens = step_ms(model, length)
            row |= {
                "train_tokens_per_second": 1000 * tokens / ms,
                "peak_memory_bytes": torch.cuda.max_memory_allocated(),
            }
        # memory is exhausted, or FLA does not support the model on this device
        except (RuntimeError, NotImplementedError) as error:
            row["error"] = str(error).splitlines()[0]
        mine = ours.get((SHAPES[name][0], length)) or ours.get((name, length))
        speed = row.get("train_tokens_per_second")
        if mine:
            row["ours_tokens_per_second"] = mine
        print(
            f"| {name} | {parameters / 1e6:.1f}M | {length} | {speed and f'{speed:.0f}' or row['error']} | "
            f"{mine and f'{mine:.0f}' or '-'} | {mine and speed and f'{mine / speed:.2f}' or '-'} | "
            f"{row.get('peak_memory_bytes', 0) / 2**30:.1f} | {row['ran_on']} |",
            flush=True,
        )
        rows.append(row)
        for t in model.parameters():
            t.grad = None
        gc.collect()
        torch.cuda.empty_cache()
    del model
    gc.collect()
    torch.cuda.empty_cache()
if a.json:
    import fla

    with open(a.json, "w") as file:
        json.dump(
            {"fla": fla.__version__, "torch": torch.__version__, "warning": warning, "rows": rows}, file, indent=2
        )
