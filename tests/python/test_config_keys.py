"""Tests with changed keys in config.json: either the logits of `lazy` match transformers, or `lazy` rejects the folder.

For each model_type that both programs read, the test builds tiny models, changes, removes or adds one to three keys of
their config.json and loads each variant in both programs. A variant that transformers does not load is skipped.

    LAZY_CONFIG_VARIANTS=200 .venv/bin/python tests/run_pytest.py tests/python/test_config_keys.py -s   # the full run

LAZY_CONFIG_VARIANTS (6) is the number of variants per family, LAZY_CONFIG_SEED (1) selects them.
"""

import collections
import contextlib
import copy
import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
import lazy_attention.hf  # noqa: E402, F401 - registers lazy_attention
from config_variants import ABSENT, FAMILIES, IRRELEVANT, ROPES, SLIDING, variant  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

pytestmark = pytest.mark.slow

VARIANTS = int(os.environ.get("LAZY_CONFIG_VARIANTS", "6"))
SEED = int(os.environ.get("LAZY_CONFIG_SEED", "1"))
LENGTH = 24  # tokens per sequence; longer than max_position_embeddings of the families with RoPE
TOLERANCE = 2e-4  # maximum difference between logits, divided by the largest logit


class Unreadable(Exception):
    """Raised if transformers cannot load the folder, or if its logits are not well defined."""


def randomized(model):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + p if p.dim() == 1 else torch.randn_like(p) * 0.15)
    return model.eval()


def write_weights(folder):
    """Writes random weights to the folder, with the shapes that its config.json requires."""
    torch.manual_seed(3)
    model = randomized(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32))
    with tempfile.TemporaryDirectory() as other:
        model.save_pretrained(other)
        shutil.move(Path(other) / "model.safetensors", folder / "model.safetensors")


