"""Tests of FSDP2 with bf16 parameters: shard_heads must keep tau and the distance bias in fp32. Uses two gloo
processes on the CPU."""

import warnings

import pytest
import torch
from naming import naming
from processes import in_processes
from tiny import TINY
from torch import nn

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
import lazy_attention  # noqa: E402
import lazy_attention.hf as hf  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lazy_attention.per_head import CHILD, read, separate  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: E402

SHAPE = TINY | dict(intermediate_size=48, max_position_embeddings=64)
TAU = -0.99871  # a value that bf16 would round to -1.0
IDS = torch.arange(40).view(2, 20) * 7 % 61
PARAMETERS = ("softmax_offset", "learnable_bias_diagonals", "sinks", "lazy_tau", "lazy_distance_bias")


def lazy(dtype=torch.float32, **changes):
    torch.manual_seed(3)
    settings = dict(offset_init=TAU, distance_bias_window=8, distance_bias_init_std=0.5)
    model = hf.LazyForCausalLM(hf.LazyConfig(**SHAPE | settings | changes))
    # Convert all parameters except those in PARAMETERS, as from_pretrained(dtype=...) does.
    for name, parameter in model.named_parameters():
        if not name.endswith(PARAMETERS):
            parameter.data = parameter.data.to(dtype)
    return model


def llama(dtype=torch.float32):
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype)
    return hf.make_lazy(model, distance_bias_window=8, tau=TAU, distance_bias_std=0.5)


def lazy_bf16():
    return lazy(torch.bfloat16)


def llama_bf16():
    return llama(torch.bfloat16)


def sinks():
    return lazy(normalizer="softmax_sink", sink_init=TAU)


def fixed_tau():
    return lazy(offset_trainable=False)


