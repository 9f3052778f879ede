"""Compares LazyForCausalLM, the transformers class for our model folders, with the C++ model."""

import copy
import os
import shutil
import subprocess

import definition
import pytest
import torch
from naming import naming
from tiny import TINY

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
import lazy_attention.hf as hf  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

WRITER = os.environ.get("LAZY_TEST_MODELS")
KINDS = ["lazy", "grouped_tied", "constant_offset_fixed", "window_no_bias", "softmax_with_bias", "gated_off_by_one"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not WRITER:
        pytest.skip("LAZY_TEST_MODELS is not set to the program tests/write_models of a build folder")
    path = tmp_path_factory.mktemp("models")
    names = subprocess.run([WRITER, "write", path], check=True, capture_output=True, text=True).stdout.split()
    assert names == KINDS
    return path


def load(folder, name, **options):
    model = AutoModelForCausalLM.from_pretrained(folder / name, **options)
    assert isinstance(model, hf.LazyForCausalLM) and not model.training
    return model


@pytest.mark.parametrize("name", KINDS)
def test_logits_and_greedy_text_match_the_cpp_model(folder, name):
    expected = safetensors.load_file(folder / f"{name}.safetensors")
    model, ids = load(folder, name), expected["ids"]
    with torch.no_grad():
        ours = model(ids).logits
        by_positions = model(ids, position_ids=torch.arange(ids.shape[1])[None]).logits
        exact = load(folder, name).double()(ids).logits
    largest = (ours - expected["logits"]).abs().max().item()
    print(
        f"{name}: maximum difference of logits {largest:.2e} (logits up to {exact.abs().max():.1f}); rms from "
        f"float64: C++ {definition.distance_of(expected['logits'], exact):.2e}, "
        f"LazyForCausalLM {definition.distance_of(ours, exact):.2e}"
    )
    definition.close(ours, exact, expected["logits"], name)
    definition.close(expected["logits"], exact, ours, name)
    definition.close(by_positions, exact, expected["logits"], name)
    prompt = ids[:1, :7]
    for cached in (True, False):
        text = model.generate(
            prompt, max_new_tokens=24, do_sample=False, use_cache=cached, eos_token_id=None, pad_token_id=0
        )
        assert torch.equal(text[0, 7:], expected["text"])


@pytest.mark.parametrize("name", KINDS)
def test_save_pretrained_round_trips_in_python_and_cpp(folder, name, tmp_path):
    expected = safetensors.load_file(folder / f"{name}.safetensors")
    model = load(folder, name)
    model.save_pretrained(tmp_path / "saved")
    ours, theirs = (safetensors.load_file(p / "model.safetensors") for p in (tmp_path / "saved", folder / name))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
    with torch.no_grad():
        assert torch.equal(load(tmp_path, "saved")(expected["ids"]).logits, model(expected["ids"]).logits)
    out = tmp_path / "out.safetensors"
    subprocess.run([WRITER, "read", tmp_path / "saved", folder / f"{name}.safetensors", out], check=True)
    assert torch.equal(safetensors.load_file(out)["logits"], expected["logits"]), "C++ logits must be equal"


def test_sharded_folder_can_be_loaded(folder, tmp_path):
    model = load(folder, "lazy")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    ids = torch.randint(0, 211, (1, 12))
    assert torch.equal(load(tmp_path, "shards")(ids).logits, model(ids).logits)


def test_configuration_round_trip(folder, tmp_path):
    config = AutoConfig.from_pretrained(folder / "constant_offset_fixed")
    assert isinstance(config, hf.LazyConfig)
    assert (config.offset, config.offset_trainable, config.offset_init) == ("constant", False, -0.01)
    assert config.rope_parameters["rope_theta"] == 1.5e5 and config.sliding_window is None
    assert AutoConfig.from_pretrained(folder / "window_no_bias").sliding_window == 9
    assert not load(folder, "constant_offset_fixed").model.layers[0].attn.softmax_offset.requires_grad
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path).to_dict()
    assert again | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}


def test_bfloat16_model_keeps_per_head_parameters_in_fp32(folder, monkeypatch):
    fixed = load(folder, "constant_offset_fixed", dtype=torch.bfloat16).model.layers[0].attn.softmax_offset
    assert fixed.dtype == torch.float32 and torch.equal(fixed, torch.full((4,), -0.01))
    model = load(folder, "lazy", dtype=torch.bfloat16)
    attention = model.model.layers[1].attn
    assert attention.q_proj.weight.dtype == torch.bfloat16
    assert attention.softmax_offset.dtype == attention.learnable_bias_diagonals.dtype == torch.float32
    ids = torch.randint(0, 211, (2, 60))
    with torch.no_grad():
        ours = model(ids).logits
        exact = copy.deepcopy(model).double()(ids).logits

        def plain(q, k, v, distance_bias, tau, **arguments):
            assert arguments.pop("sink") is None
            return definition.attention(q.float(), k.float(), v.float(), distance_bias, tau, **arguments).to(q.dtype)

        monkeypatch.setattr("lazy_attention.hf.attention.attention_or_decode", plain)
        definition.close(ours, exact, model(ids).logits)


def small(**changes):
    torch.manual_seed(2)
    settings = TINY | dict(intermediate_size=48, distance_bias_window=8, distance_bias_init_std=0.5)
    return hf.LazyForCausalLM(hf.LazyConfig(**settings | changes))


def test_initial_values():
    model = small(offset_init=-0.5, distance_bias_window=4000)
    attention = model.model.layers[0].attn
    assert torch.equal(attention.softmax_offset, torch.full((4,), -0.5))
    assert 0.48 < attention.learnable_bias_diagonals.std().item() < 0.52
    assert 0.25 < attention.q_proj.weight.std().item() < 0.35
    assert torch.equal(model.model.norm.weight, torch.ones(32))
    assert small().config._attn_implementation == "lazy"


