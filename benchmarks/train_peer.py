#!/usr/bin/env python3
"""Training speed of PyTorch reference models (peers) compared with `lazy bench train`. Prints one line per model.

    python benchmarks/train_peer.py --layers 24 --width 1024 --batch 8 --length 4096 \\
        --ours build/lazy --config transformer-340m --config lazy-340m

The peers are `decoder` (peer_decoder.py, a fast decoder in plain PyTorch), `transformers` (a Hugging Face Llama with
SDPA), and models whose mixers learn during inference (learner_peers.py). `decoder` and `transformers` run with
torch.compile and fused AdamW.
The weights and the optimizer's moments are stored in `fp32` (and computed in bf16 by autocast, as in our models) or in
`bf16`. Each model runs in a separate process, so that memory is measured separately. Tokens/s are for whole training
steps. The model FLOPs per token are 6 (N - E) + 6 L T d, as in `lazy bench train`, where N is the number of parameters,
E the number of embedding parameters, L the number of layers, T the sequence length and d the width.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import learner_peers
import torch


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--inner", type=int, help="SwiGLU width; default: width x 8/3 rounded up to a multiple of 256")
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--tied", action="store_true", help="the head shares the embedding's weights")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=4096)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument(
        "--peer",
        action="append",
        choices=["decoder", "transformers", *learner_peers.PEERS],
        help="model to measure (may be repeated; default: decoder and transformers)",
    )
    p.add_argument("--ttt-lm", help="folder of ttt-lm-pytorch, for ttt-linear and ttt-mlp")
    p.add_argument("--precision", action="append", choices=["fp32", "bf16"], help="dtype of the weights; default: both")
    p.add_argument("--device", default="cuda")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--ours", help="path of the program `lazy`, to measure our models too")
    p.add_argument("--config", action="append", default=[], help="model configuration for --ours (may be repeated)")
    p.add_argument("--json", help="write the results to this file")
    # for child processes: measure only this peer and write its row to the file
    p.add_argument("--one", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.inner = a.inner or (a.width * 8 // 3 + 255) // 256 * 256
    if a.config and not a.ours:
        p.error("--config needs --ours")
    return a


def build(a, peer):
    """Returns the model and a function that computes its mean loss from inputs and targets [batch, length]."""
    if peer == "decoder":
        from peer_decoder import Decoder, PeerDecoder

        model = Decoder(a.layers, a.width, a.heads, a.inner, a.vocab, a.length, a.tied)
        return model, PeerDecoder(model, not a.no_compile).loss
    if peer in learner_peers.PEERS:
        return learner_peers.build(a, peer)
    from llama_shape import llama_config
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(llama_config(a, a.length, tie_word_embeddings=a.tied, attn_implementation="sdpa"))
    run = model if a.no_compile else torch.compile(model)
    return model, lambda ids, targets: run(input_ids=ids, labels=ids, shift_labels=targets).loss


def measure(a):
    peer, precision = a.peer[0], a.precision[0]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    wide = precision == "fp32"
    model, loss_of = build(a, peer)
    model.to(a.device, torch.float32 if wide else torch.bfloat16)
    parameters = sum(t.numel() for t in model.parameters())
    multiplied = parameters - (0 if a.tied else a.vocab * a.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, a.vocab, (a.batch, a.length + 1), device=a.device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step():
        with torch.autocast(a.device, torch.bfloat16, enabled=wide):
            loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    cuda = a.device == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    begin = time.time()
    first = step().item()
    for _ in range(2):
        step()
    wait()
    warm = time.time() - begin
    # Sanity check before timing: the loss of untrained weights must be about log(vocabulary). After the timed steps on
    # the same tokens, the loss must be smaller.
    if not abs(first - math.log(a.vocab)) < 0.5:
        sys.exit(
            f"{peer}, {precision}: loss of the first step: expected near {math.log(a.vocab):.3f}, found {first:.3f}"
        )
    begin = time.time()
    for _ in range(a.steps):
        loss = step()
    wait()
    seconds = (time.time() - begin) / a.steps
    if not loss.item() < first:
        sys.exit(f"{peer}, {precision}: loss: expected below {first:.3f} after training, found {loss.item():.3f}")
    tokens = a.batch * a.length
    row = {
        "name": f"{peer}, {precision} weights" + (", eager" if a.no_compile else ""),
        "parameters": parameters,
        "batch": a.batch,
        "seq_len": a.length,
        "tokens_per_second": tokens / seconds,
        "tflops": tokens / seconds * (6 * multiplied + 6 * a.layers * a.length * a.width) / 1e12,
        "peak_memory_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        "step_ms": 1e3 * seconds,
        "first_steps_seconds": warm,
        "loss": loss.item(),
    }
    Path(a.one).write_text(json.dumps(row), encoding="utf-8")


def of_a_process(command, file, show=False):
    """Runs a command and returns the JSON that it writes to `file`. If the command fails, prints the end of its output
    and returns None. show: also print the output of a successful command."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        if show:
            print(done.stdout, end="", flush=True)
        return json.loads(file.read_text(encoding="utf-8"))
    print(f"failed: {' '.join(map(str, command))}\n" + "\n".join((done.stderr or done.stdout).splitlines()[-5:]))
    return None


def main():
    a = options()
    if a.one:
        return measure(a)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"

        def add(row):
            rows.append(row)
            if row:
                memory = row.get("peak_memory_bytes")
                print(
                    f"{row['name']:44} {row['parameters'] / 1e6:7.1f}M  {row['batch']} x {row['seq_len']}  "
                    f"{row['tokens_per_second']:12,.0f} tokens/s  {row['tflops']:6.1f} TFLOP/s"
                    + (f"  {memory / 2**30:5.1f} GiB" if memory else ""),
                    flush=True,
                )

        for config in a.config:
            command = [a.ours, "bench", "train", config, "--batch", str(a.batch), "--length", str(a.length)]
            row = of_a_process([*command, "--steps", str(a.steps), "--json", str(file)], file)
            add(row and {**row, "name": row["model"]})
        shape = [x for key in ("layers", "width", "heads", "inner", "vocab", "batch", "length", "steps", "device")
                 for x in (f"--{key}", str(getattr(a, key)))]  # fmt: skip
        shape += ["--tied"] * a.tied + ["--no-compile"] * a.no_compile
        shape += ["--ours", a.ours] * bool(a.ours) + ["--ttt-lm", a.ttt_lm] * bool(a.ttt_lm)
        for peer in a.peer or ["decoder", "transformers"]:
            for precision in a.precision or ["fp32", "bf16"]:
                command = [
                    sys.executable,
                    __file__,
                    *shape,
                    "--peer",
                    peer,
                    "--precision",
                    precision,
                    "--one",
                    str(file),
                ]
                add(of_a_process(command, file, show=True))
    if a.json:
        Path(a.json).write_text(json.dumps([row for row in rows if row], indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row is None for row in rows))


if __name__ == "__main__":
    main()
