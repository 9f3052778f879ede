"""Tests that wrong arguments of the package's functions raise a one-line error that names the argument."""

import lazy_attention as lazy
import pytest
import torch
from naming import naming

Q, TAU, LENGTHS = torch.randn(1, 8, 4, 16), torch.zeros(4), torch.tensor([8])
X, WEIGHT = torch.randn(2, 6, 32), torch.ones(32)
HEAD, LABELS = torch.randn(10, 32), torch.arange(12).view(2, 6) % 10
CALLS = {
    "attention": (lazy.attention, dict(q=Q, k=Q, v=Q, tau=TAU)),
    "decode": (lazy.decode, dict(q=Q[:, :1], k_cache=Q, v_cache=Q, cache_lengths=LENGTHS, tau=TAU)),
    "rms_norm": (lazy.rms_norm, dict(x=X, weight=WEIGHT)),
    "swiglu": (lazy.swiglu, dict(gate=X, up=X)),
    "rope": (lazy.rope, dict(x=Q)),
    "linear_cross_entropy": (lazy.linear_cross_entropy, dict(hidden=X, weight=HEAD, labels=LABELS)),
}


def expect(error, name, changes, *names):
    function, arguments = CALLS[name]
    with pytest.raises(error, match=naming(f"lazy::{name}", *names)) as raised:
        function(**arguments | changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", CALLS)
def test_every_tensor_is_named(name):
    for argument in CALLS[name][1]:
        for value in (1.0, [1.0], "text"):
            expect(TypeError, name, {argument: value}, argument, "tensor", type(value).__name__)
    function, arguments = CALLS[name]
    assert function(**arguments).isfinite().all()


@pytest.mark.parametrize("name", ["attention", "decode"])
@pytest.mark.parametrize(
    "argument, value, kind",
    [
        ("normalizer", None, "string"),
        ("offset", 3, "string"),
        ("scale", "0.1", "number"),
        ("scale", torch.ones(2), "number"),
        ("softcap", True, "number"),
        ("sigmoid_bias", [1.0], "number"),
        ("causal", None, "True or False"),
        ("causal", "no", "True or False"),
        ("causal", 2, "True or False"),
        ("window", 8.0, "integer"),
        ("return_lse", "yes", "True or False"),
        ("return_stats", None, "True or False"),
        ("return_score_stats", 2, "True or False"),
    ],
)
def test_settings_of_wrong_types_are_named(name, argument, value, kind):
    expect(TypeError, name, {argument: value}, argument, kind, type(value).__name__)


@pytest.mark.parametrize(
    "name, argument, value, kind",
    [
        ("rms_norm", "eps", None, "number"),
        ("rope", "base", "1e4", "number"),
        ("rope", "offset", 1.5, "integer"),
        ("rope", "positions", [0, 1], "tensor"),
        ("rope", "rotary_dim", 4.0, "integer"),
        ("rope", "interleaved", None, "True or False"),
        ("rope", "scaling", None, "string"),
        ("rope", "pair_factors", torch.ones(8), "list of numbers"),
        ("rope", "pair_factors", ["1"] * 8, "list of numbers"),
        ("linear_cross_entropy", "ignore_index", None, "integer"),
    ],
)
def test_settings_of_the_other_functions_are_named(name, argument, value, kind):
    expect(TypeError, name, {argument: value}, argument, kind, type(value).__name__)


@pytest.mark.parametrize("name", ["attention", "decode"])
def test_arguments_of_other_attention_functions_are_refused_with_advice(name):
    for argument, instead in (("is_causal", "causal="), ("attn_mask", "window="), ("softmax_scale", "scale=")):
        expect(TypeError, name, {argument: True}, argument, instead)
    expect(TypeError, name, dict(causl=True), "causl", "causal")


@pytest.mark.parametrize("argument", ["q", "tau"])
def test_arrays_are_named_by_their_shape(argument):
    array = pytest.importorskip("numpy").zeros((2, 3))
    function, arguments = CALLS["attention"]
    with pytest.raises(TypeError, match=naming(argument, "ndarray", "(2, 3)")) as error:
        function(**arguments | {argument: array})
    assert "0." not in str(error.value)


def test_layouts_with_and_without_packed_documents_are_distinguished():
    expect(RuntimeError, "attention", dict(q=Q[0], k=Q[0], v=Q[0]), "q", "[8, 4, 16]", "cu_seqlens_q")
    ends = torch.tensor([0, 8], dtype=torch.int32)
    packed = dict(cu_seqlens_q=ends, cu_seqlens_k=ends)
    expect(RuntimeError, "attention", packed, "q", "(tokens, heads, head_dim)", "cu_seqlens_q", "[1, 8, 4, 16]")


def test_unknown_arguments_of_rope_are_named():
    expect(TypeError, "rope", dict(low_freq_factor=2.0), "low_freq_factor", "low_frequency")


def test_numbers_of_other_types_are_accepted():
    numpy = pytest.importorskip("numpy")
    function, arguments = CALLS["attention"]
    expected = function(**arguments, scale=0.5, window=3, causal=True)
    for scale, window, causal in (
        (numpy.float32(0.5), numpy.int64(3), numpy.True_),
        (torch.tensor(0.5), torch.tensor(3), 1),
    ):
        assert torch.equal(function(**arguments, scale=scale, window=window, causal=causal), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_functions_reject_the_same_arguments_for_every_type(dtype):
    """For types without a fused kernel, the functions call plain PyTorch operators, which would broadcast tensors of
    wrong shapes instead of raising an error."""
    x, q = X.to(dtype), Q.to(dtype)
    for changes, names in (
        (dict(weight=torch.ones(31)), ("weight", "(32)", "[31]")),
        (dict(weight=torch.ones(1)), ("weight", "(32)", "[1]")),
        (dict(weight=torch.ones(32, dtype=torch.long)), ("weight", "floating-point", "torch.int64")),
        (dict(weight=torch.ones(32, device="meta")), ("weight", "cpu", "meta")),
        (dict(x=x[0, 0, 0]), ("x", "(..., dim)", "[]")),
    ):
        expect(RuntimeError, "rms_norm", dict(x=x) | changes, *names)
    for changes, names in (
        (dict(up=x[0]), ("up", "[2, 6, 32]", "[6, 32]")),
        (dict(up=x.to(torch.float32 if dtype != torch.float32 else torch.float64)), ("up", "gate", dtype)),
        (dict(up=x.to("meta")), ("up", "cpu", "meta")),
    ):
        expect(RuntimeError, "swiglu", dict(gate=x, up=x) | changes, *names)
    for rotary_dim in (-2, 0, 3, 18):
        expect(RuntimeError, "rope", dict(x=q, rotary_dim=rotary_dim), "rotary_dim", rotary_dim)


def test_integers_are_rejected():
    expect(RuntimeError, "rms_norm", dict(x=X.long()), "x", "floating-point", "torch.int64")
    expect(RuntimeError, "swiglu", dict(gate=X.long(), up=X.long()), "gate", "floating-point", "torch.int64")
    expect(RuntimeError, "rope", dict(x=Q.long()), "x", "floating-point", "torch.int64")


# --- linear_cross_entropy ---


@pytest.mark.parametrize("compiled", [False, True])
def test_linear_cross_entropy_has_any_number_of_leading_dimensions(compiled):
    loss = lazy.linear_cross_entropy
    if compiled:
        loss = torch.compile(loss, fullgraph=True, backend="aot_eager")
    labels = LABELS.clone()
    labels[1, 2] = -100
    results = []
    for shape in ((12,), (2, 6), (1, 2, 3, 2)):
        hidden, weight = (t.clone().requires_grad_() for t in (X.reshape(*shape, 32), HEAD))
        out = loss(hidden, weight, labels.reshape(shape))
        gradients = torch.autograd.grad(out, (hidden, weight))
        assert gradients[0].shape == hidden.shape
        results.append((out.detach(), gradients[0].reshape(12, 32), gradients[1]))
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others))
    expected = torch.nn.functional.cross_entropy((X @ HEAD.T).transpose(1, 2), labels)
    torch.testing.assert_close(results[0][0], expected)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "changes, names",
    [
        (dict(labels=LABELS.flatten()), ("labels", "[2, 6]", "[12]")),
        (dict(labels=LABELS.float()), ("labels", "int64", "torch.float32")),
        (dict(weight=HEAD.T), ("weight", "(vocabulary, dim)", "[32, 10]")),
        (dict(hidden=X[0, 0], labels=LABELS[0, 0]), ("hidden", "(..., dim)", "[32]")),
        (dict(hidden=X.transpose(1, 2)), ("hidden", "(..., dim)", "[2, 32, 6]")),
        (dict(labels=LABELS + 1), ("labels", 9, "received 10")),
    ],
)
def test_linear_cross_entropy_names_the_expected_shape(compiled, changes, names):
    function, arguments = CALLS["linear_cross_entropy"]
    if compiled:
        function = torch.compile(function, backend="aot_eager")
    arguments = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in (arguments | changes).items()}
    with pytest.raises(RuntimeError, match=naming("lazy::linear_cross_entropy", *names)):
        function(**arguments)
