"""lazy_attention on what a trained model attends to.

    PYTHONPATH=python python benchmarks/attention_recorded.py MODEL_FOLDER TEXT_FILE [--batch 8 --length 4096]
                                                              [--json FILE]

Queries, keys, values, distance bias and tau of every layer of a model folder are recorded on a text. Printed are the
share of alive pairs and tiles, and the speed of prefill and decode beside PyTorch's.

bf16 on a GPU; results are checked against fp32 before they are timed. The model reads batch x length tokens of the
text, also beyond the length that it was trained at: the speeds want long rows, and the shares are printed for that
reason.
"""

import argparse
import json

import lazy_attention
import lazy_attention.hf.modeling as modeling
import torch
from gpu_medians import medians
from tokenizers import Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM


def record(folder, text, batch, length):
    ids = (
        Tokenizer.from_file(f"{folder}/tokenizer.json")
        .encode(open(text, errors="replace").read(), add_special_tokens=False)
        .ids
    )
    if len(ids) < batch * length:
        ids = ids * (batch * length // max(len(ids), 1) + 1)
    model = AutoModelForCausalLM.from_pretrained(folder).cuda().eval()
    seen, attend = [], modeling.attend

    def spy(q, k, v, mask, **arguments):
        seen.append((q, k, v, arguments))
        return attend(q, k, v, mask, **arguments)

    modeling.attend = spy
    with torch.no_grad():
        model(torch.tensor(ids[: batch * length], device="cuda").view(batch, length), use_cache=False, logits_to_keep=1)
    modeling.attend = attend
    return seen


def alive_tiles(q, k, bias, tau, size=64):
    """Of the first sequence's first head: tiles of size x size with a visible pair that hold a positive weight."""
    q, k = q[0, :, 0].float(), k[0, :, 0].float()
    n = q.shape[0]
    distance = torch.arange(n, device="cuda")[:, None] - torch.arange(n, device="cuda")
    s = q @ k.T * q.shape[1] ** -0.5
    if bias is not None:
        s = s + torch.where(distance < bias.shape[1], bias[0][distance.clamp(0, bias.shape[1] - 1)], 0.0)
    seen = distance >= 0
    weight = s.masked_fill(~seen, -torch.inf).softmax(-1) + tau[0] / (torch.arange(n, device="cuda")[:, None] + 1)
    pad = (-n) % size
    tiles = lambda x: (
        torch.nn.functional.pad(x, (0, pad, 0, pad)).unfold(0, size, size).unfold(1, size, size).flatten(2).any(-1)
    )  # noqa: E731
    return (tiles((weight > 0) & seen).sum() / tiles(seen).sum()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    print(
        f"{'layer':>5}{'alive pairs':>13}{'tiles':>8}{'cuDNN':>12}{'ours':>12}{'ratio':>7}   "
        f"{'decode, alive':>13}{'cuDNN':>12}{'ours':>12}{'ratio':>7}"
    )
    for layer, (q, k, v, arguments) in enumerate(record(options.model, options.text, options.batch, options.length)):
        exact = lazy_attention.attention(q, k, v, **arguments, return_stats=True)
        visible = options.length * (options.length + 1) / 2
        pairs = exact.stats[2].double().mean().item() * options.length / visible
        tiles = alive_tiles(q, k, arguments["distance_bias"], arguments["tau"])
        q, k, v = (x.bfloat16().contiguous() for x in (q, k, v))
        error = (lazy_attention.attention(q, k, v, **arguments).float() - exact.out).norm() / exact.out.norm()
        # bf16 scores move weights across the threshold; a wrong kernel is off by its whole output.
        assert error < 0.1, f"layer {layer}: relative error {error:.2e}"
        last, lengths = q[:, -1:].contiguous(), torch.full((options.batch,), options.length, device="cuda")
        stats = lazy_attention.decode(last, k, v, lengths, **arguments, return_stats=True).stats

        def softmax(query, causal):
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
                return torch.nn.functional.scaled_dot_product_attention(
                    query.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal
                )

        with torch.no_grad():
            ms = medians(
                {
                    "prefill softmax": lambda: softmax(q, True),
                    "prefill": lambda: lazy_attention.attention(q, k, v, **arguments),
                    "decode softmax": lambda: softmax(last, False),
                    "decode": lambda: lazy_attention.decode(last, k, v, lengths, **arguments),
                },
                options.rounds,
            )
        decode_alive = stats[2].mean().item() / options.length
        rows.append(
            {"layer": layer, "alive_pairs": pairs, "alive_tiles": tiles, "decode_alive": decode_alive, "ms": ms}
        )
        print(
            f"{layer:5}{pairs:12.1%} {tiles:7.1%}{ms['prefill softmax']:9.3f} ms{ms['prefill']:9.3f} ms"
            f"{ms['prefill softmax'] / ms['prefill']:7.2f}   "
            f"{decode_alive:13.1%}{ms['decode softmax']:9.3f} ms{ms['decode']:9.3f} ms"
            f"{ms['decode softmax'] / ms['decode']:7.2f}",
            flush=True,
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
