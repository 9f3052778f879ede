"""Tests of make_lazy with models of all supported families: saving and loading, repeated calls, parallelism."""

import copy
import json
import os
import pickle
import subprocess
import sys

import definition
import pytest
import torch
from naming import naming
from tiny import TINY

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
import lazy_attention.hf as hf  # noqa: E402
from torch import nn  # noqa: E402
from transformers import (  # noqa: E402
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)
from transformers.distributed import DistributedConfig  # noqa: E402

SHAPE = TINY | dict(intermediate_size=48, max_position_embeddings=64)
WRITER = os.environ.get("LAZY_TEST_MODELS")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 4.0],
    "original_max_position_embeddings": 25,
    "partial_rotary_factor": 0.5,
}
# Maps a name to (family, changes of the configuration). The changes enable features of a family that Llama does not
# have, and set values that differ from the defaults.
MODELS = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", dict(tie_word_embeddings=True)),
    "llama_other_theta": ("llama", dict(rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
    "llama3": ("llama", dict(rope_parameters=LLAMA3)),
    "llama_biases": ("llama", dict(attention_bias=True)),
    "llama_mlp_biases": ("llama", dict(mlp_bias=True)),
    "mistral": ("mistral", dict(sliding_window=None)),
    "mistral_window": ("mistral", dict(sliding_window=6)),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", dict(tie_word_embeddings=True)),
    "smollm3": ("smollm3", dict(no_rope_layers=[1, 0], bos_token_id=1)),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", dict(sliding_window=9, partial_rotary_factor=0.5)),
    "phi3_longrope": ("phi3", dict(rope_parameters=LONGROPE, original_max_position_embeddings=25)),
    "gemma2": ("gemma2", dict(sliding_window=6, attn_logit_softcapping=1.5, final_logit_softcapping=5.0)),
    "gemma3": ("gemma3_text", dict(sliding_window=6, sliding_window_pattern=2)),
    "gpt_oss": ("gpt_oss", dict(sliding_window=6, num_local_experts=2, num_experts_per_tok=1)),
    "granite_swa": ("granite_swa", dict(sliding_window=6)),
}
# Maps a name to arguments of make_lazy that override the arguments in `converted`.
CONVERSIONS = {
    "constant_offset": dict(offset="constant", tau_trainable=False, tau=-0.02),
    "no_bias": dict(distance_bias_window=0),
}
FAMILIES = [pytest.param(*value, id=name) for name, value in MODELS.items()]
IDS = torch.arange(60).view(2, 30) * 7 % 61


def built(family, changes=None):
    """Returns a model with random weights. Biases and norm weights are also random instead of 0 and 1."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {family}")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**SHAPE | (changes or {}))).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, parameter.mean().item(), 0.3)
    return model


def in_float64(model):
    model = copy.deepcopy(model).double()
    if "gpt_oss" in model.config.model_type:
        model.set_experts_implementation("eager")  # the grouped matrix product does not support float64
    return model


def llama(**changes):
    return built("llama", changes)


def converted(model, **changes):
    """Converts the model by make_lazy and sets different values of tau and bias in every head and layer."""
    hf.make_lazy(model, **dict(distance_bias_window=8, tau=-0.7, distance_bias_std=0.5) | changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lazy_tau"):
                parameter.add_(torch.rand_like(parameter) * 0.5)
    return model


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def greedy(model, **options):
    options = dict(max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None) | options
    return model.generate(IDS[:, :9], attention_mask=torch.ones_like(IDS[:, :9]), **options)


def per_head(model):
    return {n: t for n, t in model.state_dict().items() if n.endswith(("lazy_tau", "lazy_distance_bias"))}


def same_bits(model, other):
    a, b = model.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("family, changes", FAMILIES)
def test_default_conversion_does_not_change_the_logits(family, changes):
    model = built(family, changes)
    before = logits(model)
    ours = logits(hf.make_lazy(model, 8))
    assert (ours - before).abs().max() < 1e-5
    definition.close(ours, logits(in_float64(model)), before)
    assert sorted(map(tuple, (t.shape for t in per_head(model).values()))) == [(4,), (4,), (4, 8), (4, 8)]


@pytest.mark.parametrize("family, changes", FAMILIES)
def test_logits_and_gradients_match_the_definition(family, changes, monkeypatch):
    model = converted(built(family, changes))

    def run(model):
        result = model(IDS, labels=IDS, use_cache=False)
        result.loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        assert all(gradients[name].abs().sum() > 0 for name in gradients if "lazy_" in name)
        return result.logits.detach(), torch.cat([g.flatten() for g in gradients.values()])

    ours = run(copy.deepcopy(model))
    monkeypatch.setattr("lazy_attention.hf.attention.attention_or_decode", definition.attention)
    exact, plain = run(in_float64(model)), run(copy.deepcopy(model))
    definition.close(ours[0], exact[0], plain[0], "logits")
    definition.close(ours[1], exact[1], plain[1], "gradients")


@pytest.mark.slow
@pytest.mark.parametrize(
    "family, changes", [MODELS[name] for name in ("phi3_longrope", "gemma2", "gemma3", "granite_swa")]
)
def test_compiles_in_one_graph(family, changes):
    model = converted(built(family, changes))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(IDS, use_cache=False).logits, model(IDS, use_cache=False).logits)


@pytest.mark.parametrize("family, changes", FAMILIES)
def test_trained_model_round_trips_through_a_folder(family, changes, tmp_path):
    model = converted(built(family, changes)).train()
    start = {name: value.clone() for name, value in per_head(model).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(IDS, labels=IDS).loss.backward()
        optimizer.step()
    assert not any(torch.equal(start[name], value) for name, value in per_head(model).items())
    model.eval().save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert type(again) is type(model) and not again.training
    assert same_bits(again, model) and torch.equal(logits(again), logits(model))
    text = greedy(model)
    assert torch.equal(greedy(again), text)
    assert torch.equal(greedy(again, use_cache=False), text)
    assert torch.equal(greedy(again, cache_implementation="static"), text)
    again.save_pretrained(tmp_path / "twice")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "saved" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes()


@pytest.mark.parametrize("family", hf.FAMILIES)
def test_folder_extends_the_folder_of_the_base_family(family, tmp_path):
    """Checks config.json and the tensor names of saved models. They must not change in later versions, because the
    program `lazy` reads and writes such folders."""
    base = built(family)
    base.save_pretrained(tmp_path / "base")
    converted(base, tau=-0.25, distance_bias_std=0.125).save_pretrained(tmp_path / "lazy")
    plain, ours = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("base", "lazy"))
    assert ours == plain | {
        "model_type": f"lazy_{family}",
        "architectures": [f"Lazy{plain['architectures'][0]}"],
        "normalizer": "elastic_sink" if family in ("gpt_oss", "granite_swa") else "elastic",
        "offset": "per_visible",
        "offset_trainable": True,
        "offset_init": -0.25,
        "distance_bias_window": 8,
        "distance_bias_init_std": 0.125,
    }
    plain, ours = (safetensors.load_file(tmp_path / name / "model.safetensors") for name in ("base", "lazy"))
    own = {f"model.layers.{n}.self_attn.lazy_{name}" for n in range(2) for name in ("tau", "distance_bias")}
    assert ours.keys() == plain.keys() | own and all(torch.equal(ours[name], plain[name]) for name in plain)
    assert all(ours[name].dtype == torch.float32 for name in own)


@pytest.mark.parametrize("family, changes", FAMILIES)
def test_bfloat16_keeps_tau_and_the_bias_in_fp32(family, changes, tmp_path):
    model = converted(built(family, changes))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert again.model.layers[1].self_attn.o_proj.weight.dtype == torch.bfloat16
    found, expected = per_head(again), per_head(model)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.isfinite(logits(again)).all()


@pytest.mark.parametrize("case", CONVERSIONS)
def test_conversion_arguments_round_trip_through_a_folder(case, tmp_path):
    model = converted(llama(), **CONVERSIONS[case])
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same_bits(again, model) and torch.equal(logits(again), logits(model))
    trained = [{n for n, p in m.named_parameters() if p.requires_grad} for m in (model, again)]
    assert trained[0] == trained[1] and any("lazy_tau" in n for n in trained[0]) == (case == "no_bias")
    assert hf.make_lazy(again, **dict(distance_bias_window=8, tau=-0.7, distance_bias_std=0.5) | CONVERSIONS[case])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Saved converted models of all families: {name: (folder, model)}."""
    path, made = tmp_path_factory.mktemp("models"), {}
    cases = {name: (value, {}) for name, value in MODELS.items()}
    cases |= {name: (MODELS["llama"], arguments) for name, arguments in CONVERSIONS.items()}
    for name, (value, arguments) in cases.items():
        if value[0] in CONFIG_MAPPING:
            made[name] = path / name, converted(built(*value), **arguments)
            made[name][1].save_pretrained(path / name)
    return made


def test_logits_match_the_cpp_model(folders, tmp_path):
    if not WRITER:
        pytest.skip("LAZY_TEST_MODELS is not set to the program tests/write_models of a build folder")
    safetensors.save_file({"ids": IDS}, tmp_path / "ids.safetensors")
    for name, (folder, model) in folders.items():
        out = tmp_path / "out.safetensors"
        done = subprocess.run(
            [WRITER, "read", folder, tmp_path / "ids.safetensors", out], capture_output=True, text=True
        )
        if name == "llama_mlp_biases":
            assert done.returncode != 0 and "mlp_bias" in done.stderr
            continue
        assert done.returncode == 0, (name, done.stderr)
        difference = (safetensors.load_file(out)["logits"] - logits(model)).abs().max().item()
        print(f"{name}: maximum difference of logits in C++ {difference:.2e}")
        assert difference < 1e-4, name


def write_byte_tokenizer(folder):
    """Writes and returns a tokenizer with one token per byte."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@pytest.mark.parametrize("family, changes", [value for value in FAMILIES if value.id != "llama_mlp_biases"])
def test_lazy_convert_and_make_lazy_write_the_same_folder(lazy_binary, family, changes, tmp_path):
    model = built(family, changes | dict(vocab_size=256))
    model.save_pretrained(tmp_path / "base")
    write_byte_tokenizer(tmp_path / "base")
    command = [lazy_binary, "convert", tmp_path / "base", "--to", "lazy", "--window", "8", "-o", tmp_path / "lazy"]
    subprocess.run(command, check=True, capture_output=True)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "lazy")
    assert same_bits(found, hf.make_lazy(model, 8)) and type(found) is type(model)
    assert torch.equal(logits(found), logits(model))
    keys = ("normalizer", "offset", "offset_trainable", "offset_init", "distance_bias_window", "distance_bias_init_std")
    for key in keys:
        assert getattr(found.config, key) == getattr(model.config, key), key


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_lazy_eval_generate_and_sinks_read_the_folder(lazy_binary, name, tmp_path):
    text = "the quick brown fox jumps over the lazy dog; " * 8
    (tmp_path / "text.txt").write_text(text)
    family, changes = MODELS[name]
    model = converted(built(family, changes | dict(vocab_size=256, max_position_embeddings=512, bos_token_id=1)))
    model.save_pretrained(tmp_path / "saved")
    tokenizer = write_byte_tokenizer(tmp_path / "saved")
    ids = torch.tensor([tokenizer.encode(text).ids])

    def lazy(*arguments):
        done = subprocess.run([lazy_binary, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    taus = torch.cat([layer.self_attn.lazy_tau.detach() for layer in model.model.layers])
    stored = json.loads(lazy("info", "saved", "--json"))["tau"]
    for key in ("mean", "min", "max"):
        assert stored[key] == pytest.approx(getattr(taus, key)().item(), abs=1e-6)

    found = json.loads(lazy("eval", "saved", "--text", "text.txt", "--json"))["results"]["heldout"]["loss,none"]
    with torch.no_grad():
        after_bos = torch.cat((torch.tensor([[model.config.bos_token_id]]), ids), 1)  # also predicts the first token
        expected = model(after_bos, labels=after_bos).loss.item()
    print(f"loss of lazy eval {found:.6f}, in Python {expected:.6f}")
    assert abs(found - expected) < 1e-4

    prompt, greedy = text[:9], ("--temperature", "0", "--max-tokens", "12", "--json", "generated.json")
    lazy("generate", "saved", "--prompt", prompt, *greedy)
    start = torch.tensor([tokenizer.encode(prompt).ids])
    continued = model.generate(start, max_new_tokens=12, do_sample=False)[0, start.shape[1] :]
    written = json.loads((tmp_path / "generated.json").read_text())[0]["text"]
    assert written == tokenizer.decode(continued.tolist())

    measured = json.loads(lazy("sinks", "saved", "--text", "text.txt", "--json", "-"))
    assert measured["format"] == "lazy-sinks"


def test_shards_and_copies(tmp_path):
    model = converted(llama())
    other, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        other.model.layers[0].self_attn.lazy_tau.fill_(-0.25)
    other.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert same_bits(AutoModelForCausalLM.from_pretrained(tmp_path), other)
    assert torch.equal(logits(pickled), logits(model)) and not torch.equal(logits(other), logits(model))


def test_models_with_different_heads(tmp_path):
    model = converted(llama())
    model.save_pretrained(tmp_path / "saved")
    base = AutoModel.from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(base(IDS).last_hidden_state, model.model(IDS).last_hidden_state)
    torch.manual_seed(1)
    classifier = converted(LlamaForSequenceClassification(LlamaConfig(**SHAPE | dict(pad_token_id=0))).eval())
    classifier.save_pretrained(tmp_path / "classifier")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier")
    assert type(again) is type(classifier) and torch.equal(logits(again), logits(classifier))


def test_missing_tensors_are_initialized(tmp_path):
    """Loads a folder whose config.json describes a Lazy model but whose weights lack tau and the distance bias."""
    hf.make_lazy(llama(), 8, tau=-0.5, distance_bias_std=0.25).save_pretrained(tmp_path)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "lazy_" not in name}
    safetensors.save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    layer = AutoModelForCausalLM.from_pretrained(tmp_path).model.layers[0].self_attn
    assert torch.equal(layer.lazy_tau, torch.full((4,), -0.5)) and 0.1 < layer.lazy_distance_bias.std() < 0.4


@pytest.mark.parametrize(
    "key, value",
    [
        ("normalizer", "sigmoid"),
        ("offset", "sometimes"),
        ("distance_bias_window", -1),
        ("distance_bias_window", "8"),
        ("distance_bias_window", None),
        ("distance_bias_window", 0),
        ("distance_bias_init_std", -1.0),
        ("distance_bias_init_std", float("inf")),
        ("offset_init", float("nan")),
    ],
)
def test_folders_with_wrong_keys_are_rejected(key, value, tmp_path):
    hf.make_lazy(llama(), 8).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(Exception, match=naming(key, value)):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_gradient_checkpointing_gives_the_same_gradients(tmp_path):
    converted(llama()).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    model(IDS, labels=IDS).loss.backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(IDS, labels=IDS).loss.backward()
    assert all(torch.equal(plain[n], p.grad) for n, p in model.named_parameters())


def test_folder_has_the_tokenizer_class_of_the_base_family(tmp_path):
    """If the tokenizer_config.json of a checkpoint names a wrong class, AutoTokenizer selects the class by
    model_type."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    for family in ("phi3", "lazy_phi3"):
        folder = tmp_path / family
        CONFIG_MAPPING[family](**SHAPE).save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    found = [transformers.AutoTokenizer.from_pretrained(tmp_path / family) for family in ("phi3", "lazy_phi3")]
    assert type(found[0]) is type(found[1])
    assert found[0]("abab")["input_ids"] == found[1]("abab")["input_ids"] == [2, 2]


def test_folder_is_rejected_if_the_package_is_not_imported(tmp_path):
    converted(llama()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "lazy_llama"
    program = f"import transformers; transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "lazy_llama" in done.stderr.splitlines()[-1] + done.stderr


def test_training_continues_from_a_saved_folder(tmp_path):
    model = converted(llama())
    model.save_pretrained(tmp_path)
    fresh = hf.make_lazy(llama(), distance_bias_window=8)
    result = fresh.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"), strict=True)
    assert not result.missing_keys and not result.unexpected_keys
    assert torch.equal(logits(fresh), logits(model))


def test_training_continues_from_tensors_of_lazy_for_causal_lm(tmp_path):
    """Tests folders with the tensor names of LazyForCausalLM. `lazy train` writes such folders, and earlier versions of
    save_pretrained wrote them for converted Llama and Mistral models. Both must be readable."""
    settings = dict(offset_init=-0.7, distance_bias_window=8, distance_bias_init_std=0.5)
    torch.manual_seed(1)
    hf.LazyForCausalLM(hf.LazyConfig(**SHAPE | settings)).save_pretrained(tmp_path)
    source = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(source) is hf.LazyForCausalLM
    fresh = hf.make_lazy(llama(rope_parameters={"rope_type": "default", "rope_theta": 1.5e5}), distance_bias_window=8)
    fresh.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"), strict=True)
    assert (logits(fresh) - logits(source)).abs().max() < 1e-4


def other_families():
    small = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    yield transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4))
    yield transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**small, intermediate_size=48))
    yield transformers.FalconForCausalLM(transformers.FalconConfig(**small))
    yield transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4))


