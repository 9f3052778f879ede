"""Compares attn_implementation="lazy" in models of transformers with eager attention, and tests make_lazy."""

import copy
import random

import definition
import pytest
import torch
from naming import naming
from tiny import TINY

transformers = pytest.importorskip("transformers")
import lazy_attention.hf as hf  # noqa: E402
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,  # noqa: E402
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE = TINY | dict(intermediate_size=48, max_position_embeddings=64)


def llama():
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()


def mistral():
    torch.manual_seed(1)
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=6)).eval()


def qwen3():
    torch.manual_seed(1)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE)).eval()


MODELS = [llama, mistral, qwen3]


def both(model, rows=slice(None), **inputs):
    """Asserts that the logits of attn_implementation="lazy" are as close to float64 logits as the logits of "eager".
    rows: the batch rows that are compared. Logits of padding are ignored.

    Eager attention computes the softmax in fp32 even in float64 models, so the float64 logits are computed by SDPA."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        wide.set_attn_implementation("sdpa")
        exact = wide(**inputs).logits[rows]
        model.set_attn_implementation("eager")
        plain = model(**inputs).logits[rows]
        model.set_attn_implementation("lazy")
        ours = model(**inputs).logits[rows]
    definition.close(ours, exact, plain)
    return ours


@pytest.mark.parametrize("make", MODELS)
def test_plain_sequences_match_eager(make):
    both(make(), input_ids=torch.randint(0, 61, (2, 20)))


def test_soft_capping_of_gemma2_matches_eager():
    torch.manual_seed(1)
    config = transformers.Gemma2Config(**SHAPE, attn_logit_softcapping=0.05, sliding_window=6)
    model, ids = transformers.Gemma2ForCausalLM(config).eval(), torch.randint(0, 61, (2, 20))

    def logits(model, implementation):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            return model(input_ids=ids).logits

    plain, ours = logits(model, "eager"), logits(model, "lazy")
    wide = copy.deepcopy(model).double()
    exact = logits(wide, "lazy")
    # a tolerance for fp32, because "eager" computes softmax in fp32 even in a float64 model
    torch.testing.assert_close(exact, logits(wide, "eager"), rtol=1e-5, atol=1e-6)
    definition.close(ours, exact, plain)
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (logits(model, "lazy") - ours).abs().max() > 100 * (ours - plain).abs().max(), "softcap changes the logits"


@pytest.mark.parametrize("make", MODELS)
def test_left_and_right_padding_match_eager(make):
    ids, mask = torch.randint(0, 61, (4, 20)), torch.ones(4, 20, dtype=torch.long)
    mask[0, :7], mask[1, 15:], mask[2, :4], mask[2, 18:] = 0, 0, 0, 0
    both(make(), rows=mask.bool(), input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize("make", MODELS)
def test_packed_position_ids_match_eager(make):
    positions = torch.stack(
        (
            torch.cat((torch.arange(9), torch.arange(11))),
            torch.cat((torch.arange(3), torch.arange(1), torch.arange(16))),
        )
    )
    both(make(), input_ids=torch.randint(0, 61, (2, 20)), position_ids=positions, use_cache=False)


def test_flattened_batches_of_the_data_collator_match_eager():
    model, ids = llama(), torch.randint(0, 61, (1, 20))
    positions = torch.cat((torch.arange(9), torch.arange(11)))[None]
    cu = torch.tensor([0, 9, 20], dtype=torch.int32)
    ours = both(model, input_ids=ids, position_ids=positions, use_cache=False)
    with torch.no_grad():
        other = model(
            input_ids=ids,
            position_ids=positions,
            use_cache=False,
            cu_seq_lens_q=cu,
            cu_seq_lens_k=cu,
            max_length_q=11,
            max_length_k=11,
        ).logits
    assert torch.equal(ours, other)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("make", MODELS)
def test_generation_matches_eager(make, cache):
    model, ids = make(), torch.randint(0, 61, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0  # left padding

    def text(implementation, **options):
        model.set_attn_implementation(implementation)
        return model.generate(ids, max_new_tokens=14, do_sample=False, pad_token_id=0, **options)

    for options in (dict(), dict(attention_mask=mask)):
        options["cache_implementation"] = cache if cache == "static" else None
        assert torch.equal(text("lazy", **options), text("eager", **options))


@pytest.mark.parametrize("make", MODELS)
def test_cache_can_be_extended_by_several_tokens(make):
    model, ids = make(), torch.randint(0, 61, (2, 20))
    model.set_attn_implementation("lazy")
    with torch.no_grad():
        whole = model(ids).logits
        start = model(ids[:, :11], use_cache=True)
        rest = model(ids[:, 11:], past_key_values=start.past_key_values).logits
        exact = copy.deepcopy(model).double()(ids).logits
    definition.close(torch.cat((start.logits, rest), 1), exact, whole)


@pytest.mark.parametrize("make", MODELS)
def test_gradients_match_eager(make):
    model, ids, mask = make(), torch.randint(0, 61, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[1, 15:] = 0
    labels = ids.masked_fill(mask == 0, -100)

    def grads(model, implementation):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}

    exact = grads(copy.deepcopy(model).double(), "sdpa")
    plain, ours = copy.deepcopy(grads(model, "eager")), grads(model, "lazy")
    # Compare the gradients of the whole model as one vector, because rounding in later layers affects all gradients.
    flat = [torch.cat([g[name].flatten() for name in exact]) for g in (ours, exact, plain)]
    definition.close(*flat)


def test_gradient_checkpointing_gives_the_same_gradients():
    model, ids = llama().train(), torch.randint(0, 61, (2, 12))
    model.set_attn_implementation("lazy")
    model(ids, labels=ids).loss.backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(plain[name], parameter.grad), name


@pytest.mark.slow
@pytest.mark.parametrize("make", [llama, mistral])
def test_compiles_in_one_graph(make):
    model, ids = make(), torch.randint(0, 61, (2, 12))
    model.set_attn_implementation("lazy")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits)
        padded = [m(ids, attention_mask=mask, use_cache=False).logits[mask.bool()] for m in (compiled, model)]
    torch.testing.assert_close(*padded)


def test_bidirectional_attention_with_padding_matches_eager():
    """Tests masks of encoders: every query sees all keys of its batch row that are not padding."""
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4:], mask[1, :2] = False, False
    from transformers.masking_utils import bidirectional_mask_function

    documents = hf.lazy_mask(2, 6, 6, mask_function=bidirectional_mask_function, attention_mask=mask)
    assert documents[0, 0].tolist() == [[0, 6, 6, 6, 12], [0, 4, 6, 8, 12]]
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    layer = torch.nn.Module()
    ours, _ = hf.lazy_attention_forward(layer, q, k, v, documents, is_causal=False)
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), mask[:, None, None], enable_gqa=True
    )
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None], enable_gqa=True)
    definition.close(ours, exact.transpose(1, 2), plain.transpose(1, 2))


@pytest.mark.parametrize(
    "change, names",
    [
        (dict(attention_mask=torch.ones(2, 1, 8, 8, dtype=torch.bool)), ("torch.bool", "(2, 1, 8, 8)")),
        (dict(attention_mask=torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1], [1] * 8])), ("padding", "row", 2, 0)),
        (dict(output_attentions=True), ("output_attentions=False", "eager")),
    ],
)
def test_unsupported_features_raise_errors(change, names):
    model = llama()
    model.set_attn_implementation("lazy")
    with pytest.raises(ValueError, match=naming('attn_implementation="lazy"', *names)):
        model(torch.randint(0, 61, (2, 8)), **change)


def test_errors_of_the_attention_function():
    q = torch.randn(1, 2, 4, 8)
    layer = torch.nn.Module()
    for change, names in ((dict(dropout=0.1), ("dropout", 0, 0.1)), (dict(head_mask=q), ("head_mask",))):
        with pytest.raises(ValueError, match=naming('attn_implementation="lazy"', *names)):
            hf.lazy_attention_forward(layer, q, q, q, None, **change)
    with pytest.raises(RuntimeError, match=naming("lazy::attention", "softcap", "-30")):
        hf.lazy_attention_forward(layer, q, q, q, None, softcap=-30.0)
    layer.lazy_normalizer, layer.sinks = "elastic", torch.zeros(2)
    with pytest.raises(ValueError, match=naming("sinks", "softmax_sink", "elastic")):
        hf.lazy_attention_forward(layer, q, q, q, None)


def test_unsupported_mask_patterns_are_rejected():
    from transformers.masking_utils import blockwise_overlay, causal_mask_function, or_masks

    def prefix(batch, head, q, k):
        return k < 3

    blocks = torch.tensor([[0, 0, -1, -1, 1, 1]])
    for function in (or_masks(causal_mask_function, prefix), or_masks(causal_mask_function, blockwise_overlay(blocks))):
        for vmap in (False, True):
            with pytest.raises(ValueError, match=naming('attn_implementation="lazy"', "mask", "distance")):
                hf.lazy_mask(1, 6, 6, mask_function=function, use_vmap=vmap)


def test_chunked_attention_is_converted_to_documents():
    from transformers.masking_utils import chunked_causal_mask_function

    function = chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long))
    assert hf.lazy_mask(1, 10, 10, mask_function=function, local_size=4)[0, 0].tolist() == [[0, 4, 8, 10]] * 2


def visible(documents, batch, q_length, kv_length, window):
    """Converts a result of lazy_mask (documents) to a mask (batch, q_length, kv_length), True for visible pairs."""
    if documents is None:
        seen, _ = definition.visible_pairs(q_length, kv_length, True, window or -1)
        return seen.expand(batch, -1, -1)
    everything = torch.zeros(batch * q_length, batch * kv_length, dtype=torch.bool)
    (q, k) = documents[0, 0].tolist()
    for q0, q1, k0, k1 in zip(q, q[1:], k, k[1:]):
        if q1 > q0:
            everything[q0:q1, k0:k1] = definition.visible_pairs(q1 - q0, k1 - k0, True, window or -1)[0]
    return torch.stack(
        [everything[b * q_length : (b + 1) * q_length, b * kv_length : (b + 1) * kv_length] for b in range(batch)]
    )


@pytest.mark.parametrize("compiling", [False, True])
def test_masks_match_sdpa_mask(compiling, monkeypatch):
    """Compares lazy_mask with transformers' sdpa_mask for random lengths, KV caches (growing or of fixed size), sliding
    windows, padding and packed documents."""
    from transformers import masking_utils as masks

    if compiling:  # test the code path for torch.compile, which cannot read tensor values
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    draw = random.Random(5)
    kinds = set()
    for _ in range(400):
        batch, q_length, past = draw.randint(1, 3), draw.randint(1, 9), draw.choice([0, 0, 1, 5])
        spare = draw.choice([0, 0, 3])  # unused slots of a cache of fixed size
        kv_offset = draw.choice([0, 0, 2]) if past >= 2 else 0
        kv_length = past + q_length + spare - kv_offset
        window = draw.choice([None, None, 1, 2, 4, 20])
        function = masks.causal_mask_function if window is None else masks.sliding_window_causal_mask_function(window)
        padding = None
        packed = past == 0 and spare == 0 and draw.random() < 0.4
        if packed:
            positions = torch.stack(
                [
                    torch.cat([torch.arange(n) for n in (cut, q_length - cut)])
                    for cut in (draw.randint(0, q_length) for _ in range(batch))
                ]
            )
            sequences = masks.find_packed_sequence_indices(positions)
            if sequences is not None:
                function = masks.and_masks(
                    masks.packed_sequence_mask_function(sequences),
                    masks.remap_positions_for_packed_sequence(function, positions),
                )
        elif draw.random() < 0.6:
            padding = torch.ones(batch, past + q_length, dtype=torch.bool)
            for row in padding:
                row[: draw.randint(0, past + q_length - 1)] = False
                if past == 0 and draw.random() < 0.4:
                    row[len(row) - draw.randint(0, int(row.sum()) - 1) :] = False
        arguments = dict(
            batch_size=batch,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=past,
            kv_offset=kv_offset,
            mask_function=function,
            attention_mask=padding,
            local_size=window,
        )
        documents = hf.lazy_mask(**arguments, device="cpu")
        ours = visible(documents, batch, q_length, kv_length, window)
        theirs = masks.sdpa_mask(**arguments, allow_is_causal_skip=False)[:, 0]
        real = torch.ones(batch, q_length, dtype=torch.bool)  # True: the query is not padding
        if padding is not None:
            real = padding[:, past:]
        assert torch.equal(ours[real], theirs[real]), arguments
        kinds.add((documents is None, packed, padding is None, window is None, spare > 0, past > 0))
    assert len(kinds) > 15  # enough different kinds of masks were drawn


# --- Elastic-Softmax in a model of transformers ---


def test_make_lazy_with_default_arguments_does_not_change_logits():
    model, ids = llama(), torch.randint(0, 61, (2, 12))
    model.set_attn_implementation("lazy")
    before = model(ids).logits
    hf.make_lazy(model, distance_bias_window=8, tau=0.0, distance_bias_std=0.0)
    exact = copy.deepcopy(model).double()(ids).logits
    definition.close(model(ids).logits, exact, before)
    assert not torch.equal(hf.make_lazy(model, 8, tau=-1.0, reset=True)(ids).logits, before)


def test_make_lazy_matches_the_definition_and_can_be_trained():
    model, ids = (
        hf.make_lazy(llama(), distance_bias_window=8, tau=-0.7, distance_bias_std=0.5),
        torch.randint(0, 61, (2, 12)),
    )
    attention = model.model.layers[0].self_attn
    q, k, v = torch.randn(2, 4, 12, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8)
    ours, _ = hf.lazy_attention_forward(attention, q, k, v, None, scaling=attention.scaling)

    def plain(dtype):
        return definition.attention(
            *(t.to(dtype).transpose(1, 2) for t in (q, k, v)),
            attention.lazy_distance_bias.to(dtype),
            attention.lazy_tau.to(dtype),
        )

    definition.close(ours, plain(torch.float64), plain(torch.float32))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert attention.lazy_tau.grad.abs().sum() > 0 and attention.lazy_distance_bias.grad.abs().sum() > 0

    model.eval()
    text = model.generate(ids[:, :5], max_new_tokens=8, do_sample=False)
    assert torch.equal(text, model.generate(ids[:, :5], max_new_tokens=8, do_sample=False, use_cache=False))


def test_constant_offset_is_read_from_the_configuration():
    model, ids = llama(), torch.randint(0, 61, (1, 12))
    model.set_attn_implementation("lazy")
    model.config.lazy_normalizer, model.config.lazy_tau = "elastic", -1.0
    by_config = model(ids).logits
    by_parameter = hf.make_lazy(llama(), distance_bias_window=0, tau=-1.0)(ids).logits
    assert torch.equal(by_config, by_parameter)


def test_output_attentions_of_converted_models_names_probe(tmp_path):
    names = naming("output_attentions=False", "lazy_attention.probe")
    ids, plain = torch.randint(0, 61, (1, 12)), llama()
    plain.set_attn_implementation("eager")
    plain.config.output_attentions = True
    with pytest.raises(ValueError, match=names):
        hf.make_lazy(plain)
    model = hf.make_lazy(llama(), distance_bias_window=8)
    with pytest.raises(ValueError, match=names):
        model(ids, output_attentions=True)
    with pytest.raises(ValueError, match=names):
        model.config.output_attentions = True
    with pytest.raises(ValueError, match=naming("eager", "lazy_attention.probe")):
        model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    with pytest.raises(Exception, match=names):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_attentions=True)


@pytest.mark.parametrize("tau_trainable", [True, False])
@pytest.mark.parametrize("make", MODELS)
def test_conversions_of_converted_models_do_not_round_tau(make, tau_trainable):
    model = hf.make_lazy(make(), 8, tau=-0.99871, distance_bias_std=0.5, tau_trainable=tau_trainable)
    before = {name: t.clone() for name, t in model.state_dict().items() if ".lazy_" in name}
    for convert in (lambda: model.to(torch.bfloat16), model.half, lambda: torch.nn.Sequential(model).bfloat16()):
        convert()
        assert model.dtype in (torch.bfloat16, torch.float16)
        state = model.state_dict()
        assert all(state[name].dtype == torch.float32 and torch.equal(state[name], t) for name, t in before.items())
        assert all(t.dtype == model.dtype for name, t in state.items() if name not in before)
    assert torch.isfinite(model(torch.randint(0, 61, (1, 12))).logits).all()


def test_converted_models_reject_other_attention_implementations():
    ids = torch.randint(0, 61, (1, 12))
    model = hf.make_lazy(llama(), distance_bias_window=8)
    with pytest.raises(ValueError, match=naming("LazyLlamaForCausalLM", 'attn_implementation="lazy"')):
        model.set_attn_implementation("flash_attention_2")
    for other in ("eager", "sdpa"):
        with pytest.raises(ValueError, match=naming("LazyLlamaForCausalLM", 'attn_implementation="lazy"', other)):
            model.set_attn_implementation(other)
        model.model.set_attn_implementation(other)
        with pytest.raises(ValueError, match=naming("make_lazy", 'attn_implementation="lazy"', other)):
            model(ids)
        model.model.set_attn_implementation("lazy")
    assert torch.isfinite(model(ids).logits).all()
    # a model with the configuration that make_lazy writes, but without its parameters
    without = LlamaForCausalLM(copy.deepcopy(model.config))
    with pytest.raises(ValueError, match=naming("make_lazy", "state_dict")):
        without(ids)
