"""The attention sink of GPT-2: measures and interventions for any model folder that transformers loads as GPT-2, after
"Attention Sink Mechanisms Are Not Universal Across Different Transformer Architectures" (the study).

b_Q is the bias of a layer's query projection and W_k the weight of its key projection. gamma = W_k^T b_Q, over all
heads together. Delta_j = gamma . x_j, where x_j is the normalized input of the layer's attention at position j. It is
the part of the score of key j that does not depend on the query, without the factor 1 / sqrt(head size). EPE_i is the
effective positional embedding of position i. Layers and positions are counted from 0 in code and records.
"""

import argparse
import contextlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import pad

from .. import records
from ..errors import UserError
from .study import rounded, run_command

# Three ways to compute the effective positional embedding (EPE) from the learned position embedding p_i. "literal" is
# the formula in the study. The study does not say whether the norm before the MLP is applied.
READINGS = {
    "literal": "p + MLP(p)",
    "normed": "p + MLP(norm(p))",
    "block": "the first layer applied to a sequence of p alone",
}
TOP, BINS, MAP_LENGTH, SINK = 10, 48, 32, 0.3  # a head has an attention sink if its mean weight on key 0 exceeds SINK
FIRST_ORDER_POSITIONS = (0, 1, 2, 4, 8, 16, 32)


def load(folder):
    """Returns the model in fp32 and its tokenizer."""
    from transformers import AutoTokenizer, GPT2LMHeadModel

    config = Path(folder) / "config.json"
    if not config.is_file():
        raise UserError(f"{folder}: expected a model folder, found no config.json in it")
    if (kind := json.loads(config.read_text(encoding="utf-8")).get("model_type")) != "gpt2":
        raise UserError(f"{config}: model_type: expected gpt2 (learned positions and query biases), found {kind}")
    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    if model.config.n_layer < 2:
        raise UserError(f"{config}: n_layer: expected at least 2 layers, found {model.config.n_layer}")
    return model, AutoTokenizer.from_pretrained(folder)


