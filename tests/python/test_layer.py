"""Tests of lazy_attention.LazyAttention: the equations of the paper, the KV cache, packed documents, parameters."""

import copy
import warnings

import definition
import lazy_attention
import pytest
import torch
from definition import Pool, gradients
from lazy_attention import KVCache, LazyAttention
from naming import naming


def make(**settings):
    arguments = dict(num_heads=4, num_kv_heads=2, distance_bias_window=6, distance_bias_std=0.5) | settings
    return LazyAttention(32, **arguments)


def plain_layer(layer, x):
    """Computes the output of the layer in plain PyTorch. The projections are in x's type; attention is in float64 if x
    is float64, otherwise in fp32."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    q, k, v = layer.project(x)
    if layer.rope_base is not None:
        half = layer.head_dim // 2
        frequency = layer.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * frequency
        cos, sin = angle.cos().float(), angle.sin().float()  # lazy_attention.rope rounds them to fp32 too
        turn = (
            lambda t: torch.cat(
                (
                    t[..., :half] * cos - t[..., half:] * sin,  # noqa: E731
                    t[..., half:] * cos + t[..., :half] * sin,
                ),
                -1,
            ).to(t.dtype)
        )
        q, k = turn(q), turn(k)
    given = [None if p is None else p.to(wide) for p in (layer.learnable_bias_diagonals, layer.softmax_offset)]
    with torch.autocast("cpu", enabled=False):
        out = definition.attention(
            *(t.to(wide) for t in (q, k, v)),
            *given,
            normalizer=layer.normalizer,
            offset=layer.offset,
            softcap=layer.softcap,
            window=layer.window,
            causal=layer.causal,
        ).to(q.dtype)
    return layer.o_proj(out.flatten(-2))


SETTINGS = [
    dict(),
    dict(offset="constant", tau=-0.1),
    dict(distance_bias_window=0),
    dict(rope_base=None),
    dict(normalizer="softmax"),
    dict(window=5),
    dict(softcap=0.5),
    dict(causal=False),
    dict(num_kv_heads=4, head_dim=10, bias=True),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_layer_matches_its_equations(settings):
    pool = Pool()
    for _ in range(4):
        layer = make(**settings)
        exact = copy.deepcopy(layer).double()
        x = torch.randn(2, 11, 32).requires_grad_()
        cotangent = torch.randn(2, 11, 32)

        def run(function, module, x):
            out = function(module, x)
            return [out, *gradients(out, [x, *module.parameters()], cotangent)]

        results = (
            run(LazyAttention.__call__, layer, x),
            run(plain_layer, exact, x.detach().double().requires_grad_()),
            run(plain_layer, layer, x),
        )
        for name, *three in zip(["out", "x", *(n for n, _ in layer.named_parameters())], *results):
            pool.add(name, *three)
    pool.check()


def test_float64_layer_matches_its_equations():
    layer = make()
    x = torch.randn(2, 11, 32)
    single = plain_layer(layer, x)
    layer.double()
    definition.close_float64(layer(x.double()), plain_layer(layer, x.double()), single)


def test_parameters_have_the_names_of_checkpoints():
    names = {name for name, _ in make().named_parameters()}
    assert names == {
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
        "o_proj.weight",
        "softmax_offset",
        "learnable_bias_diagonals",
    }
    assert not make(tau_trainable=False).softmax_offset.requires_grad
    assert make(normalizer="softmax").softmax_offset is None
    assert make(normalizer="softmax_sink").sinks.shape == (4,)
    both = make(normalizer="elastic_sink")
    assert both.sinks.shape == both.softmax_offset.shape == (4,)
    assert torch.equal(make().softmax_offset, torch.full((4,), -1.0))


@pytest.mark.parametrize(
    "settings", [dict(), dict(window=4), dict(rope_options=dict(rotary_dim=4, interleaved=True))], ids=str
)
def test_cache_matches_a_pass_over_the_whole_sequence(settings):
    """Computes a sequence in pieces with a KV cache. The layer calls decode for single tokens and
    attention for longer pieces."""
    layer, x = make(**settings), torch.randn(2, 12, 32)
    with torch.no_grad():
        whole, exact = layer(x), copy.deepcopy(layer).double()(x.double())
        cache, parts = KVCache(), []
        for begin, end in ((0, 5), (5, 6), (6, 7), (7, 12)):
            assert cache.length == begin
            parts.append(layer(x[:, begin:end], cache=cache))
    definition.close(torch.cat(parts, 1), exact, whole)


def test_cache_grows_and_rejects_gradients():
    cache, chunk = KVCache(), torch.randn(1, 100, 2, 4)
    with torch.no_grad():
        for n in range(1, 8):
            keys, values = cache.extend(chunk + n, chunk - n)
            assert keys.shape[1] == values.shape[1] == cache.length == 100 * n
    assert torch.equal(keys, torch.cat([chunk + n for n in range(1, 8)], 1))
    assert torch.equal(values, torch.cat([chunk - n for n in range(1, 8)], 1))
    for keys, other in (
        (torch.randn(2, 1, 2, 4), "2, 2, 4"),
        (torch.randn(1, 1, 3, 4), "1, 3, 4"),
        (torch.randn(1, 1, 2, 4).double(), "torch.float64"),
    ):
        with torch.no_grad(), pytest.raises(ValueError, match=naming("KVCache", cache.length, "1, 2, 4", other)):
            cache.extend(keys, keys)
    with torch.no_grad(), pytest.raises(ValueError, match=naming("KVCache", "tokens", "(1, 2, 2, 4)", "(1, 3, 2, 4)")):
        cache.extend(torch.zeros(1, 2, 2, 4), torch.zeros(1, 3, 2, 4))
    assert cache.length == 700
    with pytest.raises(RuntimeError, match=naming("KVCache", "torch.no_grad()")):
        make()(torch.randn(1, 3, 32), cache=KVCache())


def test_packed_documents_match_separate_documents():
    layer, x = make(), torch.randn(12, 32)
    cu = torch.tensor([0, 4, 12])
    packed, exact = layer(x, cu_seqlens=cu), copy.deepcopy(layer).double()
    alone = [layer(x[None, a:b])[0] for a, b in ((0, 4), (4, 12))]
    exact = [exact(x[None, a:b].double())[0] for a, b in ((0, 4), (4, 12))]
    definition.close(packed, torch.cat(exact), torch.cat(alone))


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16 module", "autocast"])
def test_bfloat16(autocast):
    pool = Pool()
    for _ in range(4):
        layer, x = make(), torch.randn(2, 21, 32).bfloat16().float()
        exact = copy.deepcopy(layer).double()
        if not autocast:
            layer.bfloat16()
            exact.load_state_dict({n: t.double() for n, t in layer.state_dict().items()})
        cotangent = torch.randn(2, 21, 32)

        def run(function, module, x):
            low = module is layer
            with torch.autocast("cpu", torch.bfloat16, enabled=low and autocast):
                out = function(module, x.bfloat16() if low and not autocast else x)
            assert out.dtype == (torch.bfloat16 if low else torch.float64)
            grads = gradients(out, list(module.parameters()), cotangent)
            return [out.to(grads[0].dtype), *grads]

        results = run(LazyAttention.__call__, layer, x), run(plain_layer, exact, x.double()), run(plain_layer, layer, x)
        for name, *three in zip(["out", *(n for n, _ in layer.named_parameters())], *results):
            pool.add(name, *three)
    pool.check()


CONVERSIONS = {
    "bfloat16": lambda module: module.bfloat16(),
    "half": lambda module: module.half(),
    "to": lambda module: module.to(torch.bfloat16),
    "type": lambda module: module.type(torch.bfloat16),
    "double, half": lambda module: module.double().half(),
    "in a model": lambda module: torch.nn.Sequential(module).to("cpu", torch.bfloat16)[0],
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("settings", [dict(tau=-0.99871), dict(tau_trainable=False), dict(normalizer="softmax_sink")])
def test_conversions_do_not_round_the_per_head_parameters(conversion, settings):
    layer = make(distance_bias_window=8, **settings)
    layer(torch.randn(1, 5, 32)).sum().backward()
    before = {name: getattr(layer, name) for name in layer.PER_HEAD if getattr(layer, name, None) is not None}
    values = {name: (t.detach().clone(), t.grad) for name, t in before.items()}
    assert len(values) == 2
    converted = CONVERSIONS[conversion](layer)
    assert converted is layer and layer.q_proj.weight.dtype in (torch.bfloat16, torch.float16)
    for name, (value, gradient) in values.items():
        now = getattr(layer, name)
        assert now.dtype == torch.float32 and torch.equal(now, value), name
        assert (now.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(now.grad, gradient.float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.randn(1, 5, 32, dtype=layer.q_proj.weight.dtype))
    assert (
        layer.double().per_head_arguments(torch.zeros((), dtype=torch.float64))["distance_bias"].dtype == torch.float64
    )
    assert layer.to("meta").learnable_bias_diagonals.is_meta


@pytest.mark.filterwarnings("always")
def test_rounding_of_tau_emits_a_warning():
    layer, x = make().bfloat16(), torch.randn(1, 5, 32).bfloat16()
    layer.softmax_offset.data = layer.softmax_offset.data.bfloat16()
    with pytest.warns(UserWarning, match=naming("tau", "torch.bfloat16", "LazyAttention")):
        layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LazyAttention(32, 4, distance_bias_window=8, dtype=torch.bfloat16)(x)
        make()(x.float())


def test_statistics():
    layer, x = make(), torch.randn(2, 9, 32)
    out, stats = layer(x, return_stats=True)
    assert out.shape == (2, 9, 32) and stats.shape == (3, 2, 4, 9) and stats.dtype == torch.float32
    assert torch.equal(stats[2][:, :, 0], torch.zeros(2, 4)), "at tau = -1 the first query releases all its weight"
    same, with_scores = layer(x, return_score_stats=True)
    assert torch.equal(same, out) and torch.equal(with_scores[:3], stats)
    assert (with_scores[4] >= 0).all() and (with_scores[4, :, :, 0] == 0).all(), "the entropy over one key is zero"


def test_trains():
    """Trains a layer to output the sequence shifted by one token, which it can only learn by attention to other
    tokens."""
    layer = make(distance_bias_window=8)
    x = torch.randn(8, 16, 32)
    target = torch.cat((torch.zeros(8, 1, 32), x[:, :-1]), 1)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-2, weight_decay=0.0)
    losses = []
    for _ in range(40):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses
    assert not torch.equal(layer.softmax_offset, torch.full((4,), -1.0))


@pytest.mark.parametrize(
    "arguments, names",
    [
        (dict(num_heads=4, num_kv_heads=3), ("num_heads", "num_kv_heads", 4, 3)),
        (dict(num_heads=5, num_kv_heads=5), ("hidden_size", "num_heads", 32, 5)),
        (dict(num_heads=4, head_dim=7), ("head_dim", 7)),
        (dict(num_heads=4, distance_bias_window=-1), ("distance_bias_window", 0, -1)),
        (dict(num_heads=4, head_dim=0), ("head_dim", 1, 0)),
        (dict(num_heads=0), ("num_heads", 1, 0)),
        (dict(num_heads=4, num_kv_heads=0), ("num_kv_heads", 1, 0)),
        (dict(num_heads=4, tau=float("nan")), ("tau", "nan")),
        (dict(num_heads=4, sink=float("inf")), ("sink", "inf")),
        (dict(num_heads=4, distance_bias_std=-1.0), ("distance_bias_std", -1.0)),
    ],
)
def test_invalid_constructor_arguments_raise_errors(arguments, names):
    with pytest.raises(ValueError, match=naming("LazyAttention", *names)):
        LazyAttention(32, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        dict(num_heads="4"),
        dict(num_kv_heads=2.0),
        dict(head_dim=8.0),
        dict(tau=torch.zeros(4)),
        dict(tau=[0.0] * 4),
        dict(tau=None),
        dict(tau_trainable="no"),
        dict(sink="0"),
        dict(sink_trainable=None),
        dict(distance_bias_window=1.5),
        dict(distance_bias_std=None),
        dict(bias=None),
    ],
)
def test_constructor_arguments_of_wrong_types_are_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(TypeError, match=naming("LazyAttention", name, type(value).__name__)):
        LazyAttention(32, **dict(num_heads=4) | arguments)


@pytest.mark.parametrize(
    "arguments, names",
    [
        (dict(normalizer="Elastic"), ("attention", "normalizer", "elastic", "Elastic")),
        (dict(offset="per_key"), ("attention", "offset", "per_visible", "per_key")),
        (dict(window=0), ("attention", "window", 0)),
        (dict(window=2.0), ("attention", "window", "integer", 2.0)),
        (dict(causal=None), ("attention", "causal", "None")),
        (dict(softcap=-1.0), ("attention", "softcap", -1)),
        (dict(head_dim=300), ("attention", 256, 300)),
        (dict(rope_base=1.0), ("rope", "base", 1)),
        (dict(rope_options=dict(rotary_dim=3)), ("rope", "rotary_dim", 3)),
        (dict(rope_options=dict(scaling="yarn")), ("rope", "original_length", "yarn")),
        (dict(rope_options=dict(rope_type="yarn")), ("rope", "scaling", "rope_type")),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_settings_that_the_operators_refuse_are_refused_at_construction(arguments, names, device):
    operator, *names = names
    with pytest.raises((RuntimeError, TypeError), match=naming(f"lazy::{operator}", *names)):
        LazyAttention(32, 4, device=device, **arguments)


def test_invalid_calls_raise_errors():
    layer = make()
    with pytest.raises(ValueError, match=naming("LazyAttention", "x", "batch", "length", "hidden_size", "(3, 32)")):
        layer(torch.zeros(3, 32))
    with pytest.raises(ValueError, match=naming("cu_seqlens=")):
        layer(torch.zeros(3, 32))
    with pytest.raises(ValueError, match=naming("x", "(tokens, hidden_size)", "cu_seqlens", "(1, 3, 32)")):
        layer(torch.zeros(1, 3, 32), cu_seqlens=torch.tensor([0, 3]))
    for x in (torch.zeros(1, 3, 16), [1.0]):
        with pytest.raises(ValueError, match=naming("LazyAttention", "x", "hidden_size", 32)):
            layer(x)
    with pytest.raises(TypeError, match=naming("LazyAttention", "cache", "KVCache", "dict")):
        layer(torch.zeros(1, 3, 32), cache={})
    with pytest.raises(ValueError, match=naming("LazyAttention", "cache", "packed")):
        layer(torch.zeros(3, 32), cache=KVCache(), cu_seqlens=torch.tensor([0, 3]))
    with pytest.raises(RuntimeError, match=naming("lazy::attention", 256, 300)):
        lazy_attention.attention(*[torch.zeros(1, 2, 2, 300)] * 3, normalizer="softmax")