def shard(model):
    """Calls fully_shard as a user would: for every layer, then for the model."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo supports sums but not averages
    return model


def check(make, checkpointing, folder):
    plain = make()
    keys, values = list(plain.state_dict()), {n: v.clone() for n, v in plain.state_dict().items()}
    model = make()
    if checkpointing:
        model.gradient_checkpointing_enable()
    shard(hf.shard_heads(model))
    seen = []

    def spy(q, k, v, **arguments):
        parameters = [arguments[name] for name in ("distance_bias", "tau", "sink")]
        seen.append((q.dtype, *(None if p is None else p.detach().clone() for p in parameters)))
        return lazy_attention.attention(q, k, v, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_attention.decoding, "attention", spy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ids = IDS[dist.get_rank() : dist.get_rank() + 1]
        losses = []
        for step in range(3):
            seen.clear()
            loss = model(ids, labels=ids, use_cache=False).loss
            if step == 0:
                compare_bits(seen, plain)
            loss.backward()
            gradients = {n: p.grad for n, p in model.named_parameters() if n.endswith(PARAMETERS)}
            assert gradients and all(g is not None and g.dtype == torch.float32 for g in gradients.values())
            assert all(g.full_tensor().abs().sum() > 0 for g in gradients.values())
            if step == 0:
                compare_gradients(gradients, plain)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    with torch.no_grad():  # an evaluation between two training steps must not disturb training
        model(ids, use_cache=False)

    # Check the names and values in checkpoints.
    state = model.state_dict()
    assert sorted(state) == sorted(keys)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert sorted(full) == sorted(keys)
    changed = {n for n in keys if not torch.equal(full[n], values[n])}
    assert any(n.endswith(PARAMETERS) for n in changed)
    set_model_state_dict(model, dict(values), options=StateDictOptions(full_state_dict=True))
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert all(torch.equal(full[n], values[n]) for n in keys)
    of_optimizer = get_optimizer_state_dict(model, optimizer)
    assert of_optimizer["state"].keys() == {n for n, _ in plain.named_parameters()}
    set_optimizer_state_dict(model, optimizer, of_optimizer)
    model.save_pretrained(folder / "saved")
    dist.barrier()  # wait until the first process has written the folder


def check_meta_device(make, folder):
    """Builds a model on the meta device, shards it, and loads the weights of the first process."""
    values = make().state_dict()
    with torch.device("meta"):
        model = make()
    shard(hf.shard_heads(model)).to_empty(device="cpu")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(values) if dist.get_rank() == 0 else {}, options=options)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert full.keys() == values.keys() and all(torch.equal(full[n], values[n]) for n in values)


def compare_bits(seen, plain):
    """Asserts that the operator received bf16 queries in every layer, and that the tau, distance bias and sinks that it
    received are bitwise equal to the parameters of the unsharded model `plain`. seen: the recorded operator arguments
    of each layer."""
    layers = [m for m in plain.modules() if hasattr(m, "q_proj")]
    assert len(seen) == len(layers)
    for (dtype, bias, tau, sink), layer in zip(seen, layers):
        assert dtype == torch.bfloat16
        for found, names in (
            (bias, ("learnable_bias_diagonals", "lazy_distance_bias")),
            (tau, ("softmax_offset", "lazy_tau")),
            (sink, ("sinks",)),
        ):
            expected = next((v for n in names if (v := getattr(layer, n, None)) is not None), None)
            assert (found is None) == (expected is None)
            if found is not None:
                assert found.dtype == torch.float32 and torch.equal(found, expected)


def compare_gradients(gradients, plain):
    """Asserts that the gradients of the sharded model are close to reference gradients. The reference is the mean over
    the sequences of both processes, computed in one process by the model `plain` with bf16 weights."""
    for name, parameter in plain.named_parameters():
        if not name.endswith(PARAMETERS):
            parameter.data = parameter.data.to(torch.bfloat16)
    for ids in IDS.split(1):
        (plain(ids, labels=ids, use_cache=False).loss / 2).backward()
    for name, gradient in gradients.items():
        expected = plain.get_parameter(name.replace(f"{CHILD}.", "")).grad
        assert (gradient.full_tensor() - expected).norm() < 1e-2 * expected.norm(), name


def without_shard_heads(make, folder):
    """Shards a model without calling shard_heads. Records whether tau is rounded to bf16 or FSDP2 raises an error."""
    try:
        model, seen = shard(make()), []
        gathered = lazy_attention.layer.gathered

        def spy(layer, names):
            values = gathered(layer, names)
            seen.append(values[1].detach().clone())
            return values

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lazy_attention.layer, "gathered", spy)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                model(IDS, use_cache=False)
        result = f"{seen[0].dtype} {seen[0][0].item()}, {warned[0].message}"
    except AssertionError as error:
        result = str(error)
    if dist.get_rank() == 0:
        (folder / "result").write_text(result)


@pytest.mark.slow
def test_tau_and_bias_are_exact_and_trained(tmp_path):
    kinds = {make.__name__: (make, False) for make in (lazy, lazy_bf16, llama, llama_bf16, sinks, fixed_tau)}
    in_processes(2, tmp_path, check, kinds | {"checkpointing": (lazy, True)})
    for name, (make, *_) in kinds.items():
        written = safetensors.load_file(tmp_path / name / "saved" / "model.safetensors")
        make().save_pretrained(tmp_path / name / "plain")
        expected = safetensors.load_file(tmp_path / name / "plain" / "model.safetensors")
        assert written.keys() == expected.keys()
        assert all(torch.equal(written[tensor], expected[tensor]) for tensor in expected), name
        again, plain = (AutoModelForCausalLM.from_pretrained(tmp_path / name / f) for f in ("saved", "plain"))
        assert torch.equal(again(IDS).logits, plain(IDS).logits), name


@pytest.mark.slow
def test_weights_are_loaded_from_the_first_process(tmp_path):
    in_processes(2, tmp_path, check_meta_device, {make.__name__: (make,) for make in (lazy, lazy_bf16)})


@pytest.mark.slow
def test_without_shard_heads_tau_is_rounded_or_rejected(tmp_path):
    """Tests that shard_heads is still needed. If this test fails, a new PyTorch version may have made it
    unnecessary."""
    in_processes(2, tmp_path, without_shard_heads, {"lazy": (lazy,), "lazy_bf16": (lazy_bf16,)})
    rounded = (tmp_path / "lazy" / "result").read_text()
    assert rounded.startswith("torch.bfloat16 -1.0, Lazy Attention: tau is torch.bfloat16") and "shard_heads" in rounded
    assert "uniform original parameter dtype" in (tmp_path / "lazy_bf16" / "result").read_text()


def test_separate_does_not_change_results_in_one_process():
    layer, x = lazy_attention.LazyAttention(32, 4, distance_bias_window=8), torch.randn(1, 9, 32)
    before, expected = layer.state_dict(), layer(x)
    separate(layer, layer.PER_HEAD)
    assert torch.equal(layer(x), expected)
    assert layer.state_dict().keys() == before.keys()
    other = lazy_attention.LazyAttention(32, 4, distance_bias_window=8)
    separate(other, other.PER_HEAD)
    other.load_state_dict(before)
    assert torch.equal(other(x), expected)
    nested = nn.Sequential(other)
    nested.load_state_dict({f"0.{name}": value for name, value in before.items()})
    nested.bfloat16()
    assert other.q_proj.weight.dtype == torch.bfloat16
    assert all(torch.equal(read(other, name), before[name]) for name in other.PER_HEAD if name in before)
    other.reset_attention_parameters()
    assert torch.equal(read(other, "softmax_offset"), torch.full((4,), -1.0))


def test_shard_heads_leaves_the_model_unchanged_without_a_process_group(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    model = lazy()
    with pytest.raises(RuntimeError, match=naming("shard_heads", "torchrun", "init_process_group")):
        hf.shard_heads(model)
    assert not any(CHILD in module._modules for module in model.modules())
    with pytest.raises(TypeError, match=naming("shard_heads", "torch.nn.Module", "NoneType")):
        hf.shard_heads(None)


def test_shard_heads_errors_name_the_cause(monkeypatch):
    monkeypatch.setenv("RANK", "0")  # torchrun sets this variable
    with pytest.raises(ValueError, match=naming("shard_heads", "per-head", "Linear")):
        hf.shard_heads(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=naming("shard_heads", "mp_policy")):
        hf.shard_heads(lazy(), mp_policy=MixedPrecisionPolicy())
    twice = llama()
    separate(twice.model.layers[0].self_attn, PARAMETERS)  # simulates an earlier call of shard_heads
    with pytest.raises(ValueError, match=naming("shard_heads", "earlier call", "self_attn")):
        hf.shard_heads(twice)
    rounded = lazy().to(torch.bfloat16)
    # assign .data, because model.to(dtype) keeps the per-head parameters in fp32
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16()
    with pytest.raises(ValueError, match=naming("shard_heads", "fp32", "torch.bfloat16", "dtype")):
        hf.shard_heads(rounded)
