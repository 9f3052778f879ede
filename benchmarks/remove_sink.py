#!/usr/bin/env python3
"""Tests which change removes the attention sink of a pretrained model. Every variant gets one short training.

    lazy data prepare TEXT --tokenizer DIR --output corpus
    PYTHONPATH=python python benchmarks/remove_sink.py --model DIR --corpus corpus --json out.json --variants lazy,null

The model is a folder of transformers with softmax attention. Every variant continues its training on the same tokens
with the recipe of `lazy uptrain`: sequences of 2048, AdamW, warm-up and cosine decay, bf16 with fp32 weights. The
variants have no distance bias. Before the first step, all variants compute the same function as the given model, except
in the variants with a null key (a learned additional key), which then has the small weight of a key with the score 0.

    softmax       the given model
    lazy          weights ReLU(p_ij + tau / i) with p the softmax, tau learned and shifted from 0 to -1
    constant      weights ReLU(p_ij + c), c learned and shifted from 0 to -0.02
    null          like lazy, and the softmax has a null key: an additional key with a learned logit per head and a zero
                  value vector. The logit starts at 0. Its learning rate is 300 times larger, so that it can rise by
                  about 10
    softmax-null  softmax with the null key (the normalizer softmax_sink)
    gate          like lazy, and the output of every head is multiplied by 2 sigmoid(w_h . x), initially with w_h = 0

For each variant, the script prints the held-out loss, the mean weight on the first key of the text, the weight on the
null key, and the share of query-key pairs with a nonzero weight. These weights are computed by their definition on
`--samples` held-out sequences. There is one training per variant, so small differences may be due to chance.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
import lazy_attention  # noqa: E402
from lazy_lab.plan import shard_ids  # noqa: E402

SHIFTS = {"lazy": -1.0, "null": -1.0, "gate": -1.0, "constant": -0.02}
# The learning rate of the null logit is NULL_RATE times --lr. Queries and keys are padded to head size PADDED, because
# the null key adds a dimension.
NULL_RATE = 300
PADDED = 128


class HeadParameters(nn.Module):
    """The parameters that a variant adds to one attention layer, in fp32."""

    def __init__(self, variant, heads, head_dim, hidden):
        super().__init__()
        self.variant = variant
        self.shift = 0.0
        self.statistics = None  # during measurements, this is a function that receives the weights of each forward pass
        if variant in SHIFTS:
            self.offset = nn.Parameter(torch.zeros(heads))
        if variant in ("null", "softmax-null"):
            self.null = nn.Parameter(torch.zeros(heads))
        if variant == "gate":
            self.gate = nn.Parameter(torch.zeros(heads, hidden))

    def tau(self):
        return self.offset + self.shift if hasattr(self, "offset") else None

    def attend(self, q_BLHD, k_BKGD, v_BKGD, scale):
        if self.variant == "softmax":
            return lazy_attention.attention(q_BLHD, k_BKGD, v_BKGD, normalizer="softmax", scale=scale)
        if self.variant == "softmax-null":
            return lazy_attention.attention(
                q_BLHD, k_BKGD, v_BKGD, sink=self.null, normalizer="softmax_sink", scale=scale
            )
        if self.variant != "null":
            offset = "constant" if self.variant == "constant" else "per_visible"
            return lazy_attention.attention(q_BLHD, k_BKGD, v_BKGD, tau=self.tau(), offset=offset, scale=scale)
        # The null key is key 0. Queries and keys have one additional dimension: in the queries it contains the head's
        # logit, in the null key it is 1, and in all other keys it is 0. Attention is bottom-right aligned, so every
        # query sees the null key.
        dim = q_BLHD.shape[-1]
        logits = (self.null / scale).to(q_BLHD.dtype)[:, None].expand(*q_BLHD.shape[:3], 1)
        q = F.pad(torch.cat([q_BLHD, logits], -1), (0, PADDED - dim - 1))
        k, v = (F.pad(t, (0, PADDED - dim, 0, 0, 1, 0)) for t in (k_BKGD, v_BKGD))
        unit = torch.zeros_like(k)
        unit[:, 0, :, dim] = 1
        return lazy_attention.attention(q, k + unit, v, tau=self.tau(), scale=scale)[..., :dim]

    @torch.no_grad()
    def weights(self, q_LHD, k_LGD, scale):
        """Returns the attention weights (heads, queries, 1 + keys), computed by their definition. The first column is
        the weight on the null key; it is zero for variants without a null key."""
        length, heads = q_LHD.shape[:2]
        k_LHD = k_LGD.repeat_interleave(heads // k_LGD.shape[1], 1)
        s = torch.einsum("lhd,khd->hlk", q_LHD.float(), k_LHD.float()) * scale
        hidden = torch.ones(length, length, dtype=torch.bool, device=s.device).triu(1)
        s = s.masked_fill(hidden, -math.inf)
        null = self.null if hasattr(self, "null") else torch.full((heads,), -math.inf, device=s.device)
        p = torch.cat([null[:, None, None].expand(heads, length, 1), s], -1).softmax(-1)
        if self.variant not in SHIFTS:
            return p
        count = torch.arange(1, length + 1, device=s.device)[:, None] + hasattr(self, "null")
        tau = self.tau()[:, None, None]
        w = F.relu(p + (tau if self.variant == "constant" else tau / count))
        w[..., 1:].masked_fill_(hidden, 0)
        return w


def attend(module, query, key, value, mask, scaling=None, **_):
    """Attention function for transformers' AttentionInterface. The inputs are (batch, heads, length, head_dim); the
    result is (batch, length, heads, head_dim)."""
    extra = module.extra
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if extra.statistics is not None:
        extra.statistics(extra.weights(q[0], k[0], scaling))
    out = extra.attend(q, k, v, scaling)
    if extra.variant == "gate":
        out = out * (2 * torch.sigmoid(F.linear(extra.input.float(), extra.gate))).unsqueeze(-1).to(out.dtype)
    return out, None


def load(a, variant):
    ALL_ATTENTION_FUNCTIONS.register("remove_sink", attend)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        a.model, dtype=torch.float32, attn_implementation="remove_sink"
    ).to(a.device)
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    for layer in model.model.layers:
        layer.self_attn.extra = HeadParameters(variant, c.num_attention_heads, head_dim, c.hidden_size).to(a.device)
        if variant == "gate":

            def remember(module, args, kwargs):
                module.extra.input = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

            layer.self_attn.register_forward_pre_hook(remember, with_kwargs=True)
    return model


def extras(model):
    return [layer.self_attn.extra for layer in model.model.layers]


def loss_of(model, ids, device):
    with torch.autocast(device, dtype=torch.bfloat16):
        hidden = model.model(ids, use_cache=False, attention_mask=None).last_hidden_state
    loss = 0
    for part, targets in zip(hidden[:, :-1].split(1), ids[:, 1:].split(1), strict=True):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model.lm_head(part[0])
        loss = loss + F.cross_entropy(logits.float(), targets[0])
    return loss / len(ids)


def train(a, model, ids, variant):
    sequences = len(ids) // a.seq_len
    order = np.random.default_rng(a.seed).permutation(sequences)
    per_step = a.batch_tokens // a.seq_len
    steps = a.tokens // a.batch_tokens
    if steps * per_step > sequences:
        raise SystemExit(f"--tokens: expected at most {sequences * a.seq_len} tokens of the corpus, found {a.tokens}")
    warmup, anneal = max(1, steps // 20), max(1, int(0.35 * steps))
    null = [extra.null for extra in extras(model) if hasattr(extra, "null")]
    groups = [{"params": [p for p in model.parameters() if not any(p is n for n in null)], "times": 1}]
    if null:
        groups.append({"params": null, "times": NULL_RATE})
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), weight_decay=0, fused=a.device == "cuda")
    begin = time.perf_counter()
    model.train()
    for step in range(steps):
        for extra in extras(model):
            extra.shift = SHIFTS.get(variant, 0.0) * min(1.0, (step + 1) / anneal)
        done = step / steps
        rate = a.lr * min((step + 1) / warmup, 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["times"]
        batch = order[step * per_step : (step + 1) * per_step]
        total = torch.zeros((), device=a.device)
        for part in np.array_split(batch, max(1, per_step // a.micro_batch)):
            rows = np.stack([ids[n * a.seq_len : (n + 1) * a.seq_len] for n in part])
            loss = loss_of(model, torch.from_numpy(rows.astype(np.int64)).to(a.device), a.device)
            loss = loss * (len(part) / per_step)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step + 1 == steps:
            print(
                f"{variant}: step {step + 1} of {steps}, loss {total.item():.4f}, {time.perf_counter() - begin:.0f} s",
                flush=True,
            )


@torch.no_grad()
def measure(a, model, heldout):
    model.eval()
    rows = torch.tensor(heldout, device=a.device).view(-1, a.seq_len)
    loss = sum(loss_of(model, rows[n : n + 1], a.device).item() for n in range(len(rows))) / len(rows)
    sums = torch.zeros(3, dtype=torch.float64, device=a.device)
    by_layer = torch.zeros(len(extras(model)), dtype=torch.float64, device=a.device)

    def add(layer, w):
        length = w.shape[1]
        first = w[..., 1].double().mean()
        alive = (w[..., 1:] > 0).double().sum() / (w.shape[0] * length * (length + 1) / 2)
        sums.add_(torch.stack([first, w[..., 0].double().mean(), alive]))
        by_layer[layer] += first

    for layer, extra in enumerate(extras(model)):
        extra.statistics = lambda w, layer=layer: add(layer, w)
    for n in range(a.samples):
        with torch.autocast(a.device, dtype=torch.bfloat16):
            model.model(rows[n : n + 1], use_cache=False, attention_mask=None)
    first, null, alive = (sums / (a.samples * len(extras(model)))).tolist()
    return {
        "loss": loss,
        "first_key": first,
        "null_key": null,
        "alive": alive,
        "first_key_by_layer": (by_layer / a.samples).tolist(),
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--corpus", type=Path, required=True)
    p.add_argument("--variants", default="softmax,lazy,constant,null,softmax-null,gate")
    p.add_argument("--tokens", type=int, default=30_000_000)
    p.add_argument("--heldout", type=int, default=524_288, help="number of held-out tokens for the loss")
    p.add_argument("--samples", type=int, default=16, help="number of held-out sequences for the attention weights")
    p.add_argument("--seq-len", type=int, default=2048)
    p.add_argument("--batch-tokens", type=int, default=131_072)
    p.add_argument("--micro-batch", type=int, default=16, help="number of sequences per forward pass")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    heldout = shard_ids(a.corpus, "validation", a.heldout // a.seq_len * a.seq_len)
    ids = np.array(shard_ids(a.corpus, "train", a.tokens), dtype=np.int32)
    results = {}
    for variant in ("before", *a.variants.split(",")):
        torch.manual_seed(a.seed)
        model = load(a, "softmax" if variant == "before" else variant)
        if variant != "before":
            train(a, model, ids, variant)
        results[variant] = measure(a, model, heldout)
        print(variant, {key: round(x, 4) for key, x in results[variant].items() if isinstance(x, float)}, flush=True)
        if a.json:
            a.json.write_text(
                json.dumps({"arguments": {k: str(v) for k, v in vars(a).items()}, "results": results}, indent=1) + "\n"
            )
    print("\n| variant | held-out loss | weight on the first key | weight on the null key | nonzero weights |")
    print("|---|---|---|---|---|")
    for variant, r in results.items():
        shares = " | ".join(f"{100 * r[key]:.1f} %" for key in ("first_key", "null_key", "alive"))
        print(f"| {variant} | {r['loss']:.4f} | {shares} |")


if __name__ == "__main__":
    main()
