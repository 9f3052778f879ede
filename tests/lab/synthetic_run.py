"""Writes run folders with invented values. docs/reference/run-directory.md describes the files."""

import json
import math
import random

import numpy

WORDS = " The| first| element| of| the| array| is| re|moved| by| shift|,| which| short|ens| it|<b>|\n".split("|")


def log_lines(lazy, layers, steps, generator):
    """Returns the lines of log.jsonl. The training loss of step n is loss(n), and the validation loss is larger by
    0.03."""
    lines = []
    for step in range(1, steps + 1):
        loss = (3.52 if lazy else 3.55) + 4.6 * math.exp(-step / 45)
        entry = {"step": step, "tokens": step * 2048, "time": 0.24 * step, "lr": 3e-3}
        entry["loss_metrics/global_avg_loss"] = loss + 0.1 * generator.gauss(0, 1)
        entry["throughput(tps)"] = 8400.0 if step == 7 else 8000.0
        if step % 100 == 0:
            entry["validation_metrics/loss"] = loss + 0.03
            entry["validation_metrics/bits_per_byte"] = (loss + 0.03) / 2
            for layer in range(layers):
                sink = (0.01 if lazy else 0.1 * step / steps) * (layer + 1) / layers
                values = {"sink_ratio": sink, "density": 1 - sink - 0.3 * lazy, "released_mass": 0.3 * lazy}
                values["alive_fraction"] = 0.4 - 0.1 * step / steps if lazy else 1.0
                values |= {"tau_mean": -1 - 0.002 * step / (layer + 1)} if lazy else {}
                entry |= {f"attention/layer_{layer:02}/{key}": value for key, value in values.items()}
        lines.append(json.dumps(entry) + "\n")
    return lines


def sinks(name, lazy, layers, heads, tokens, maps, generator):
    per_head = {key: [] for key in ("sink_ratio", "density", "released_mass", "alive_fraction", "sink_1_0.3")}
    for _ in range(layers):
        sink = [0.004 * generator.random() if lazy else 0.5 * generator.random() for _ in range(heads)]
        released = [0.4 + 0.4 * generator.random() if lazy else 0.0 for _ in range(heads)]
        density = [1 - a - b for a, b in zip(sink, released)]
        alive = [0.1 + 0.3 * generator.random() if lazy else 1.0 for _ in range(heads)]
        strong = [0.9 if value > 0.3 else 0.0 for value in sink]
        for key, row in zip(per_head, (sink, density, released, alive, strong)):
            per_head[key].append(row)
    words = [WORDS[i % len(WORDS)] for i in range(tokens)]
    found = []
    for layer, head in maps:
        raw = [[math.exp(generator.gauss(0, 1.5)) for _ in range(i + 1)] for i in range(tokens)]
        weights = [[w / sum(row) for w in row] for row in raw]
        if lazy:
            weights = [[max(0.0, w - 1 / len(row)) for w in row] for row in weights]
        found.append({"layer": layer, "head": head, "tokens": words, "weights": weights})
    return {
        "format": "lazy-sinks",
        "version": 2,
        "model": {"path": f"runs/{name}/model", "normalizer": "elastic" if lazy else "softmax"},
        "text": {"path": "book.txt"},
        "settings": {"length": 256, "samples": 64, "bos": False, "sink_length": 64, "sink_samples": 100},
        "overall": {key: sum(map(sum, rows)) / (layers * heads) for key, rows in per_head.items()},
        "per_head": per_head,
        "attention_maps": found,
        "command": f"lazy sinks runs/{name}/model --text book.txt --json runs/{name}/sinks.json",
    }


def safetensors(tensors):
    """Returns the bytes of a safetensors file with {name: array}; a uint16 array is stored as bf16."""
    header, data = {}, b""
    for name, array in tensors.items():
        kind = {"float32": "F32", "uint16": "BF16"}[str(array.dtype)]
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_run(parent, name="lazy", lazy=True, layers=4, heads=6, tokens=20, maps=((0, 1), (3, 1)), steps=1000, seed=1):
    """Writes the run folder parent/name and returns its path. If `lazy` is true, the folder contains a model with
    offsets and distance biases."""
    generator, folder = random.Random(seed), parent / name
    folder.mkdir(parents=True, exist_ok=True)
    write = lambda file, value: (folder / file).write_text(value if isinstance(value, str) else json.dumps(value))
    normalizer = "elastic" if lazy else "softmax"
    model = {"hidden_size": 192, "num_hidden_layers": layers, "normalizer": normalizer}
    write("run.json", {"name": name, "kind": "lazy" if lazy else "transformer", "model": model, "steps": steps})
    kind = "lazy" if lazy else "transformer"
    write("config.toml", f'[model]\nkind = "{kind}"\nnum_heads = {heads}\n\n[training]\nsteps = {steps}\nlr = 4e-3\n')
    write("log.jsonl", "".join(log_lines(lazy, layers, steps, generator)))
    loss = 3.6732 if lazy else 3.6989
    heldout = {"loss,none": loss, "bits_per_byte,none": loss / 2, "perplexity,none": math.exp(loss)}
    word = {"word_perplexity,none": 612.4 if lazy else 634.9}
    command = f"lazy eval runs/{name}/model --corpus corpus"
    write("eval.json", {"results": {"heldout": heldout, "wikitext": word}, "config": {"command": command}})
    write("sinks.json", sinks(name, lazy, layers, heads, tokens, maps, generator))
    texts = ("A pattern", "A pattern matches; the <first> alternative wins."), ("To open", " a file, use open.")
    write("samples.json", [{"prompt": prompt, "text": text} for prompt, text in texts])
    (folder / "model").mkdir(exist_ok=True)
    write("model/config.json", {"offset_init": -1.0})
    tensors = {"model.embeddings.weight": numpy.ones((5, 4), "float32")}
    for layer in range(layers if lazy else 0):
        name = f"model.layers.{layer}.attn."
        tensors[name + "softmax_offset"] = numpy.full(heads, -1 - 0.25 * layer, "float32")
        bias = [[0.5 * math.exp(-d / 8) - 0.1 * head for d in range(256)] for head in range(heads)]
        tensors[name + "learnable_bias_diagonals"] = numpy.array(bias, "float32")
    (folder / "model/model.safetensors").write_bytes(safetensors(tensors))
    return folder
