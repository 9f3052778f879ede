"""Writes run folders with invented values. docs/reference/run-directory.md describes the files."""

import json
import math

import numpy
from safetensors.numpy import save_file

WORDS = " The| first| element| of| the| array| is| re|moved| by| shift|,| which| short|ens| it|<b>|\n".split("|")
TEXTS = (("A pattern", "A pattern matches; the <first> alternative wins."), ("To open", " a file, use open."))


def log_lines(lazy, layers, steps, random):
    """Returns the lines of log.jsonl. The training loss of step n is 3.52 (Lazy) or 3.55 plus 4.6 exp(-n / 45) and
    noise. The validation loss is larger by 0.03 and has no noise."""
    lines = []
    for step in range(1, steps + 1):
        loss = (3.52 if lazy else 3.55) + 4.6 * math.exp(-step / 45)
        entry = {"step": step, "tokens": step * 2048, "time": 0.24 * step, "lr": 3e-3}
        entry["loss_metrics/global_avg_loss"] = loss + 0.1 * random.normal()
        entry["throughput(tps)"] = 8400.0 if step == 7 else 8000.0
        if step % 100 == 0:
            entry |= {"validation_metrics/loss": loss + 0.03, "validation_metrics/bits_per_byte": (loss + 0.03) / 2}
            for layer in range(layers):
                sink = (0.01 if lazy else 0.1 * step / steps) * (layer + 1) / layers
                values = {"sink_ratio": sink, "density": 1 - sink - 0.3 * lazy, "released_mass": 0.3 * lazy}
                values["alive_fraction"] = 0.4 - 0.1 * step / steps if lazy else 1.0
                values |= {"tau_mean": -1 - 0.002 * step / (layer + 1)} if lazy else {}
                entry |= {f"attention/layer_{layer:02}/{key}": value for key, value in values.items()}
        lines.append(json.dumps(entry) + "\n")
    return lines


def sinks(name, lazy, layers, heads, tokens, maps, random):
    sink = random.uniform(0, 0.004 if lazy else 0.5, (layers, heads))
    released = random.uniform(0.4, 0.8, (layers, heads)) * lazy
    alive = random.uniform(0.1, 0.4, (layers, heads)) if lazy else numpy.ones((layers, heads))
    per_head = {"sink_ratio": sink, "density": 1 - sink - released, "released_mass": released}
    per_head |= {"alive_fraction": alive, "sink_1_0.3": 0.9 * (sink > 0.3)}
    found = []
    for layer, head in maps:
        rows = [random.dirichlet(numpy.ones(i + 1)) for i in range(tokens)]
        rows = [numpy.maximum(0, row - lazy / len(row)).tolist() for row in rows]
        words = [WORDS[i % len(WORDS)] for i in range(tokens)]
        found.append({"layer": layer, "head": head, "tokens": words, "weights": rows})
    return {
        "format": "lazy-sinks",
        "version": 2,
        "model": {"path": f"runs/{name}/model", "normalizer": "elastic" if lazy else "softmax"},
        "text": {"path": "book.txt"},
        "settings": {"length": 256, "samples": 64, "bos": False, "sink_length": 64, "sink_samples": 100},
        "overall": {key: float(values.mean()) for key, values in per_head.items()},
        "per_head": {key: values.tolist() for key, values in per_head.items()},
        "attention_maps": found,
        "command": f"lazy sinks runs/{name}/model --text book.txt --json runs/{name}/sinks.json",
    }


def write_run(parent, name="lazy", lazy=True, layers=4, heads=6, tokens=20, maps=((0, 1), (3, 1)), steps=1000, seed=1):
    """Writes the run folder parent/name and returns its path. If `lazy` is true, its model has offsets and biases."""
    random, folder = numpy.random.default_rng(seed), parent / name
    (folder / "model").mkdir(parents=True, exist_ok=True)
    kind, loss = ("lazy", 3.6732) if lazy else ("transformer", 3.6989)
    heldout = {"loss,none": loss, "bits_per_byte,none": loss / 2, "perplexity,none": math.exp(loss)}
    word = {"word_perplexity,none": 612.4 if lazy else 634.9}
    command = f"lazy eval runs/{name}/model --corpus corpus"
    model = {"hidden_size": 192, "num_hidden_layers": layers, "normalizer": "elastic" if lazy else "softmax"}
    files = {
        "run.json": {"name": name, "kind": kind, "model": model, "steps": steps},
        "config.toml": f'[model]\nkind = "{kind}"\nnum_heads = {heads}\n\n[training]\nsteps = {steps}\nlr = 4e-3\n',
        "log.jsonl": "".join(log_lines(lazy, layers, steps, random)),
        "eval.json": {"results": {"heldout": heldout, "wikitext": word}, "config": {"command": command}},
        "sinks.json": sinks(name, lazy, layers, heads, tokens, maps, random),
        "samples.json": [{"prompt": prompt, "text": text} for prompt, text in TEXTS],
        "model/config.json": {"offset_init": -1.0},
    }
    for file, content in files.items():
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    tensors = {"model.embeddings.weight": numpy.ones((5, 4), "float32")}
    bias = 0.5 * numpy.exp(-numpy.arange(256) / 8) - 0.1 * numpy.arange(heads)[:, None]
    for layer in range(layers if lazy else 0):
        attention = f"model.layers.{layer}.attn."
        tensors[attention + "softmax_offset"] = numpy.full(heads, -1 - 0.25 * layer, "float32")
        tensors[attention + "learnable_bias_diagonals"] = bias.astype("float32")
    save_file(tensors, folder / "model/model.safetensors")
    return folder
