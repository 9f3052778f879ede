"""Compares the normalizer "softmax_sink" with models that have sinks and sliding windows: gpt-oss, GraniteSWA,
MiMo-V2-Flash."""

import copy

import definition
import pytest
import torch
from definition import Pool, gradients, leaf
from naming import naming
from tiny import TINY

transformers = pytest.importorskip("transformers")
import lazy_attention.hf as hf  # noqa: E402
from transformers import (  # noqa: E402
    GptOssConfig,
    GptOssForCausalLM,
    GraniteSWAConfig,
    GraniteSWAForCausalLM,
    MiMoV2FlashConfig,
    MiMoV2FlashForCausalLM,
)
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward  # noqa: E402


class Layer(torch.nn.Module):
    """A module with the attributes of an attention layer that eager_attention_forward and lazy_attention_forward
    read."""

    def __init__(self, sinks, groups):
        super().__init__()
        self.sinks, self.num_key_value_groups, self.is_causal = sinks, groups, True


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("window, n, m", [(None, 14, 14), (5, 14, 14), (None, 3, 14), (5, 1, 14)])
def test_attention_and_gradients_match_transformers(window, n, m, dtype):
    pool = Pool()
    for _ in range(4):
        exact = [
            leaf(2, 4, n, 8, dtype=torch.float64),
            leaf(2, 2, m, 8, dtype=torch.float64),
            leaf(2, 2, m, 8, dtype=torch.float64),
            leaf(4, dtype=torch.float64),
        ]
        single = [t.detach().float().requires_grad_() for t in exact]
        cotangent = torch.randn(2, n, 4, 8)
        seen, _ = definition.visible_pairs(n, m, True, window or -1)

        def run(function, tensors, mask):
            q, k, v, sinks = tensors
            out, _ = function(Layer(sinks, 2), q, k, v, mask, scaling=0.3, sliding_window=window, s_aux=sinks)
            return [out, *gradients(out, tensors, cotangent)]

        def mask(t):
            return torch.zeros_like(seen, dtype=t.dtype).masked_fill(~seen, torch.finfo(t.dtype).min)[None, None]

        ours = run(hf.lazy_attention_forward, exact if dtype == torch.float64 else single, None)
        theirs = run(eager_attention_forward, exact, mask(exact[0]))
        plain = run(eager_attention_forward, single, mask(single[0]))
        for name, *three in zip(("out", "q", "k", "v", "sinks"), ours, theirs, plain):
            pool.add(name, *three)
    pool.check()


def tiny(**changes):
    torch.manual_seed(1)
    settings = TINY | dict(
        intermediate_size=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=6,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    config = GptOssConfig(**settings | changes)
    model = GptOssForCausalLM(config).eval()
    model.set_experts_implementation("eager")  # the grouped matrix product does not support float64
    return model


# Returns a tiny GraniteSWA model. This family has one rotary base per layer (0 means no RoPE) and four multipliers.
def tiny_granite_swa():
    torch.manual_seed(1)
    # Omit head_dim, which this family computes as hidden_size / heads.
    settings = {name: value for name, value in TINY.items() if name != "head_dim"}
    config = GraniteSWAConfig(
        **settings,
        intermediate_size=16,
        sliding_window=6,
        layer_types=["full_attention", "sliding_attention"],
        layer_rope_theta=[0, 1e3],
        max_position_embeddings=64,
        attention_multiplier=0.4,
        embedding_multiplier=3.0,
        residual_multiplier=0.7,
        logits_scaling=2.0,
    )
    model = GraniteSWAForCausalLM(config).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


# Returns a tiny MiMo-V2-Flash model. In this family, only the layers with a sliding window have sinks. These layers
# have twice as many key heads as the other layers. The value dimension is smaller than the key dimension.
def tiny_mimo_v2_flash():
    torch.manual_seed(1)
    settings = TINY | dict(
        num_key_value_heads=1,
        head_dim=24,
        v_head_dim=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        sliding_window=6,
        layer_types=["full_attention", "sliding_attention"],
        max_position_embeddings=64,
    )
    model = MiMoV2FlashForCausalLM(MiMoV2FlashConfig(**settings)).eval()
    model.set_experts_implementation("eager")
    return model


@pytest.mark.parametrize("make", [tiny, tiny_granite_swa, tiny_mimo_v2_flash])
def test_loss_gradients_and_generation_of_whole_models_match_transformers(make):
    model, ids = make(), torch.randint(0, 61, (2, 20))
    assert set(model.config.layer_types) == {"sliding_attention", "full_attention"}

    def run(implementation, model):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        result = model(ids, labels=ids)
        result.loss.backward()
        text = model.generate(ids[:, :9], max_new_tokens=10, do_sample=False)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return result.logits.detach(), torch.cat([g.flatten() for g in gradients.values()]), text, gradients

    plain, plain_gradients, plain_text, named = run("eager", model)
    ours, our_gradients, our_text, our_named = run("lazy", model)
    exact, exact_gradients, *_ = run("eager", copy.deepcopy(model).double())
    print(f"maximum difference of logits {(ours - plain).abs().max():.2e} (logits up to {plain.abs().max():.2f})")
    definition.close(ours, exact, plain, "logits")
    definition.close(our_gradients, exact_gradients, plain_gradients, "gradients")
    assert torch.equal(plain_text, our_text)
    sinks = [gradient for name, gradient in our_named.items() if name.endswith("sinks")]
    assert sinks and all(gradient.abs().max() > 0 for gradient in sinks)


def test_layers_with_sinks_reject_a_normalizer_without_a_sink():
    model = hf.make_lazy(tiny())
    model.set_experts_implementation("eager")
    for layer in model.model.layers:
        layer.self_attn.lazy_normalizer = "elastic"
    with pytest.raises(ValueError, match=naming("sinks", "softmax_sink", "elastic_sink", "elastic", "with sinks")):
        model(torch.arange(8).view(1, 8))
