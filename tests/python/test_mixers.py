"""Compares models with linear recurrences with their definitions in float64 and with other implementations. The C++
test program write_mixers writes the models and their results."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
from pathlib import Path

import definition
import linear_mixers
import pytest
import torch

safetensors = pytest.importorskip("safetensors.torch")

WRITER = os.environ.get("LAZY_TEST_MIXERS")
KINDS = [
    "retnet",
    "retnet_no_gate",
    "mamba2",
    "mamba2_two_groups",
    "mamba2_limited",
    "delta_net",
    "delta_net_no_convolution",
    "gated_delta_net",
    "gated_delta_net_no_gate",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not WRITER:
        pytest.skip("LAZY_TEST_MIXERS is not set to the program tests/write_mixers of a build folder")
    path = tmp_path_factory.mktemp("mixers")
    names = subprocess.run([WRITER, path], check=True, capture_output=True, text=True).stdout.split()
    assert names == KINDS
    return path


def load(folder, name, dtype):
    config = json.loads((folder / name / "config.json").read_text())
    weights = safetensors.load_file(folder / name / "model.safetensors")
    expected = safetensors.load_file(folder / f"{name}.safetensors")
    return {n: t.to(dtype).requires_grad_() for n, t in weights.items()}, config, expected


def logits_and_gradients(forward, weights, expected):
    logits = forward()
    gradients = torch.autograd.grad((logits * expected["weights"].to(logits.dtype)).sum(), list(weights.values()))
    return logits.detach(), dict(zip(weights, gradients))


def by_definition(folder, name, dtype, recurrence=linear_mixers.loop):
    weights, config, expected = load(folder, name, dtype)
    return logits_and_gradients(
        lambda: linear_mixers.logits(weights, config, expected["ids"], recurrence), weights, expected
    )


# Compares logits and gradients. Gradients of the same parameter in different layers are concatenated. Their error must
# be below a fixed bound. With more than 100 numbers, it must also be similar to the error of the plain fp32
# computation; fewer numbers, such as the decays of two heads, are not enough for this second comparison.
def compare(expected, exact, plain, what):
    definition.close(expected["logits"], exact[0], plain[0], what)
    kinds = {}
    for name in exact[1]:
        kinds.setdefault(".".join(name.split(".")[-2:]), []).append(name)
    for kind, names in kinds.items():
        ours = torch.cat([expected[f"gradient.{n}"].flatten() for n in names])
        true, theirs = (torch.cat([g[n].flatten() for n in names]) for g in (exact[1], plain[1]))
        assert (ours - true).abs().max() < 2e-4 * true.abs().max(), f"{what}: gradient of {kind}"
        if ours.numel() > 100:
            definition.close(ours, true, theirs, f"{what}: gradient of {kind}")


@pytest.mark.parametrize("name", KINDS)
def test_logits_and_gradients_match_the_definitions(folder, name):
    expected = load(folder, name, torch.float32)[2]
    compare(expected, by_definition(folder, name, torch.float64), by_definition(folder, name, torch.float32), name)


@pytest.mark.parametrize("name", KINDS)
def test_greedy_decode_with_state_matches_full_forward(folder, name):
    weights, config, expected = load(folder, name, torch.float64)
    ids, text = expected["ids"][:1, :37], expected["text"]
    with torch.no_grad():
        logits = linear_mixers.logits(weights, config, torch.cat((ids, text[None, :-1]), 1))
    assert logits[0, 36:].argmax(-1).tolist() == text.tolist()


def naive(*modules):
    """Returns the plain PyTorch reference functions of flash-linear-attention (FLA). They are loaded directly from
    their files, because importing the package requires Triton and a GPU."""
    spec = importlib.util.find_spec("fla")
    if spec is None or importlib.util.find_spec("einops") is None:
        pytest.skip("flash-linear-attention (the test was written for version 0.6.0) or einops is not installed")
    found = {}
    for module in modules:
        path = Path(spec.submodule_search_locations[0]) / "ops" / module / "naive.py"
        file = importlib.util.spec_from_file_location(f"fla_naive_{module}", path)
        loaded = importlib.util.module_from_spec(file)
        file.loader.exec_module(loaded)
        found.update(vars(loaded))
    try:
        version = importlib.metadata.version("fla-core")
    except importlib.metadata.PackageNotFoundError:
        version = "of an unknown version"
    print(f"fla-core {version}, {', '.join(modules)}")
    return found


def across(x):
    return x.transpose(1, 2)


def retention(q, k, v, log_decay, beta, scale, delta):
    return across(naive("retention")["naive_retention"](across(q), across(k), across(v)))


def simple_gla(q, k, v, log_decay, beta, scale, delta):
    return naive("simple_gla")["naive_recurrent_simple_gla"](q, k, v * beta[..., None], log_decay, scale=scale)[0]


def delta_rule(q, k, v, log_decay, beta, scale, delta):
    return across(naive("delta_rule")["delta_rule_recurrence"](*(across(t) for t in (q, k, v, beta)))[0])


def gated_delta_rule(q, k, v, log_decay, beta, scale, delta):
    return naive("gated_delta_rule")["naive_recurrent_gated_delta_rule"](q, k, v, beta, log_decay, scale=scale)[0]


@pytest.mark.data
@pytest.mark.parametrize(
    "name, peer",
    [
        ("retnet", retention),
        ("mamba2", simple_gla),
        ("mamba2_two_groups", simple_gla),
        ("delta_net", delta_rule),
        ("gated_delta_net", gated_delta_rule),
    ],
)
def test_logits_and_gradients_match_references_of_fla(folder, name, peer):
    expected = load(folder, name, torch.float32)[2]
    theirs = by_definition(folder, name, torch.float32, peer)
    compare(expected, by_definition(folder, name, torch.float64), theirs, name)


FLA_CLASSES = {"retnet": "RetNet", "mamba2": "Mamba2", "delta_net": "DeltaNet", "gated_delta_net": "GatedDeltaNet"}


def fla_models():
    pytest.importorskip("transformers")
    if importlib.util.find_spec("fla") is None or importlib.util.find_spec("einops") is None:
        pytest.skip("flash-linear-attention (the test was written for version 0.6.0) or einops is not installed")
    try:
        import fla.models
    except ImportError as error:
        pytest.skip(f"flash-linear-attention cannot be imported here: {error}")
    return fla.models


# The kernels of flash-linear-attention need a GPU. This test runs without a GPU and checks only tensor names, shapes
# and configurations.
@pytest.mark.data
@pytest.mark.parametrize("name", KINDS)
def test_fla_classes_load_our_folders(folder, name):
    models = fla_models()
    kind = max((k for k in FLA_CLASSES if name.startswith(k)), key=len)
    cls = getattr(models, FLA_CLASSES[kind] + "ForCausalLM")
    model, report = cls.from_pretrained(folder / name, output_loading_info=True)
    assert not any(report.values()), report
    ours = safetensors.load_file(folder / name / "model.safetensors")
    for parameter, tensor in model.state_dict().items():
        assert torch.equal(tensor, ours[parameter]), parameter


@pytest.mark.data
@pytest.mark.parametrize("kind", FLA_CLASSES)
def test_our_program_loads_fla_folders(kind, tmp_path):
    models, reader = fla_models(), os.environ.get("LAZY_TEST_MODELS")
    if not reader:
        pytest.skip("LAZY_TEST_MODELS is not set to the program tests/write_models of a build folder")
    sizes = {
        "retnet": {"num_heads": 2},
        "mamba2": {"head_dim": 32, "state_size": 16, "expand": 2},
        "delta_net": {"num_heads": 2},
        "gated_delta_net": {"num_heads": 2, "head_dim": 16},
    }[kind]
    config = getattr(models, FLA_CLASSES[kind] + "Config")(
        vocab_size=97, hidden_size=64, num_hidden_layers=2, initializer_range=0.1, **sizes
    )
    getattr(models, FLA_CLASSES[kind] + "ForCausalLM")(config).save_pretrained(tmp_path / "model")
    safetensors.save_file({"ids": torch.randint(97, (2, 30))}, tmp_path / "ids.safetensors")
    files = [tmp_path / "model", tmp_path / "ids.safetensors", tmp_path / "out.safetensors"]
    subprocess.run([reader, "read", *files], check=True)
    saved = json.loads((tmp_path / "model" / "config.json").read_text())
    weights = safetensors.load_file(tmp_path / "model" / "model.safetensors")
    ids, ours = safetensors.load_file(files[1])["ids"], safetensors.load_file(files[2])["logits"]
    exact, plain = (
        linear_mixers.logits({n: t.to(d) for n, t in weights.items()}, saved, ids)
        for d in (torch.float64, torch.float32)
    )
    definition.close(ours, exact, plain, kind)


@pytest.mark.parametrize("kind", ["mamba2", "mamba2_limited"])
def test_mamba2_folder_matches_transformers(folder, kind):
    transformers = pytest.importorskip("transformers")
    print(f"transformers {transformers.__version__}, Mamba2ForCausalLM")
    expected = safetensors.load_file(folder / f"{kind}.safetensors")
    found = []
    for dtype in (torch.float64, torch.float32):
        model, report = transformers.Mamba2ForCausalLM.from_pretrained(folder / kind, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"], report
        model = model.to(dtype)
        weights = dict(model.named_parameters())
        found.append(logits_and_gradients(lambda: model(expected["ids"]).logits, weights, expected))  # noqa: B023
    compare(expected, *found, kind)
