"""Tests that torch.func.grad, similar transforms and second derivatives raise an error that names the operator, and
that torch.func.vmap and batched gradients give the same results as a loop."""

import lazy_attention as lazy
import pytest
import torch
from naming import naming
from test_forward_mode import FUNCTIONS

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:`torch.jit.script`")
REFUSED = naming("torch.func.grad", "not implemented")


def summed(function):
    return lambda x: function(x).sum()


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(summed(f))(x),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(summed(f))(x),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(summed(f)))(x[None]),
    "compiled grad": lambda f, x: torch.compile(torch.func.grad(summed(f)), backend="aot_eager")(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_torch_func_are_rejected(name, transform):
    function, shape = FUNCTIONS[name]
    with pytest.raises(NotImplementedError, match=naming(f"lazy::{name}")) as error:
        TRANSFORMS[transform](function, torch.randn(shape))
    # torch.func.hessian also uses forward-mode differentiation, which raises a different error
    if transform != "hessian":
        assert ("torch.autograd.grad" in str(error.value)) == (name != "decode")
        error.match(REFUSED)


def test_torch_func_grad_of_unrelated_tensors_is_allowed():
    x = torch.randn(1, 8, 2, 16)
    function = lambda factor: (lazy.attention(x, x, x, normalizer="softmax") * factor).sum()
    expected = lazy.attention(x, x, x, normalizer="softmax").sum()
    torch.testing.assert_close(torch.func.grad(function)(torch.tensor(2.0)), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_gives_the_results_and_gradients_of_a_loop(name):
    function, shape = FUNCTIONS[name]
    x = torch.randn(3, *shape, requires_grad=name != "decode")
    out, loop = torch.func.vmap(function)(x), torch.stack([function(part) for part in x])
    assert torch.equal(out, loop)
    if x.requires_grad:
        cotangent = torch.randn_like(out)
        ours, expected = (torch.autograd.grad(result, x, cotangent)[0] for result in (out, loop))
        torch.testing.assert_close(ours, expected)  # not bitwise equal, because sums are computed in a different order


def test_batched_gradients_match_a_loop():
    x = torch.randn(1, 5, 2, 4, dtype=torch.float64, requires_grad=True)
    out = lazy.attention(x, x, x, tau=torch.full((2,), -0.9, dtype=torch.float64))
    cotangents = torch.randn(3, *out.shape, dtype=torch.float64)
    (batched,) = torch.autograd.grad(out, x, cotangents, is_grads_batched=True, retain_graph=True)
    loop = [torch.autograd.grad(out, x, cotangent, retain_graph=True)[0] for cotangent in cotangents]
    assert torch.equal(batched, torch.stack(loop))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("decode", "rope")])
def test_second_derivatives_are_rejected_when_they_are_computed(name):
    function, shape = FUNCTIONS[name]
    x = torch.randn(shape, requires_grad=True)
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=naming(f"lazy::{name}_backward", "second derivative")):
        torch.autograd.grad(first.sum(), x)


def test_rope_has_second_derivatives():
    x = torch.randn(1, 3, 1, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: lazy.rope(x).sin(), (x,), atol=1e-5)