def test_padding_packing_and_caches():
    model, ids = small().eval(), torch.randint(0, 61, (1, 12))
    with torch.no_grad():
        alone = model(ids).logits
        exact = small().eval().double()(ids).logits
        left = torch.cat((torch.zeros(1, 5, dtype=torch.long), ids), 1)
        mask = (torch.arange(17) >= 5).long()[None]
        definition.close(model(left, attention_mask=mask).logits[:, 5:], exact, alone)
        twice = torch.cat((ids, ids), 1)
        packed = model(twice, position_ids=torch.arange(12).repeat(2)[None], use_cache=False).logits
        definition.close(packed, torch.cat((exact, exact), 1), torch.cat((alone, alone), 1))
        first = model(ids[:, :7], use_cache=True)
        rest = model(ids[:, 7:], past_key_values=first.past_key_values).logits
        definition.close(torch.cat((first.logits, rest), 1), exact, alone)
    greedy = dict(max_new_tokens=10, do_sample=False, pad_token_id=0)
    expected = model.generate(ids, **greedy)[:, 12:]
    assert torch.equal(model.generate(left, attention_mask=mask, **greedy)[:, 17:], expected)
    assert torch.equal(model.generate(ids, cache_implementation="static", **greedy)[:, 12:], expected)
    assert model.generate(ids, num_beams=3, **greedy).shape == (1, 22)


@pytest.mark.slow
def test_trains_with_checkpointing_and_compiles():
    model, ids = small().train(), torch.randint(0, 61, (4, 16))

    def grads():
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters()}

    plain = grads()
    assert all(g.abs().sum() > 0 for g in plain.values())
    model.gradient_checkpointing_enable()
    for name, gradient in grads().items():
        assert torch.equal(plain[name], gradient), name
    model.gradient_checkpointing_disable()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(ids, labels=ids, use_cache=False).loss
    torch.testing.assert_close(loss, model(ids, labels=ids).loss)
    loss.backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        last = model(ids, labels=ids).loss
        last.backward()
        optimizer.step()
    assert last < loss


def test_outputs():
    model, ids = small().eval(), torch.randint(0, 61, (2, 9))
    with torch.no_grad():
        full = model(ids, output_hidden_states=True, labels=ids)
        torch.testing.assert_close(
            model(ids, logits_to_keep=1).logits, full.logits[:, -1:]
        )  # not bitwise equal, because the matrix product has a different shape
        assert len(full.hidden_states) == 3
        torch.testing.assert_close(model.lm_head(full.hidden_states[-1]), full.logits)
        shifted = torch.nn.functional.cross_entropy(full.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        torch.testing.assert_close(full.loss, shifted)
        embedded = model(inputs_embeds=model.get_input_embeddings()(ids)).logits
    assert torch.equal(embedded, full.logits)


@pytest.mark.parametrize(
    "changes, names",
    [
        (dict(num_key_value_heads=3), ("num_attention_heads", "num_key_value_heads", 3)),
        (dict(head_dim=7), ("head_dim", 7)),
        (dict(positions="alibi"), ("positions", "rope", "alibi")),
        (dict(rope_interleaved=True), ("positions", "rope", "interleaved")),
        (dict(attention_bias=True), ("attention_bias", "mlp_bias")),
        (dict(hidden_act="gelu"), ("hidden_act", "silu", "gelu")),
        (
            dict(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
            ("rope_type", "default", "llama3", "linear"),
        ),
    ],
)
def test_unsupported_configurations_are_rejected(changes, names):
    with pytest.raises(Exception, match=naming(*names)):
        small(**changes)


def test_other_attention_implementations_are_rejected(folder, tmp_path):
    shutil.copytree(folder / "lazy", tmp_path / "lazy")
    with pytest.raises(ValueError, match=naming('attn_implementation="lazy"')):
        load(tmp_path, "lazy", attn_implementation="eager")


def test_output_attentions_names_probe(folder):
    names = naming("output_attentions=False", "lazy_attention.probe")
    model, ids = small(), torch.randint(1, 61, (1, 9))
    for module in (model, model.model):
        with pytest.raises(ValueError, match=names):
            module(ids, output_attentions=True)
    with pytest.raises(ValueError, match=names):
        model.generate(ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(ValueError, match=names):
        model.config.output_attentions = True
    with pytest.raises(Exception, match=names):
        load(folder, "lazy", output_attentions=True)
    with pytest.raises(Exception, match=names):
        small(output_attentions=True)
    model.config.output_attentions = False
    assert torch.isfinite(model(ids).logits).all()


def test_other_attention_implementations_cannot_be_set_later():
    model, ids = small().eval(), torch.randint(1, 61, (1, 9))
    assert not model.is_backend_compatible()  # vLLM calls this method before it replaces the attention
    with pytest.raises(ValueError, match=naming("LazyForCausalLM", 'attn_implementation="lazy"', "sdpa")) as error:
        model.set_attn_implementation("sdpa")
    assert "probe" not in str(error.value)
    with pytest.raises(ValueError, match=naming("LazyForCausalLM", "eager", "lazy_attention.probe")):
        model.set_attn_implementation("eager")
    before = model(ids).logits
    model.set_attn_implementation("lazy")
    assert torch.equal(model(ids).logits, before)
    model.config._attn_implementation = "vllm"
    with pytest.raises(ValueError, match=naming('attn_implementation="lazy"', "vllm")):
        model(ids)
