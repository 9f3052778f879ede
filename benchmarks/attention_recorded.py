"""Speed and sparsity of lazy_attention on the queries and keys of a trained model.

    PYTHONPATH=python python benchmarks/attention_recorded.py MODEL_FOLDER TEXT_FILE [--batch 8 --length 4096]
                                                              [--tiles 64x64 16x64 ...] [--shares] [--json FILE]

The script records queries, keys, values, distance bias and tau of every layer of a model folder while the model reads a
text. A query-key pair is alive if its weight is nonzero. The script prints the fraction of alive pairs and the fraction
of query x key tiles that contain an alive pair (over all heads of the first sequence). Without --shares, it also prints
the speed of prefill and decode compared with PyTorch's softmax attention.

Speeds are measured in bf16 on a GPU; results are checked against fp32 before they are timed. --shares also works
without a GPU. The model reads batch x length tokens of the text. The length may exceed the training length, because the
speed measurements need long sequences. The printed fractions are for the same length.
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

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def record(folder, text, batch, length):
    ids = (
        Tokenizer.from_file(f"{folder}/tokenizer.json")
        .encode(open(text, errors="replace").read(), add_special_tokens=False)
        .ids
    )
    if len(ids) < batch * length:
        ids = ids * (batch * length // max(len(ids), 1) + 1)
    model = AutoModelForCausalLM.from_pretrained(folder).to(DEVICE).eval()
    seen, attend = [], modeling.attend

    def spy(q, k, v, mask, **arguments):
        seen.append((q, k, v, arguments))
        return attend(q, k, v, mask, **arguments)

    modeling.attend = spy
    with torch.no_grad():
        model(torch.tensor(ids[: batch * length], device=DEVICE).view(batch, length), use_cache=False, logits_to_keep=1)
    modeling.attend = attend
    return seen


def alive_tiles(q, k, bias, tau, sizes):
    """Returns one fraction per tile size: the number of tiles with a positive weight divided by the number of visible
    tiles, for the first sequence. A tile is visible if it has a visible query-key pair."""
    n, heads = q.shape[1], q.shape[2]
    row = torch.arange(n, device=q.device)[:, None]
    distance = row - row.T
    seen = distance >= 0

    def tiles(x, rows, columns):
        x = torch.nn.functional.pad(x, (0, -n % columns, 0, -n % rows))
        return x.unfold(0, rows, rows).unfold(1, columns, columns).flatten(2).any(-1).sum().item()

    alive = [0] * len(sizes)
    for head in range(heads):
        kv = head * k.shape[2] // heads
        s = q[0, :, head].float() @ k[0, :, kv].float().T * q.shape[3] ** -0.5
        if bias is not None:
            window = bias.shape[1]
            s = s + torch.where(distance < window, bias[head][distance.clamp(0, window - 1)], 0.0)
        weight = s.masked_fill_(~seen, -torch.inf).softmax(-1) + tau[head] / (row + 1)
        positive = (weight > 0) & seen
        alive = [have + tiles(positive, *size) for have, size in zip(alive, sizes, strict=True)]
    return [have / heads / tiles(seen, *size) for have, size in zip(alive, sizes, strict=True)]


def speeds(q, k, v, arguments, exact, rounds):
    """Measures prefill and decode in bf16, in milliseconds, with lazy_attention and with PyTorch's softmax attention.
    Also returns the fraction of keys that have a nonzero weight for the last query."""
    batch, length = q.shape[:2]
    q, k, v = (x.bfloat16().contiguous() for x in (q, k, v))
    error = (lazy_attention.attention(q, k, v, **arguments).float() - exact.out).norm() / exact.out.norm()
    # The bound is loose because rounding scores to bf16 moves some weights across the threshold. The relative error of
    # a wrong kernel would be about 1.
    assert error < 0.1, f"relative error {error:.2e}"
    last, lengths = q[:, -1:].contiguous(), torch.full((batch,), length, device=DEVICE)
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
            rounds,
        )
    return {"decode_alive": stats[2].mean().item() / length, "ms": ms}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--tiles", nargs="+", default=["64x64"], help="tile sizes, queries x keys")
    parser.add_argument("--shares", action="store_true", help="print only the fractions, without timing")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    sizes = [tuple(int(x) for x in size.split("x")) for size in options.tiles]
    rows = []
    head = f"{'layer':>5}{'alive pairs':>13}" + "".join(f"{size:>9}" for size in options.tiles)
    if not options.shares:
        head += f"{'cuDNN':>12}{'ours':>12}{'ratio':>7}   {'decode, alive':>13}{'cuDNN':>12}{'ours':>12}{'ratio':>7}"
    print(head)
    for layer, (q, k, v, arguments) in enumerate(record(options.model, options.text, options.batch, options.length)):
        exact = lazy_attention.attention(q, k, v, **arguments, return_stats=True)
        visible = options.length * (options.length + 1) / 2
        pairs = exact.stats[2].double().mean().item() * options.length / visible
        shares = alive_tiles(q, k, arguments["distance_bias"], arguments["tau"], sizes)
        row = {"layer": layer, "alive_pairs": pairs, "alive_tiles": dict(zip(options.tiles, shares, strict=True))}
        line = f"{layer:5}{pairs:13.1%}" + "".join(f"{share:9.1%}" for share in shares)
        if not options.shares:
            row |= speeds(q, k, v, arguments, exact, options.rounds)
            ms, alive = row["ms"], row["decode_alive"]
            line += (
                f"{ms['prefill softmax']:9.3f} ms{ms['prefill']:9.3f} ms{ms['prefill softmax'] / ms['prefill']:7.2f}"
            )
            line += f"   {alive:13.1%}{ms['decode softmax']:9.3f} ms{ms['decode']:9.3f} ms"
            line += f"{ms['decode softmax'] / ms['decode']:7.2f}"
        rows.append(row)
        print(line, flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