def test_error_for_unsupported_families_lists_supported_families():
    for model in other_families():
        with pytest.raises(ValueError, match=naming("make_lazy", model.config.model_type, *hf.FAMILIES)):
            hf.make_lazy(model)
    with pytest.raises(ValueError, match=naming("make_lazy", "Linear", *hf.FAMILIES)):
        hf.make_lazy(nn.Linear(2, 2))


def test_error_for_unsupported_families_gives_the_reason():
    reasons = ["rotary" if "rotary" in reason else "" for reason in map(refusal, other_families())]
    assert reasons == ["rotary", "", "", "rotary"]  # the reason is missing rotary positions only for GPT-2 and BLOOM


def refusal(model):
    with pytest.raises(ValueError, match=naming("make_lazy")) as error:
        hf.make_lazy(model)
    return str(error.value)


def test_wrapped_models_are_not_reported_as_another_family():
    wrapped = nn.DataParallel(llama())
    wrapped.config = wrapped.module.config
    with pytest.raises(ValueError, match=naming("make_lazy", "DataParallel", "llama", "wrapped")):
        hf.make_lazy(wrapped)


@pytest.mark.parametrize(
    "error, changes",
    [
        (TypeError, dict(tau="-1")),
        (TypeError, dict(tau=None)),
        (TypeError, dict(tau=[-1.0] * 4)),
        (TypeError, dict(tau=torch.full((4,), -1.0))),
        (ValueError, dict(tau=float("nan"))),
        (TypeError, dict(distance_bias_std="0.1")),
        (ValueError, dict(distance_bias_std=-1.0)),
        (ValueError, dict(distance_bias_window=2.0)),
        (ValueError, dict(offset="per_key")),
        (TypeError, dict(tau_trainable="no")),
        (TypeError, dict(tau_trainable=None)),
        (TypeError, dict(reset=None)),
    ],
)
def test_wrong_arguments_leave_the_model_unchanged(error, changes):
    (name,) = changes
    model = llama()
    with pytest.raises(error, match=naming(name)):
        hf.make_lazy(model, **changes)
    assert type(model) is LlamaForCausalLM and not any("lazy" in n for n, _ in model.named_parameters())


