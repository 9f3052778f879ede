"""Checks that forward-mode differentiation of every operator of the namespace `lazy` raises NotImplementedError.

`forward_mode.py LIBRARY` checks the operators of the program's liblazy_ops.so. This must run in a process that does not
import the Python package, because the package registers operators of the same names. test_forward_mode.py checks the
operators of the package.
"""

import re
import sys

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

PREFIX = "lazy::"


def registered():
    """Returns the names of all operators in the namespace `lazy`, without the namespace."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))


def attention_calls():
    """Returns calls (see `calls`) of the operators attention, attention_forward, attention_backward and decode. The
    calls pass all optional tensors."""
    lazy, calls = torch.ops.lazy, {}
    q, k, v, slopes = torch.randn(1, 5, 4, 8), torch.randn(1, 5, 2, 8), torch.randn(1, 5, 2, 8), torch.rand(4)
    bias, tau, sink, lengths = torch.randn(4, 3), torch.full((4,), -0.9), torch.randn(4), torch.tensor([5])
    elastic, softmax = (bias, tau, None), (bias, None, sink)
    for parameters, normalizer in ((elastic, "elastic"), (softmax, "softmax_sink")):
        options = {"alibi_slopes": slopes, "normalizer": normalizer}
        calls.setdefault("attention", []).append(((q, k, v, *parameters), options))
        calls.setdefault("decode", []).append(((q[:, :1], k, v, lengths, *parameters), options))
        problem = (normalizer, "per_visible", None, None, 30.0, True, -1, None, None)
        forward = (q, k, v, *parameters, slopes, *problem, 0, False)
        out, lse, _, alive_sum = lazy.attention_forward(*forward)
        mask = [t is not None for t in (q, k, v, *parameters, slopes)]
        backward = (torch.randn_like(out), out, lse, q, k, v, *parameters, slopes, *problem, False, mask, alive_sum)
        calls.setdefault("attention_forward", []).append((forward, {}))
        calls.setdefault("attention_backward", []).append((backward, {}))
    return calls


def calls():
    """Returns {operator: [(positional arguments, keyword arguments), ...]}."""
    x, weight, labels = torch.randn(4, 16), torch.rand(16), torch.tensor([0, 1, 2, 3])
    head, part = torch.randn(10, 16), torch.randn(16, 16)
    q, long_x, taps = torch.randn(1, 5, 2, 8), torch.randn(2, 9, 8), torch.randn(8, 1, 4)
    # lazy::linear_recurrence has no CPU kernel, so it is called with Meta tensors. Its Autograd kernel, which this test
    # checks, also runs for Meta tensors.
    wide = torch.randn(1, 64, 2, 64, device="meta", dtype=torch.bfloat16)
    decay, skip, state = (torch.randn(*shape, device="meta") for shape in ((1, 64, 2), (2,), (1, 2, 64, 64)))
    recurrence = (wide, wide, wide, decay, None, skip, state, None, 1.0, False)
    return attention_calls() | {
        "add_product": [((torch.randn(4, 10), x, head.t()), {})],
        "add_rms_norm": [((x, x.clone(), weight, 1e-5), {})],
        "linear_cross_entropy": [((x, head, labels), {})],
        "linear_cross_entropy_and_gradients": [((x, head, labels, -100, True, True), {})],
        "linear_cross_entropy_backward": [((torch.ones(()), x, x.clone()), {})],
        "linear_recurrence": [(recurrence, {})],
        "linear_recurrence_backward": [((wide, state, *recurrence), {})],
        "quantize_fp8": [(([part, part.clone()], torch.float8_e4m3fn, True, True), {})],
        "rms_norm": [((x, weight, 1e-5), {})],
        "rms_norm_backward": [((x, x.clone(), weight, 1e-5, x.clone()), {})],
        "rope": [((q,), {"positions": torch.arange(5)})],
        "short_convolution": [((long_x, taps, torch.randn(8), torch.randn(2, 3, 8)), {})],
        "short_convolution_backward": [((long_x, long_x, taps, torch.randn(8), torch.randn(2, 3, 8), None), {})],
        "swiglu": [((x, x.clone()), {})],
        "swiglu_backward": [((x, x.clone(), x.clone()), {})],
        "swiglu_halves_backward": [((x, torch.randn(4, 32), True), {})],
    }


def dual(function, x):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(x, torch.ones_like(x)))


def without_grad(function, x):
    with torch.no_grad():
        return dual(function, x)


WAYS = {
    "dual": dual,
    "dual, no_grad": without_grad,
    "dual, requires_grad": lambda function, x: dual(function, x.detach().requires_grad_()),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (torch.ones_like(x),)),
    "jvp, requires_grad": lambda function, x: torch.func.jvp(
        function, (x.detach().requires_grad_(),), (torch.ones_like(x),)
    ),
    "jacfwd": lambda function, x: torch.func.jacfwd(function)(x),
    "linearize": lambda function, x: torch.func.linearize(function, x),
}


def expect_refused(name, way, function, x):
    """Asserts that forward-mode differentiation of `function` at x raises an error that names the operator `name`."""
    try:
        result = WAYS[way](function, x)
    except NotImplementedError as error:
        assert re.search(rf"lazy::{name}\b", str(error)), (name, way, str(error))
        return
    raise AssertionError(f"{name}, {way}: expected NotImplementedError, found {result}")


def check(name):
    """Checks all calls of an operator, with a tangent for each floating-point input, by all forward-mode APIs."""
    operator = getattr(torch.ops.lazy, name).default
    for arguments, options in calls()[name]:
        leaves, structure = pytree.tree_flatten((arguments, options))

        def call(leaves):
            # copies, because add_product modifies an input
            leaves = [t.clone() if isinstance(t, torch.Tensor) else t for t in leaves]
            a, o = pytree.tree_unflatten(leaves, structure)  # noqa: B023  called in this iteration only
            return operator(*a, **o)

        places = [n for n, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        assert places, name
        for place in places:
            for way in WAYS:
                with_input = lambda x, at=place: call([*leaves[:at], x, *leaves[at + 1 :]])  # noqa: B023
                expect_refused(name, way, with_input, leaves[place])
        with forward_ad.dual_level():  # inputs without tangents are allowed
            call(leaves)


def main():
    torch.ops.load_library(sys.argv[1])
    torch.manual_seed(0)
    assert "attention" in registered()
    for name in registered():
        check(name)


if __name__ == "__main__":
    main()
