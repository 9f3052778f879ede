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
from pathlib import Path

import numpy as np
import torch

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
TOP, BINS, MAP_LENGTH, SINK = 10, 48, 32, 0.3  # a head has a sink if its mean weight on key 0 exceeds SINK
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
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    own = length - len(start)
    blocks = len(ids) // own
    if not blocks:
        raise UserError(f"--text: expected at least {own} tokens, found {len(ids)}")
    count = min(count, blocks)
    starts = [n * blocks // count * own for n in range(count)]
    return torch.tensor([start + ids[begin : begin + own] for begin in starts])


def query_bias(model, layer):
    return model.transformer.h[layer].attn.c_attn.bias[: model.config.n_embd].detach().double()


def key_weights(model, layer):
    """Returns the weight W_k of the layer's key projection, of shape (output, input), in float64."""
    width = model.config.n_embd
    return model.transformer.h[layer].attn.c_attn.weight[:, width : 2 * width].detach().double().T


def gamma(model, layer):
    return key_weights(model, layer).T @ query_bias(model, layer)


def alignment(model, layer, rows):
    """Returns the cosine between b_Q and W_k v for each row v of `rows` (n, width), over all heads together."""
    return torch.cosine_similarity(rows.double() @ key_weights(model, layer).T, query_bias(model, layer)[None], eps=0)


def effective_positions(model, reading):
    """Returns the effective positional embedding (EPE) of all positions, (positions, width) in fp32. `reading` is a key
    of READINGS."""
    p, block = model.transformer.wpe.weight.detach(), model.transformer.h[0]
    if reading == "block":
        return block(p[:, None])[:, 0]
    return p + block.mlp(block.ln_2(p) if reading == "normed" else p)


@contextlib.contextmanager
def removed(*handles):
    """Context manager that removes the forward hooks `handles` when its `with` block ends."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def zeroed(parameters):
    """Context manager that sets entries of parameters to zero and restores them when its `with` block ends. parameters:
    list of (tensor, index)."""
    saved = [(tensor, tensor.detach().clone()) for tensor, _ in parameters]
    try:
        for tensor, index in parameters:
            tensor.data[index] = 0
        yield
    finally:
        for tensor, value in saved:
            tensor.data.copy_(value)


def zero_query_bias(model, layers):
    return zeroed([(model.transformer.h[n].attn.c_attn.bias, slice(model.config.n_embd)) for n in layers])


def zero_key_columns(model, layers, coordinates):
    keys = slice(model.config.n_embd, 2 * model.config.n_embd)
    rows = torch.tensor(coordinates)  # transformers stores weights as (input, output)
    return zeroed([(model.transformer.h[n].attn.c_attn.weight, (rows, keys)) for n in layers])


def shift_stream(model, layer, changes):
    """Context manager that adds vectors to the residual stream before a layer. changes: {position: vector}."""

    def hook(module, arguments):
        stream = arguments[0].clone()
        for position, vector in changes.items():
            stream[:, position] += vector
        return (stream, *arguments[1:])

    return removed(model.transformer.h[layer].register_forward_pre_hook(hook))


def exchange_positions(model, replaced):
    """Context manager that replaces learned position embeddings at the input. replaced: {position: position whose
    embedding is used there instead}."""

    def hook(module, arguments, output):
        order = torch.arange(output.shape[-2])
        order[list(replaced)] = torch.tensor(list(replaced.values()))
        return output[..., order, :]

    return removed(model.transformer.wpe.register_forward_hook(hook))


def zero_first_token(model):
    def hook(module, arguments, output):
        output = output.clone()
        output[:, 0] = 0
        return output

    return removed(model.transformer.wte.register_forward_hook(hook))


@contextlib.contextmanager
def first_layers(model, count):
    """Context manager that shortens the model to its first `count` layers."""
    layers = model.transformer.h
    model.transformer.h = layers[:count]
    try:
        yield
    finally:
        model.transformer.h = layers


def attention(model, ids):
    """Returns the attention weights of all layers, each (texts, heads, queries, keys)."""
    return model.transformer(ids, output_attentions=True, use_cache=False).attentions


def mean_attention(weights):
    """Returns three quantities for each text and layer: the mean weight on the first key and on the second key
    ("first", "second"; means over heads and later queries), and the share of heads with an attention sink ("sink")."""
    found = {"first": [], "second": [], "sink": []}
    for layer in weights:
        found["first"].append(layer[:, :, 1:, 0].mean((1, 2)))
        found["second"].append(layer[:, :, 2:, 1].mean((1, 2)))
        found["sink"].append((layer[..., 0].mean(2) > SINK).double().mean(1))
    return {key: rounded(torch.stack(values, 1)) for key, values in found.items()}


def interventions(model, epe, massive, layers):
    """Returns {name of the intervention: function that returns its context manager}. Interventions 1 and 5 change all
    layers in `layers`. Interventions 2 and 3 change the residual stream before the first of these layers; if this is
    layer 0, they change it before layer 1 instead. epe: {reading: effective positional embeddings}. massive: the key
    columns that intervention 5 sets to zero."""
    stream = max(1, layers[0])
    made = {
        "1": lambda: zero_query_bias(model, layers),
        "5": lambda: zero_key_columns(model, layers, massive),
    }
    for reading, e in epe.items():
        away, there = e[1] - e[0], e[0] - e[1]
        made[f"2 {reading}"] = lambda away=away: shift_stream(model, stream, {0: away})
        made[f"3 {reading}"] = lambda away=away, there=there: shift_stream(model, stream, {0: away, 1: there})
    return made


def everywhere(model, ids, epe, massive, pairs):
    """Measures the attention under every intervention, applied to all layers. 2' and 3' are versions of 2 and 3 that
    exchange position embeddings at the input. The controls of intervention 5 set random pairs of key columns to zero,
    chosen outside of the TOP largest coordinates of |EPE_0|."""
    layers = range(model.config.n_layer)
    order = epe["literal"][0].abs().argsort(descending=True)
    outside = order[min(TOP, len(order) // 4) :].tolist()
    random = np.random.default_rng(1)
    drawn = [random.choice(outside, 2, replace=False).tolist() for _ in range(pairs)]
    conditions = {"none": contextlib.nullcontext} | interventions(model, epe, massive, layers)
    conditions |= {
        "4": lambda: zero_first_token(model),
        "2'": lambda: exchange_positions(model, {0: 1}),
        "3'": lambda: exchange_positions(model, {0: 1, 1: 0}),
    }
    conditions |= {
        f"control {n}": lambda pair=pair: zero_key_columns(model, layers, pair) for n, pair in enumerate(drawn)
    }
    found, maps = {}, {}
    for name, context in conditions.items():
        with context():
            weights = attention(model, ids)
        found[name] = mean_attention(weights)
        shown = [layer.mean((0, 1))[:MAP_LENGTH, :MAP_LENGTH] for layer in weights]
        maps[name] = rounded(torch.stack(shown).mean(0), 2)
    return {"conditions": found, "maps": maps, "control_pairs": drawn}


def one_layer_at_a_time(model, ids, epe, massive):
    """Returns {intervention: list with one number per layer n}: the attention to the first position in layer n if only
    layer n is changed. Interventions 2 and 3 change the residual stream before layer n and do not apply to layer 0,
    where their value is None."""
    found = {}
    for layer in range(model.config.n_layer):
        for name, context in interventions(model, epe, massive, [layer]).items():
            values = found.setdefault(name, [])
            if layer == 0 and name not in ("1", "5"):
                values.append(None)
                continue
            with first_layers(model, layer + 1), context():
                weights = attention(model, ids)[layer]
            values.append(rounded(weights[:, :, 1:, 0].mean()))
    return found


def streams(model, ids):
    """Returns the residual stream before each layer, and the normalized input of each layer's attention: two lists of
    (texts, length, width)."""
    before, inputs, handles = [], [], []
    for block in model.transformer.h:
        handles.append(block.register_forward_pre_hook(lambda module, arguments: before.append(arguments[0])))
        handles.append(block.ln_1.register_forward_hook(lambda module, arguments, output: inputs.append(output)))
    with removed(*handles):
        model.transformer(ids, use_cache=False)
    return before, inputs


def variances(model, ids):
    """Compares the variance over channels at the first position with the other positions. Returns {"stream": [...],
    "values": [...]} with one number per text: the variance at the first position divided by the mean variance at the
    other positions, minus 1, as a mean over layers and heads. "stream" is the residual stream before each layer, and
    "values" are the value vectors of the heads."""
    before, inputs = streams(model, ids)
    found = {"stream": [], "values": []}
    for block, stream, x in zip(model.transformer.h, before, inputs):
        value = block.attn.c_attn(x)[..., -model.config.n_embd :].unflatten(2, (model.config.n_head, -1))
        for name, vectors in (("stream", stream[:, :, None]), ("values", value)):
            variance = vectors.var(3, unbiased=False)  # (texts, length, heads)
            found[name].append((variance[:, 0] / variance[:, 1:].mean(1) - 1).mean(1))
    return {name: rounded(torch.stack(layers).mean(0)) for name, layers in found.items()}


def delta(model, ids, epe):
    """Measures Delta_j in each layer. Also measures how much of its excess at the first position is explained by the
    first-order contribution of EPE, gamma . (g * (EPE_j - mean EPE_j)) / s_j. Here g is the weight of the layer norm,
    s_j is the standard deviation of the residual stream at position j. For a given s_j, the layer norm is linear."""
    found = []
    for layer, (before, x) in enumerate(zip(*streams(model, ids))):
        direction, block = gamma(model, layer), model.transformer.h[layer]
        values = x.double() @ direction
        first, others = values[:, 0], values[:, 1:]
        low, high = values.min().item(), values.max().item() + 1e-9
        entry = {
            "first": rounded(first),
            "others_mean": rounded(others.mean(1)),
            "others_std": rounded(others.std()),
            "range": [low, high],
            "histogram": {
                name: torch.histc(part, BINS, low, high).int().tolist()
                for name, part in (("first", first), ("others", others))
            },
            "cosine_input": rounded(alignment(model, layer, x[:, 0])),
            "cosine_without_epe": {},
            "from_epe": {},
        }
        scale = before.double().std(2, unbiased=False)
        for reading, e in epe.items():
            entry["cosine_without_epe"][reading] = rounded(alignment(model, layer, before[:, 0] - e[0]))
            centered = (e - e.mean(1, keepdim=True)).double()[: ids.shape[1]]
            share = (centered * block.ln_1.weight.double()) @ direction / scale
            entry["from_epe"][reading] = rounded((share[:, 0] - share[:, 1:].mean(1)).mean())
        found.append(entry)
    return found


def first_order(model, ids, epe):
    """Measures the effect of the position embedding p_i on the residual stream after the first layer, and compares it
    with these predictions: p_i alone; the derivative of the first layer along p_i at the input without p_i; and EPE_i
    in each reading.

    Returns {prediction: {"cosine": [...], "explained": [...]}}, one number per position of FIRST_ORDER_POSITIONS below
    the length. cosine: mean over texts. explained: 1 - sum of squared errors / sum of squared effects."""
    p, block = model.transformer.wpe.weight.detach(), model.transformer.h[0]
    inputs = model.transformer.wte(ids) + p[: ids.shape[1]]
    positions = [position for position in FIRST_ORDER_POSITIONS if position < ids.shape[1]]
    found = {name: {"cosine": [], "explained": []} for name in ("p", "derivative", *epe)}
    for position in positions:
        seen = inputs[:, : position + 1]
        without = seen.clone()
        without[:, -1] -= p[position]
        direction = torch.zeros_like(seen)
        direction[:, -1] = p[position]
        start, slope = torch.func.jvp(lambda x: block(x)[:, -1], (without,), (direction,))
        effect = block(seen)[:, -1] - start
        predictions = {"p": p[position], "derivative": slope} | {name: e[position] for name, e in epe.items()}
        for name, vector in predictions.items():
            cosine = torch.cosine_similarity(effect, vector.expand_as(effect)).mean()
            explained = 1 - (effect - vector).square().sum() / effect.square().sum()
            found[name]["cosine"].append(rounded(cosine))
            found[name]["explained"].append(rounded(explained))
    return {"positions": positions, "predictions": found}


def weights_alone(model, epe):
    """Measures the properties of EPE and gamma. They depend only on the weights of the model, not on texts."""
    layers = range(model.config.n_layer)
    found = {"epe": {}, "gamma": []}
    for reading, e in epe.items():
        cosines = [alignment(model, layer, e) for layer in layers]
        found["epe"][reading] = {
            "first": rounded(e[0], 4),
            "top": e[0].abs().argsort(descending=True)[:TOP].tolist(),
            "norms": rounded(e.norm(dim=1)[:2]) + [rounded(e.norm(dim=1)[1:].median())],
            "cosine_first": [rounded(c[0]) for c in cosines],
            "cosine_others_mean": [rounded(c[1:].mean()) for c in cosines],
            "cosine_others_std": [rounded(c[1:].std()) for c in cosines],
        }
    for layer in layers:
        size = gamma(model, layer).abs()
        found["gamma"].append({"mean": rounded(size.mean()), "std": rounded(size.std(unbiased=False))})
        tops = {n for reading in READINGS for n in found["epe"][reading]["top"]}
        found["gamma"][-1]["at"] = {str(n): rounded(size[n]) for n in sorted(tops)}
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
    repeated = attention(model, ids[:, 1:2].expand_as(ids))  # texts that repeat one token
    found |= {"variances": variances(model, ids), "repeated": mean_attention(repeated)}
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