def test_models_that_share_a_configuration_are_independent():
    config = LlamaConfig(**SHAPE)
    first, second = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    before = logits(second)
    converted(first)
    assert type(config) is LlamaConfig and torch.equal(logits(second), before)
    assert (logits(hf.make_lazy(second, 4)) - before).abs().max() < 1e-5


def test_adapters_are_not_saved_without_a_base_that_can_be_loaded(tmp_path):
    model = converted(llama())
    model._hf_peft_config_loaded = True  # transformers' add_adapter sets this attribute
    with pytest.raises(ValueError, match=naming("save_pretrained", "adapters", "make_lazy")):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


# --- A second call of make_lazy ---


def test_a_second_call_does_not_reset_parameters():
    model = converted(llama())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert hf.make_lazy(model, distance_bias_window=8, tau=-0.7, distance_bias_std=0.5) is model
    with pytest.raises(ValueError, match=naming("make_lazy", "distance_bias_window", 8, 16, "reset=True")):
        hf.make_lazy(model, distance_bias_window=16, tau=-0.7, distance_bias_std=0.5)
    with pytest.raises(
        ValueError, match=naming("make_lazy", "tau", "-0.7", "0.0 (the default)", "reset=True")
    ) as error:
        hf.make_lazy(model, distance_bias_window=8, distance_bias_std=0.5)
    assert "distance_bias" not in str(error.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    hf.make_lazy(model, distance_bias_window=0, tau=-1.0, reset=True)
    attention = model.model.layers[0].self_attn
    assert torch.equal(attention.lazy_tau, torch.full((4,), -1.0)) and not hasattr(attention, "lazy_distance_bias")


def test_lazy_models_are_not_converted_again():
    config = hf.LazyConfig(**SHAPE)
    with pytest.raises(ValueError, match=naming("make_lazy", "LazyForCausalLM", "already")):
        hf.make_lazy(hf.LazyForCausalLM(config))


# --- Parallelism of transformers ---


@pytest.mark.parametrize(
    "options, names",
    [
        (dict(distributed_config=DistributedConfig(tp_plan="auto")), ("tp_plan", "FSDP2")),
        (dict(distributed_config=DistributedConfig(tp_size=2)), ("tp_size", "FSDP2")),
        (dict(distributed_config={"pp_size": 2}), ("pp_size", "FSDP2")),
        (
            dict(distributed_config=DistributedConfig(fsdp_size=2, fsdp_mixed_precision=True)),
            ("fsdp_mixed_precision", "shard_heads"),
        ),
        (dict(tp_plan="auto"), ("tp_plan", "FSDP2")),
    ],
)
@pytest.mark.parametrize("make", [lambda: hf.LazyForCausalLM(hf.LazyConfig(**SHAPE)), lambda: converted(llama())])
def test_unsupported_parallelism_is_rejected(make, options, names, tmp_path):
    model = make()
    assert model.config.base_model_tp_plan is None and model.config.base_model_pp_plan is None
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming(type(model).__name__, *names)):
        AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, distributed_config=DistributedConfig()) is not None
