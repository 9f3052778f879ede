"""Generates small results of `lazy uptrain` for the tests of the report: two layers with two heads each."""

import copy

MODEL = {
    "heldout": {"loss": 3.0, "bits_per_byte": 1.5, "perplexity": 20.1, "tokens": 1000},
    "parameters": 1000,
    "device": "cpu",
    "attention": {
        "overall": {"sink_ratio": 0.12, "density": 0.88, "released_mass": 0.0, "alive_fraction": 1.0},
        "per_layer": {name: [0.1, 0.14] for name in ("sink_ratio", "density", "released_mass", "alive_fraction")},
        "per_head": {name: [[0.1, 0.1], [0.2, 0.08]] for name in ("sink_ratio", "alive_fraction")},
    },
    "positions": [{"from": 1, "to": 1, "loss": 5.0}, {"from": 2, "to": 2, "loss": 4.0}],
    "tasks": {"piqa": {"acc": 0.6, "acc_norm": 0.61, "headline": "acc"}},
}
TRAINING = {"loss": [[1, 4.0], [2, 3.5]], "validation": [[2, 3.4]], "tokens_per_second": 100.0}


def trained(kind, seed, loss):
    model = copy.deepcopy(MODEL) | {"model": kind, "seed": seed} | ({"training": TRAINING} if seed else {})
    model["heldout"]["loss"] = loss
    return model


def results(softmax=(2.0,), lazy=(2.1,)):
    """Returns the contents of a results.json. The arguments are the held-out losses for the seeds 1, 2, ..."""
    speed = [{"length": 128, "prompt_tokens": 128, "tokens": 8, "first_token_seconds": 0.1, "seconds_per_token": 0.002}]
    models = [copy.deepcopy(MODEL) | {"model": "before", "seed": None, "speed": speed}]
    models += [trained("untrained", None, 3.6)]
    models += [trained("softmax", seed, loss) for seed, loss in enumerate(softmax, 1)]
    models += [trained("lazy", seed, loss) for seed, loss in enumerate(lazy, 1)]
    return {
        "format": "lazy-uptrain/1",
        "date": "2026-01-31",
        "command": "lazy uptrain 'a <model>' --tokens 30M",
        "name": "a <model>",
        "steps": 2,
        "warmup_steps": 1,
        "arguments": {
            "tokens": 2048,
            "window": 16,
            "to": -1.0,
            "anneal": 0.35,
            "seq_len": 128,
            "batch_tokens": 1024,
            "lr": 3e-4,
            "weight_decay": 0.0,
            "dtype": "fp32",
            "gpus": 1,
        },
        "corpus": {"train": 4096, "validation": 1000, "passes": 0.5},
        "models": models,
    }