def reference_logits(folder, ids):
    """Returns the logits of transformers. Writes new weights if the existing weights do not fit config.json."""
    lazy = '"lazy_attention"' in (folder / "config.json").read_text()
    for attempt in range(2):
        try:
            model, found = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="lazy" if lazy else "eager",
                output_loading_info=True,
            )
            fits = not any(found.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
            if fits:
                break
        except Exception as error:  # noqa: BLE001 - any exception means that transformers cannot load it
            fits, reason = False, repr(error)
        else:
            reason = f"the weights do not fit: {found}"
        if attempt == 0:
            try:
                write_weights(folder)
            except Exception as error:  # noqa: BLE001
                raise Unreadable(repr(error)) from error
    if not fits:
        raise Unreadable(reason)
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(Exception):
            model.set_experts_implementation("eager")
    try:
        with torch.no_grad():
            out = model.eval()(ids)
    except Exception as error:  # noqa: BLE001
        raise Unreadable(repr(error)) from error
    logits = out[0] if isinstance(out, tuple) else out.logits
    if logits.shape != (*ids.shape, model.config.vocab_size) or not torch.isfinite(logits).all():
        raise Unreadable("the logits are not finite")
    return logits


class Ours:
    """A process of the test program `write_models serve`. It computes the logits of our C++ model for many folders."""

    def __init__(self, program):
        self.process = subprocess.Popen([program, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, folder, ids):
        """Returns (logits, None), or (None, error message) if the folder is rejected."""
        out = folder / "ours.out"
        out.unlink(missing_ok=True)
        self.process.stdin.write(f"{folder}\t{ids}\t{out}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise AssertionError(f"the process ended with {self.process.wait()}")
        kind, _, message = answer.strip().partition(" ")
        if kind == "logits":
            return load_file(out)["logits"], None
        if kind != "refused" or "\\n" in message:
            raise AssertionError(f"expected an error of one line: {answer}")
        return None, message

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0


@pytest.fixture(scope="module")
def ours(built_file):
    process = Ours(built_file("LAZY_TEST_MODELS"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("ids") / "ids.safetensors"
    tensor = torch.randint(0, 50, (2, LENGTH))
    save_file({"ids": tensor}, path)
    return tensor, path


@pytest.fixture(autouse=True)
def quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(before)


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))


def base_folder(folder, family, given):
    """Writes a model folder with transformers."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **copy.deepcopy(given))
    randomized(AutoModelForCausalLM.from_config(config)).save_pretrained(folder)
    return folder, json.loads((folder / "config.json").read_text())


def difference(ours, folder, ids):
    """Compares the logits of transformers and `lazy` for one folder. Returns ("equal" | "different" | "refused" |
    "skipped", details)."""
    try:
        theirs = reference_logits(folder, ids[0])
    except Unreadable as reason:
        ours(folder, ids[1])  # `lazy` may reject the folder but must not crash
        return "skipped", str(reason)
    found, message = ours(folder, ids[1])
    if found is None:
        named = str(folder) in message
        return "refused" if named else "different", message.replace(str(folder), "FOLDER")
    distance = (found - theirs).abs().max().item() / theirs.abs().max().item()
    return ("equal" if distance < TOLERANCE else "different"), f"relative difference {distance:.1e}"


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 5000.0}
# Regression tests: changes of keys for which `lazy` once computed wrong logits, and the expected result. ABSENT removes
# a key.
CASES = [
    ("llama", "refused", {"is_causal": False}),
    ("llama", "equal", {"rope_parameters": YARN, "max_position_embeddings": ABSENT}),
    ("llama", "equal", {"rope_parameters": {**YARN, "original_max_position_embeddings": 8, "truncate": None}}),
    ("llama", "refused", {"rope_parameters": {**YARN, "original_max_position_embeddings": 8, "attention_factor": 0}}),
    ("llama", "equal", {"rope_parameters": ROPES[7], "original_max_position_embeddings": 64}),
    ("phi3", "equal", {"rope_scaling": {"type": "yarn", "short_factor": [1.5] * 4, "long_factor": [4, 3, 2, 1]}}),
    ("phi3", "equal", {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}),
    ("llama", "equal", {"norm_eps": 0.2, "rms_norm_eps": ABSENT}),
    ("llama", "equal", {"num_kv_heads": 4}),
    ("mistral", "refused", {"layer_types": SLIDING}),
    ("mistral", "refused", {"layer_types": SLIDING[1:] * 2}),
    ("gpt2", "refused", {"num_attention_heads": 8}),
    ("gpt2", "equal", {"activation_function": "gelu_python"}),
    ("gpt2", "equal", {"activation_function": "gelu_accurate"}),
    ("bloom", "refused", {"num_attention_heads": 8}),
    ("gpt_oss", "equal", {"rope_scaling": {}, "rope_parameters": ABSENT}),
    ("gpt_oss", "equal", {"experts_per_token": 1, "num_experts_per_tok": ABSENT}),
    ("granite_swa", "equal", {"hidden_act": "swish"}),
    ("lazy_attention", "equal", {"rope_parameters": ABSENT}),
    ("mamba2", "refused", {"rescale_prenorm_residual": True}),
    ("mamba2", "refused", {"norm_eps": 0.2}),
]


@pytest.mark.parametrize("family, expected, changes", CASES, ids=[f"{f}-{'-'.join(c)}" for f, _, c in CASES])
def test_regressions_of_changed_keys(family, expected, changes, ours, ids, tmp_path):
    folder, config = base_folder(tmp_path / "base", family, FAMILIES[family][0])
    config = {key: value for key, value in {**config, **changes}.items() if value is not ABSENT}
    write_config(folder, config)
    assert difference(ours, folder, ids)[0] == expected, difference(ours, folder, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_irrelevant_keys_are_accepted(family, ours, ids, tmp_path):
    folder, config = base_folder(tmp_path / "base", family, FAMILIES[family][0])
    for key in set(config) & set(IRRELEVANT):
        config[key] = IRRELEVANT[key][-1]
    write_config(folder, config)
    assert difference(ours, folder, ids)[0] == "equal", difference(ours, folder, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_changed_configurations_match_transformers_or_are_rejected(family, ours, ids, tmp_path):
    bases = []
    for n, given in enumerate(FAMILIES[family]):
        bases.append(base_folder(tmp_path / f"base{n}", family, given))
        assert difference(ours, bases[-1][0], ids)[0] == "equal", (given, difference(ours, bases[-1][0], ids))
    chance = random.Random(f"{family} {SEED}")
    count, refusals, silent = collections.Counter(), collections.defaultdict(list), []
    for n in range(VARIANTS):
        source, config = bases[n % len(bases)]
        config, changes = variant(chance, config)
        folder = tmp_path / "variant"
        shutil.copytree(source, folder)
        write_config(folder, config)
        try:
            result, text = difference(ours, folder, ids)
        except AssertionError as error:
            result, text = "different", str(error)
        shutil.rmtree(folder)
        count[result] += 1
        if result == "different":
            silent.append(f"base {n % len(bases)}, {changes}: {text}")
        if result == "refused":
            refusals[text].append(changes)
        if os.environ.get("LAZY_CONFIG_VERBOSE") and result == "skipped":
            print(f"skipped {changes}: {text[:150]}")
    print(f"\n{family}: {VARIANTS} variants, {dict(count)}")
    for text, changes in sorted(refusals.items()):
        print(f"  {len(changes)} x {text}   [{changes[0]}]")
    if silent:
        pytest.fail(f"{len(silent)} {family} variants differ from transformers:\n" + "\n".join(silent), pytrace=False)