def samples(tokenizer, text, count, length):
    """Returns token ids of shape (number of samples, length), with at most `count` samples. The samples are taken at
    equal distances from the text. Each sample begins with BOS if the tokenizer has a BOS token."""
    ids, bos = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], tokenizer.bos_token_id
    own = length - (bos is not None)
    if len(ids) < own:
        raise UserError(f"--text: expected at least {own} tokens, found {len(ids)}")
    blocks = torch.tensor(ids[: len(ids) // own * own]).view(-1, own)
    count = min(count, len(blocks))
    return pad(blocks[torch.arange(count) * len(blocks) // count], (length - own, 0), value=bos)


# A block is one layer of transformers. Its module attn.c_attn computes queries, keys and values together: chunk(3, -1)
# separates them, and its weight has the shape (input, output).


def query_bias_and_keys(block):
    """Returns b_Q and the transpose of W_k in float64."""
    return block.attn.c_attn.bias.chunk(3)[0].double(), block.attn.c_attn.weight.chunk(3, -1)[1].double()


def gamma(block):
    bias, keys = query_bias_and_keys(block)
    return keys @ bias


def alignment(block, vectors):
    """Returns the cosine between b_Q and W_k v for each row v of `vectors` (n, width), over all heads together."""
    bias, keys = query_bias_and_keys(block)
    return torch.cosine_similarity(vectors.double() @ keys, bias[None], eps=0)


def effective_positions(model, reading):
    """Returns the effective positional embedding (EPE) of all positions, (positions, width) in fp32. `reading` is a key
    of READINGS."""
    p, block = model.transformer.wpe.weight, model.transformer.h[0]
    if reading == "block":
        return block(p[:, None])[:, 0]
    return p + block.mlp(block.ln_2(p) if reading == "normed" else p)


# An intervention is a list of (module, forward hook). The following hooks change the output of the module in place.


def zero_query_bias(module, inputs, output):
    output.chunk(3, -1)[0].sub_(module.bias.chunk(3)[0])


def zero_key_columns(coordinates, module, inputs, output):
    """Computes the keys as if the given coordinates of the module's input were zero."""
    changed = inputs[0].index_fill(-1, torch.tensor(coordinates), 0)
    # Unlike module(), module.forward() does not call this hook.
    output.chunk(3, -1)[1].copy_(module.forward(changed).chunk(3, -1)[1])


def zero_first_position(module, inputs, output):
    output[:, 0] = 0


def add_to_first_positions(vectors, module, inputs, output):
    output[:, : len(vectors)] += vectors


def on_projections(blocks, hook):
    return [(block.attn.c_attn, hook) for block in blocks]


def replace_or_exchange(module, e, suffix):
    """Returns interventions 2 and 3 on the output of a module that contains the term e[position] at each position.
    Intervention 2 replaces e[0] by e[1] at the first position. Intervention 3 exchanges e[0] and e[1] at the first two
    positions. `suffix` is appended to the names "2" and "3"."""
    return {
        f"2{suffix}": [(module, partial(add_to_first_positions, e[[1]] - e[[0]]))],
        f"3{suffix}": [(module, partial(add_to_first_positions, e[[1, 0]] - e[[0, 1]]))],
    }


def interventions(blocks, before, epe, massive):
    """Returns {name: intervention}. Interventions 1 (zero query bias) and 5 (zero key columns `massive`) change all
    `blocks`. Interventions 2 and 3 (see replace_or_exchange) change the output of the block `before`, for each entry
    {reading: effective positional embeddings} of epe."""
    found = {
        "1": on_projections(blocks, zero_query_bias),
        "5": on_projections(blocks, partial(zero_key_columns, massive)),
    }
    for reading, e in epe.items():
        found |= replace_or_exchange(before, e, f" {reading}")
    return found


def attention(model, ids, intervention=()):
    """Returns the attention weights under an intervention, (texts, layers, heads, queries, keys)."""
    with contextlib.ExitStack() as hooks:
        for module, hook in intervention:
            hooks.enter_context(module.register_forward_hook(hook))
        return torch.stack(model.transformer(ids, output_attentions=True, use_cache=False).attentions, 1)


def mean_attention(weights):
    """Returns three quantities for each text and layer: the mean weight on the first key and on the second key
    ("first", "second"; means over heads and later queries), and the share of heads with an attention sink ("sink")."""
    found = {"first": weights[..., 1:, 0].mean((2, 3)), "second": weights[..., 2:, 1].mean((2, 3))}
    found["sink"] = (weights[..., 0].mean(3) > SINK).double().mean(2)
    return {name: rounded(values) for name, values in found.items()}


def everywhere(model, ids, epe, massive, pairs):
    """Measures the attention under every intervention, applied to all layers. Interventions 2' and 3' change the
    position embeddings at the input as 2 and 3 change the effective positional embeddings (EPE). The controls of
    intervention 5 set random pairs of key columns to zero, chosen outside of the TOP largest coordinates of |EPE_0|."""
    order = epe["literal"][0].abs().argsort(descending=True)
    outside = order[min(TOP, len(order) // 4) :].tolist()
    random = np.random.default_rng(1)
    drawn = [random.choice(outside, 2, replace=False).tolist() for _ in range(pairs)]
    wte, wpe, blocks = model.transformer.wte, model.transformer.wpe, model.transformer.h
    conditions = {"none": []} | interventions(blocks, blocks[0], epe, massive)
    conditions |= {"4": [(wte, zero_first_position)]} | replace_or_exchange(wpe, wpe.weight, "'")
    for n, pair in enumerate(drawn):
        conditions[f"control {n}"] = on_projections(blocks, partial(zero_key_columns, pair))
    found, maps = {}, {}
    for name, intervention in conditions.items():
        weights = attention(model, ids, intervention)
        found[name] = mean_attention(weights)
        maps[name] = rounded(weights.mean((0, 1, 2))[:MAP_LENGTH, :MAP_LENGTH], 2)
    return {"conditions": found, "maps": maps, "control_pairs": drawn}


def one_layer_at_a_time(model, ids, epe, massive):
    """Returns {intervention: list with one number per layer n}: the attention to the first position in layer n if only
    layer n is changed. Interventions 2 and 3 change the residual stream before layer n and do not apply to layer 0,
    where their value is None."""
    found, blocks = {}, model.transformer.h
    for n, block in enumerate(blocks):
        model.transformer.h = blocks[: n + 1]  # later layers do not influence this layer
        for name, intervention in interventions([block], blocks[n - 1], epe, massive).items():
            applies = n > 0 or name in ("1", "5")
            value = rounded(attention(model, ids, intervention)[:, n, :, 1:, 0].mean()) if applies else None
            found.setdefault(name, []).append(value)
    return found


def streams(model, ids):
    """Returns (block, residual stream before it, normalized input of its attention) for each layer."""
    states = model.transformer(ids, output_hidden_states=True, use_cache=False).hidden_states
    return [(block, stream, block.ln_1(stream)) for block, stream in zip(model.transformer.h, states)]


def variances(model, ids):
    """Compares the variance over channels at the first position with the other positions. Returns {"stream": [...],
    "values": [...]} with one number per text: the variance at the first position divided by the mean variance at the
    other positions, minus 1, as a mean over layers and heads. "stream" is the residual stream before each layer, and
    "values" are the value vectors of the heads."""
    found = {"stream": [], "values": []}
    for block, stream, x in streams(model, ids):
        values = block.attn.c_attn(x).chunk(3, -1)[2].unflatten(2, (model.config.n_head, -1))
        for name, vectors in (("stream", stream[:, :, None]), ("values", values)):
            variance = vectors.var(3, unbiased=False)  # (texts, length, heads)
            found[name].append((variance[:, 0] / variance[:, 1:].mean(1) - 1).mean(1))
    return {name: rounded(torch.stack(layers).mean(0)) for name, layers in found.items()}


def delta(model, ids, epe):
    """Measures Delta_j in each layer. Also measures how much of its excess at the first position is explained by the
    first-order contribution of EPE, gamma . (g * (EPE_j - mean EPE_j)) / s_j. Here g is the weight of the layer norm,
    s_j is the standard deviation of the residual stream at position j. For a given s_j, the layer norm is linear."""
    found = []
    for block, stream, x in streams(model, ids):
        direction = gamma(block)
        values = x.double() @ direction
        first, others = values[:, 0], values[:, 1:]
        low, high = values.min().item(), values.max().item() + 1e-9
        histogram = {"first": first, "others": others}
        from_epe, cosine_without_epe = {}, {}
        for reading, e in epe.items():
            centered = (e - e.mean(1, keepdim=True)).double()[: ids.shape[1]]
            part = (centered * block.ln_1.weight.double()) @ direction / stream.double().std(2, unbiased=False)
            from_epe[reading] = rounded((part[:, 0] - part[:, 1:].mean(1)).mean())
            cosine_without_epe[reading] = rounded(alignment(block, stream[:, 0] - e[0]))
        found.append(
            {
                "first": rounded(first),
                "others_mean": rounded(others.mean(1)),
                "others_std": rounded(others.std()),
                "range": [low, high],
                "histogram": {k: torch.histc(v, BINS, low, high).int().tolist() for k, v in histogram.items()},
                "cosine_input": rounded(alignment(block, x[:, 0])),
                "cosine_without_epe": cosine_without_epe,
                "from_epe": from_epe,
            }
        )
    return found


def first_order(model, ids, epe):
    """Measures the effect of the position embedding p_i on the residual stream after the first layer, and compares it
    with these predictions: p_i alone; the derivative of the first layer along p_i at the input without p_i; and EPE_i
    in each reading.

    Returns {prediction: {"cosine": [...], "explained": [...]}}, one number per position of FIRST_ORDER_POSITIONS below
    the length. cosine: mean over texts. explained: 1 - sum of squared errors / sum of squared effects."""
    p, block = model.transformer.wpe.weight, model.transformer.h[0]
    inputs = model.transformer.wte(ids) + p[: ids.shape[1]]
    positions = [position for position in FIRST_ORDER_POSITIONS if position < ids.shape[1]]
    found = {name: {"cosine": [], "explained": []} for name in ("p", "derivative", *epe)}
    for position in positions:
        seen = inputs[:, : position + 1]
        direction = torch.zeros_like(seen)
        direction[:, -1] = p[position]
        start, slope = torch.func.jvp(lambda x: block(x)[:, -1], (seen - direction,), (direction,))
        effect = block(seen)[:, -1] - start
        predictions = {"p": p[position], "derivative": slope} | {name: e[position] for name, e in epe.items()}
        for name, vector in predictions.items():
            explained = 1 - (effect - vector).square().sum() / effect.square().sum()
            found[name]["cosine"].append(rounded(torch.cosine_similarity(effect, vector.expand_as(effect)).mean()))
            found[name]["explained"].append(rounded(explained))
    return {"positions": positions, "predictions": found}


def weights_alone(model, epe):
    """Measures the properties of EPE and gamma. They depend only on the weights of the model, not on texts."""
    blocks = model.transformer.h
    found = {"epe": {}, "gamma": []}
    for reading, e in epe.items():
        cosines, norms = torch.stack([alignment(block, e) for block in blocks]), e.norm(dim=1)
        found["epe"][reading] = {
            "first": rounded(e[0], 4),
            "top": e[0].abs().argsort(descending=True)[:TOP].tolist(),
            "norms": rounded(torch.stack([*norms[:2], norms[1:].median()])),
            "cosine_first": rounded(cosines[:, 0]),
            "cosine_others_mean": rounded(cosines[:, 1:].mean(1)),
            "cosine_others_std": rounded(cosines[:, 1:].std(1)),
        }
    tops = sorted({n for values in found["epe"].values() for n in values["top"]})
    for size in (gamma(block).abs() for block in blocks):
        at = {str(n): rounded(size[n]) for n in tops}
        found["gamma"].append({"mean": rounded(size.mean()), "std": rounded(size.std(unbiased=False)), "at": at})
    return found


@torch.no_grad()
def measure(model, ids, bos, pairs=5, few=4):
    """Returns the record of a model. ids: token ids (texts, length). few: number of texts for the interventions in
    single layers. pairs: number of random pairs of key columns in the control of intervention 5."""
    epe = {reading: effective_positions(model, reading) for reading in READINGS}
    massive = epe["literal"][0].abs().argsort(descending=True)[:2].tolist()
    config = model.config
    found = {"layers": config.n_layer, "width": config.n_embd, "heads": config.n_head, "bos": bos, "massive": massive}
    found |= {"texts": len(ids), "length": ids.shape[1], "few_texts": min(few, len(ids))}
    found |= weights_alone(model, epe) | everywhere(model, ids, epe, massive, pairs)
    found["variances"] = variances(model, ids)
    found["repeated"] = mean_attention(attention(model, ids[:, 1:2].expand_as(ids)))  # texts that repeat one token
    found["single"] = one_layer_at_a_time(model, ids[:few], epe, massive)
    return found | {"delta": delta(model, ids, epe), "first_order": first_order(model, ids, epe)}


def main():
    parser = argparse.ArgumentParser(description="Study the attention sink of a GPT-2 model and write its page")
    parser.add_argument("model", type=Path, nargs="?", help="model folder; without it, --records is read")
    parser.add_argument("--text", type=Path, help="text file")
    parser.add_argument("--texts", type=int, default=20, help="number of stretches of the text (default: 20)")
    parser.add_argument("--length", type=int, default=64, help="tokens per stretch, BOS included (default: 64)")
    parser.add_argument("--records", type=Path, help="file of records to write the page from")
    parser.add_argument("--output", type=Path, required=True, help="folder for gpt2.md and its pictures")
    arguments = parser.parse_args()
    from .gpt2_page import write

    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.records or arguments.output / "gpt2.jsonl.zst"
    if arguments.model:
        if not arguments.text or not arguments.text.is_file():
            raise UserError(f"--text: expected a text file, found {arguments.text or 'none'}")
        model, tokenizer = load(arguments.model)
        length = min(arguments.length, model.config.n_positions)
        ids = samples(tokenizer, arguments.text.read_text(encoding="utf-8"), arguments.texts, length)
        name = arguments.model.resolve().name
        found = {"file": f"gpt2/{name}", "model": name} | measure(model, ids, tokenizer.bos_token_id is not None)
        records.write(path, [found])
    write(path, arguments.output)


if __name__ == "__main__":
    run_command(main)
