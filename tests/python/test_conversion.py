"""Models converted by make_lazy: saving and loading, a second call, tensor parallelism."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from naming import naming
from tiny import TINY

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
import lazy_attention.hf as hf  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.distributed import DistributedConfig  # noqa: E402

SHAPE = TINY | dict(intermediate_size=48, max_position_embeddings=64)
WRITER = os.environ.get("LAZY_TEST_MODELS")


def llama(**changes):
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SHAPE | changes)).eval()


def mistral(**changes):
    torch.manual_seed(1)
    return MistralForCausalLM(MistralConfig(**SHAPE | changes)).eval()


def converted(model, **changes):
    """The model with a different tau and bias in every head and layer."""
    hf.make_lazy(model, **dict(distance_bias_window=8, tau=-0.7, distance_bias_std=0.5) | changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lazy_tau"):
                parameter.add_(torch.rand_like(parameter) * 0.5)
    return model


CASES = {
    "llama": lambda: converted(llama()),
    "llama_tied": lambda: converted(llama(tie_word_embeddings=True)),
    "llama_other_theta": lambda: converted(llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
    "llama3": lambda: converted(
        llama(
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        )
    ),
    "llama_constant_offset": lambda: converted(llama(), offset="constant", tau_trainable=False, tau=-0.02),
    "llama_no_bias": lambda: converted(llama(), distance_bias_window=0),
    "mistral": lambda: converted(mistral(sliding_window=None)),
    "mistral_window": lambda: converted(mistral(sliding_window=6)),
}


@pytest.mark.parametrize("case", CASES)
def test_save_and_load_give_the_same_logits_here_and_in_cpp(case, tmp_path):
    model, ids = CASES[case](), torch.randint(0, 61, (2, 30))
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert isinstance(again, hf.LazyForCausalLM)
    with torch.no_grad():
        expected = model(ids).logits
        found = again(ids).logits
    difference = (found - expected).abs().max().item()
    print(f"{case}: maximum difference of logits after save_pretrained and from_pretrained {difference:.2e}")
    assert difference < 1e-4
    for layer, other in zip(model.model.layers, again.model.layers):
        assert torch.equal(layer.self_attn.lazy_tau, other.attn.softmax_offset)
        assert layer.self_attn.lazy_tau.requires_grad == other.attn.softmax_offset.requires_grad
        bias = getattr(layer.self_attn, "lazy_distance_bias", None)
        assert (bias is None) == (other.attn.learnable_bias_diagonals is None)
        assert bias is None or torch.equal(bias, other.attn.learnable_bias_diagonals)
    if not WRITER:
        pytest.skip("LAZY_TEST_MODELS does not name the program tests/write_models of a build folder")
    safetensors.save_file({"ids": ids}, tmp_path / "ids.safetensors")
    subprocess.run(
        [WRITER, "read", tmp_path / "saved", tmp_path / "ids.safetensors", tmp_path / "out.safetensors"], check=True
    )
    in_cpp = safetensors.load_file(tmp_path / "out.safetensors")["logits"]
    difference = (in_cpp - expected).abs().max().item()
    print(f"{case}: maximum difference of logits in C++ {difference:.2e}")
    assert difference < 1e-4


def test_lazy_eval_generate_and_sinks_read_the_folder(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    binary = os.environ.get("LAZY_BINARY")
    if not binary:
        pytest.skip("LAZY_BINARY does not name the program lazy")
    text = "the quick brown fox jumps over the lazy dog; " * 8
    (tmp_path / "text.txt").write_text(text)
    model = converted(llama(vocab_size=256, max_position_embeddings=512))
    model.save_pretrained(tmp_path / "saved")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([], trainer)
    tokenizer.save(str(tmp_path / "saved" / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(text).ids])

    def lazy(*arguments):
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = json.loads(lazy("eval", "saved", "--text", "text.txt", "--json"))["results"]["heldout"]["loss,none"]
    with torch.no_grad():
        after_bos = torch.cat((torch.tensor([[model.config.bos_token_id]]), ids), 1)  # predicts the first token too
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


def test_bfloat16_models_and_shards(tmp_path):
    model, ids = llama(), torch.randint(0, 61, (1, 20))
    for parameter in model.parameters():  # model.to(torch.bfloat16) would round the frequencies of Llama's RoPE too
        parameter.data = parameter.data.to(torch.bfloat16)
    converted(model)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    attention = again.model.layers[1].attn
    assert attention.q_proj.weight.dtype == torch.bfloat16 and attention.softmax_offset.dtype == torch.float32
    assert torch.equal(attention.softmax_offset, model.model.layers[1].self_attn.lazy_tau)
    wide = copy.deepcopy(model).float()
    with torch.no_grad():
        assert (again.float()(ids).logits - wide(ids).logits).abs().max() < 1e-4


def test_copies_save_their_own_parameters(tmp_path):
    model = converted(llama())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].self_attn.lazy_tau.fill_(-0.25)
    other.save_pretrained(tmp_path)
    tau = AutoModelForCausalLM.from_pretrained(tmp_path).model.layers[0].attn.softmax_offset
    assert torch.equal(tau, torch.full((4,), -0.25))


def test_without_the_package_the_folder_is_refused(tmp_path):
    converted(llama()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "lazy_attention" and config["architectures"] == ["LazyForCausalLM"]
    program = f"import transformers; transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "lazy_attention" in done.stderr.splitlines()[-1] + done.stderr


def test_training_continues_from_a_saved_folder(tmp_path):
    model, ids = converted(llama()), torch.randint(0, 61, (1, 20))
    model.save_pretrained(tmp_path)
    fresh = hf.make_lazy(llama(), distance_bias_window=8)
    result = fresh.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"), strict=True)
    assert not result.missing_keys and not result.unexpected_keys
    with torch.no_grad():
        assert torch.equal(fresh(ids).logits, model(ids).logits)
    fresh.load_state_dict(model.state_dict())  # its own names are accepted as well


REFUSED = {
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)), ("llama", "mistral", "qwen2")),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)), ("llama", "mistral", "qwen3")),
    "biases": (lambda: llama(attention_bias=True), ("attention_bias", "False", "True")),
    "mlp_biases": (lambda: llama(mlp_bias=True), ("mlp_bias", "False", "True")),
    "gelu": (lambda: llama(hidden_act="gelu"), ("hidden_act", "silu", "gelu")),
    "classifier": (lambda: LlamaForSequenceClassification(LlamaConfig(**SHAPE)), ("causal language model",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_without_an_equal_layout_are_refused(case, tmp_path):
    make, names = REFUSED[case]
    model = hf.make_lazy(make(), 8)
    with pytest.raises(ValueError, match=naming("save_pretrained", "make_lazy", "torch.save", *names)):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_refused_models_are_stored_by_torch_save(tmp_path):
    """The way that the error message names."""
    model, ids = converted(Qwen3ForCausalLM(Qwen3Config(**SHAPE)).eval()), torch.randint(0, 61, (1, 20))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = hf.make_lazy(Qwen3ForCausalLM(Qwen3Config(**SHAPE)).eval(), 8)
    again.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(again(ids).logits, model(ids).logits)


# --- A second call ---


def test_a_second_call_does_not_reset_parameters():
    model = converted(llama())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert hf.make_lazy(model, distance_bias_window=8, tau=-0.7, distance_bias_std=0.5) is model
    with pytest.raises(ValueError, match=naming("make_lazy", "distance_bias_window", 8, 16, "reset=True")):
        hf.make_lazy(model, distance_bias_window=16, tau=-0.7, distance_bias_std=0.5)
    with pytest.raises(ValueError, match=naming("make_lazy", "tau", "-0.7", "0.0", "reset=True")):
        hf.make_lazy(model, distance_bias_window=8, distance_bias_std=0.5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    hf.make_lazy(model, distance_bias_window=0, tau=-1.0, reset=True)
    attention = model.model.layers[0].self_attn
    assert torch.equal(attention.lazy_tau, torch.full((4,), -1.0)) and not hasattr(attention, "lazy_distance_bias")


def test_the_default_leaves_a_pretrained_model_nearly_unchanged():
    model, ids = llama(), torch.randint(0, 61, (2, 20))
    with torch.no_grad():
        before = model(ids).logits
        hf.make_lazy(model, 8)
        assert torch.equal(model.model.layers[0].self_attn.lazy_tau, torch.zeros(4))
        assert (model(ids).logits - before).abs().max() < 0.02 * before.abs().max()


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
def test_parallelism_that_would_be_wrong_is_refused(options, names, tmp_path):
    config = hf.LazyConfig(**SHAPE)
    assert config.base_model_tp_plan is None and config.base_model_pp_plan is None
    hf.LazyForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming("LazyForCausalLM", *names)):
        AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, distributed_config=DistributedConfig()) is not None
