"""Runs PyTorch's opcheck and related checks on the operators.
Usage: check_operators.py LIBRARY checks the operators of the program (path of liblazy_ops.so);
check_operators.py lazy_attention checks the operators of the Python package.
"""

import sys

import torch
from torch import library

package = sys.argv[1] == "lazy_attention"
if package:
    import lazy_attention  # noqa: F401  registers torch.ops.lazy
else:
    torch.ops.load_library(sys.argv[1])
lazy = torch.ops.lazy


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def main():
    torch.manual_seed(0)
    q, k, v, bias = leaf(1, 9, 4, 16), leaf(1, 9, 2, 16), leaf(1, 9, 2, 8), leaf(4, 4)
    tau = torch.full((4,), -0.9).requires_grad_()
    library.opcheck(lazy.attention.default, (q, k, v, bias, tau))
    library.opcheck(lazy.attention.default, (q, k, v), {"normalizer": "softmax", "causal": False, "return_stats": True})
    forward = (
        q,
        k,
        v,
        bias,
        tau,
        None,
        None,
        "elastic",
        "per_visible",
        None,
        None,
        30.0,
        True,
        -1,
        None,
        None,
        False,
        False,
    )
    library.opcheck(lazy.attention_forward.default, forward, test_utils=("test_schema", "test_faketensor"))
    lengths = torch.tensor([9], dtype=torch.int32)
    with torch.no_grad():
        library.opcheck(lazy.decode.default, (q[:, -2:], k, v, lengths, bias, tau))
        library.opcheck(
            lazy.decode.default,
            (q[:, -2:], k, v, lengths),
            {"normalizer": "softmax", "block_table": torch.tensor([[0]]), "return_stats": True},
        )
    library.opcheck(lazy.rms_norm.default, (leaf(3, 5, 8), leaf(8), 1e-6))
    library.opcheck(lazy.add_rms_norm.default, (leaf(3, 5, 8), leaf(3, 5, 8), leaf(8), 1e-6))
    library.opcheck(lazy.swiglu.default, (leaf(3, 8), leaf(3, 8)))
    fakes = ("test_schema", "test_faketensor")
    library.opcheck(lazy.swiglu_halves_backward.default, (leaf(3, 8), leaf(3, 16), True), test_utils=fakes)
    if not package:
        parts = [torch.randn(32, 16), torch.randn(32, 48)]
        library.opcheck(lazy.quantize_fp8.default, (parts, torch.float8_e4m3fn, True, True), test_utils=fakes)
        library.opcheck(lazy.short_convolution.default, (leaf(2, 9, 8), leaf(8, 1, 4), leaf(8), torch.randn(2, 3, 8)))
    library.opcheck(lazy.rope.default, (leaf(1, 9, 4, 16), 1e4, 3))
    library.opcheck(
        lazy.rope.default,
        (leaf(1, 9, 4, 16),),
        {
            "positions": torch.arange(9),
            "rotary_dim": 8,
            "interleaved": True,
            "scaling": "longrope",
            "factor": 4.0,
            "original_length": 64,
            "pair_factors": [1.0, 1.5, 3.0, 9.0],
        },
    )
    library.opcheck(lazy.linear_cross_entropy.default, (leaf(5, 8), leaf(11, 8), torch.randint(0, 11, (5,))))
    gradients = (leaf(5, 8), leaf(11, 8), torch.randint(0, 11, (5,)), -100, True, True)
    library.opcheck(lazy.linear_cross_entropy_and_gradients.default, gradients, test_utils=fakes)
    exact = [t.detach().double().requires_grad_() for t in (q, k, v, bias, tau)]
    assert torch.autograd.gradcheck(lambda *a: lazy.attention(*a)[0], exact)


main()
