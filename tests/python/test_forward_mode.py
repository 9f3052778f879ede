"""Tests that forward-mode differentiation of the operators raises NotImplementedError. Otherwise it would silently
return a tangent that is None or zero."""

import pathlib
import subprocess
import sys

import forward_mode
import lazy_attention as lazy
import pytest
import torch
from forward_mode import WAYS, expect_refused
from torch.autograd import forward_ad

LABELS, LENGTHS = torch.zeros(4, dtype=torch.long), torch.tensor([8])
FUNCTIONS = {
    "attention": (lambda q: lazy.attention(q, q, q, normalizer="softmax"), (1, 8, 2, 16)),
    "decode": (lambda q: lazy.decode(q[:, :1], q, q, LENGTHS, normalizer="softmax"), (1, 8, 2, 16)),
    "linear_cross_entropy": (lambda x: lazy.linear_cross_entropy(x, torch.ones(10, 32), LABELS), (4, 32)),
    "rms_norm": (lambda x: lazy.rms_norm(x, torch.ones(32)), (4, 32)),
    "rope": (lazy.rope, (1, 8, 2, 16)),
    "swiglu": (lambda x: lazy.swiglu(x, x), (4, 32)),
}


@pytest.mark.parametrize("name", forward_mode.registered())
def test_every_operator_rejects_tangents(name):
    """The test also fails for an operator that has no calls in forward_mode.py."""
    forward_mode.check(name)


def test_operators_of_the_program_reject_tangents(built_file):
    script = pathlib.Path(forward_mode.__file__)
    command = [sys.executable, script, built_file("LAZY_TORCH_OPS_LIBRARY")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_reject_tangents(name, autocast):
    function, shape = FUNCTIONS[name]
    x = torch.randn(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        for way in WAYS:
            expect_refused(name, way, function, x)


def test_message_names_the_alternative():
    x = torch.randn(4, 32)
    with pytest.raises(NotImplementedError) as error:
        torch.func.jvp(lambda x: lazy.swiglu(x, x), (x,), (x,))
    assert str(error.value) == (
        "lazy::swiglu: forward-mode derivatives are not implemented; use torch.autograd.grad or backward()"
    )


def test_layer_rejects_tangents():
    layer = lazy.LazyAttention(hidden_size=32, num_heads=4, num_kv_heads=2, distance_bias_window=8)
    x, parameters = torch.randn(1, 6, 32), dict(layer.named_parameters())
    for way in WAYS:
        expect_refused("rope", way, layer, x)
    for name, parameter in parameters.items():
        # o_proj is applied after the operators, so its tangent does not pass through them
        if name.startswith("o_proj"):
            continue
        with pytest.raises(NotImplementedError, match="lazy::"):
            torch.func.jvp(
                lambda p: torch.func.functional_call(layer, {name: p}, (x,)),  # noqa: B023  called immediately
                (parameter,),
                (torch.ones_like(parameter),),
            )


@pytest.mark.parametrize("order", ["vmap of jvp", "jvp of vmap", "jvp of jvp"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_nested_transforms_reject_tangents(order):
    def function(x):
        return lazy.swiglu(x, x)

    def tangent(x):
        return torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]

    x = torch.randn(3, 4, 32)
    with pytest.raises(NotImplementedError, match="lazy::swiglu"):
        if order == "vmap of jvp":
            torch.func.vmap(tangent)(x)
        elif order == "jvp of vmap":
            torch.func.jvp(torch.func.vmap(function), (x,), (x,))
        else:
            torch.func.jvp(tangent, (x,), (x,))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tangents_of_unrelated_tensors_are_allowed(name):
    """Inside a dual level, the operators return the same results and gradients as outside of it."""
    function, shape = FUNCTIONS[name]
    x = torch.randn(shape, requires_grad=name != "decode")

    def run(factor):
        out = function(x)
        gradient = torch.autograd.grad(out.sum(), x)[0] if x.requires_grad else None
        return out.detach() * factor, out, gradient

    expected = run(torch.ones(()))
    with forward_ad.dual_level():
        product, out, gradient = run(forward_ad.make_dual(torch.ones(()), torch.ones(())))
        assert torch.equal(forward_ad.unpack_dual(product).tangent, expected[1])
        assert forward_ad.unpack_dual(out).tangent is None
    assert torch.equal(out, expected[1])
    assert gradient is None if expected[2] is None else torch.equal(gradient, expected[2])
    _, tangent = torch.func.jvp(lambda y: function(x.detach()).sum() * y, (torch.ones(()),), (torch.ones(()),))
    torch.testing.assert_close(tangent, expected[1].sum().detach())


@pytest.mark.parametrize("way", ["dual", "jvp"])
def test_compiled_functions_reject_tangents(way):
    x = torch.randn(4, 32)
    inside = torch.compile(lambda x: WAYS[way](lambda y: lazy.swiglu(y, y), x), backend="aot_eager")
    with pytest.raises(NotImplementedError, match="lazy::swiglu"):
        inside(x)
    compiled = torch.compile(lambda x: lazy.swiglu(x, x), backend="aot_eager")
    torch.testing.assert_close(compiled(x), lazy.swiglu(x, x))
    expect_refused("swiglu", way, compiled, x)
