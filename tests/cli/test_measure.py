"""Tests of `lazy measure`: the list of its measurement kinds, wrong arguments, and its values, which the tests compare
with the results of other commands."""

import json
import shutil
import subprocess

import pytest


@pytest.fixture
def measure(root, lazy_binary):
    """Returns a function that runs `lazy measure` on the CPU and returns the finished process."""

    def run(*words):
        command = [lazy_binary, "measure", *words, "--device", "cpu"]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    return run


@pytest.fixture
def folders(root):
    folder = root / "tests/compatibility/v0.1"
    return folder / "lazy/model", folder / "corpus"


def test_list_names_kinds_with_settings(measure):
    kinds = {kind["kind"]: kind for kind in json.loads(measure("--list", "--json", "-").stdout)}
    assert kinds["spread"]["settings"] == {"texts": 32, "length": 64}
    assert {"model", "mask", "cache", "speed", "bias_range", "vectors"} <= kinds.keys()


def test_heldout_loss_equals_lazy_eval(measure, folders, lazy_binary):
    model, corpus = folders
    # lazy eval --bos puts BOS at the start of every sequence and before every document.
    settings = ("parts=heldout", "dtype=fp32", "bos_per_document=true", "eos_per_document=false")
    done = measure("model", model, "--corpus", corpus, *(word for item in settings for word in ("--set", item)))
    found = json.loads(done.stdout)
    assert found["kind"] == "model" and found["settings"]["parts"] == ["heldout"]
    command = [
        lazy_binary,
        "eval",
        model,
        "--tasks",
        "heldout",
        "--corpus",
        corpus,
        "--bos",
        "--device",
        "cpu",
        "--json",
    ]
    evaluated = json.loads(subprocess.run(list(map(str, command)), capture_output=True, text=True).stdout)
    loss = evaluated["results"]["heldout"]["loss,none"]
    assert found["values"]["heldout"]["loss"] == pytest.approx(loss, abs=1e-5)


def test_bias_range_equals_a_model_with_shortened_biases(measure, folders, tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    model, corpus = folders
    settings = ("--corpus", corpus, "--set", "texts=4", "--set", "length=31")

    def losses(folder):
        values = json.loads(measure("bias_range", folder, *settings).stdout)["values"]
        return dict(zip(values["distances"], values["loss"]))

    found = losses(model)
    assert list(found) == [0, 1, 2, 4, 7] and len(found[0]) == 4
    shutil.copytree(model, tmp_path / "model")
    [file] = (tmp_path / "model").glob("*.safetensors")
    tensors = safetensors.load_file(file)
    biases = [name for name in tensors if "bias" in name and tensors[name].shape[-1] == 8]
    assert biases
    for name in biases:
        tensors[name][..., 3:] = 0
    safetensors.save_file(tensors, file, {"format": "pt"})
    shortened = losses(tmp_path / "model")
    assert shortened[7] == pytest.approx(found[2], abs=1e-6)
    assert shortened[7] != pytest.approx(found[7], abs=1e-6)
    assert torch.tensor(found[0]).isfinite().all()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["spreads"], ["'spreads'", "did you mean 'spread'"]),
        (["spread", "MODEL"], ["--text", "--corpus", "neither"]),
        (["spread", "MODEL", "--corpus", "CORPUS", "--set", "text=3"], ["'text'", "texts", "length"]),
        (["spread", "MODEL", "--corpus", "CORPUS", "--set", "texts=many"], ["texts", "32", "'many'"]),
        (["model", "MODEL", "--corpus", "CORPUS", "--set", "parts=heldot"], ["heldout", "'heldot'"]),
        (["model", "MODEL", "--corpus", "/none"], ["--corpus", "/none"]),
        (["vectors", "MODEL", "--corpus", "CORPUS"], ["vectors", "--corpus"]),
        (["spread", "MODEL", "--corpus", "CORPUS", "--baseline", "a=b"], ["--baseline", "speed"]),
    ],
)
def test_wrong_arguments_give_one_line(measure, folders, words, names):
    places = {"MODEL": folders[0], "CORPUS": folders[1]}
    done = measure(*(places.get(word, word) for word in words))
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("lazy: measure: ") and all(name in line for name in names), line
