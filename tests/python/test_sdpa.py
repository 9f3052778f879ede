"""Tests of the implementation of scaled_dot_product_attention. On the CPU, its kernels are registered for CPU tensors
and PyTorch's operator and autograd formula are called directly. test_gpu.py calls scaled_dot_product_attention."""

import definition
import lazy_attention.sdpa as sdpa
import pytest
import torch
import torch.nn.functional as F
from naming import naming
from torch.nn import attention as registry

operator = torch.ops.aten._scaled_dot_product_flash_attention


@pytest.fixture
def on_cpu():
    registration = sdpa.Registration("CPU")
    yield
    registration.remove()


def leaves(lengths, heads, dtype, transposed, dim=16):
    """Returns q, k and v, (batch, heads, length, head_dim). transposed: the memory layout is (batch, length, heads,
    head_dim), as in most models."""
    made = []
    for length, count in zip((lengths[0], lengths[1], lengths[1]), (heads[0], heads[1], heads[1])):
        t = torch.randn(2, length, count, dim) if transposed else torch.randn(2, count, length, dim).transpose(1, 2)
        made.append((t * 1.5).to(dtype).transpose(1, 2).detach().requires_grad_())
    return made


def reference(function, inputs, d_out):
    """Returns function's output and gradients for `inputs` (batch, heads, length, head_dim)."""
    out = function(*inputs)
    return [out.detach(), *definition.gradients(out, inputs, d_out)]


CALLS = [
    ((33, 33), (4, 2), dict(is_causal=True)),
    ((33, 33), (4, 4), dict(is_causal=True, scale=0.4)),
    ((1, 40), (4, 1), dict()),
    ((19, 50), (6, 3), dict(scale=0.1)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("lengths, heads, options", CALLS)
def test_matches_pytorch_in_float64(on_cpu, lengths, heads, options, transposed, dtype):
    inputs = leaves(lengths, heads, dtype, transposed)
    d_out = torch.randn(2, heads[0], lengths[0], 16).to(dtype)
    theirs = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    plain = lambda q, k, v: definition.attention(
        *(t.transpose(1, 2) for t in (q, k, v)),
        normalizer="softmax",
        causal=options.get("is_causal", False),
        scale=options.get("scale"),
    ).transpose(1, 2)
    exact = reference(theirs, [t.detach().double().requires_grad_() for t in inputs], d_out.double())
    ours = reference(lambda q, k, v: operator(q, k, v, 0.0, **options)[0], inputs, d_out)
    for name, a, b, c in zip(("out", "d_q", "d_k", "d_v"), ours, exact, reference(plain, inputs, d_out)):
        assert a.dtype == dtype
        if dtype == torch.float64:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=name)
        else:
            definition.close(a, b, c, name)


def test_log_sum_exp(on_cpu):
    q, k, v = (t.detach() for t in leaves((9, 9), (4, 2), torch.float32, True))
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT * 0.3
    expected = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).logsumexp(-1)
    torch.testing.assert_close(operator(q, k, v, 0.0, True, scale=0.3)[1].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transposed", [True, False])
def test_results_have_the_types_shapes_and_strides_that_compiled_programs_expect(on_cpu, transposed):
    inputs = [t.detach() for t in leaves((9, 13), (4, 2), torch.bfloat16, transposed)]
    kinds = lambda results: [(t.dtype, t.shape, t.stride()) if isinstance(t, torch.Tensor) else t for t in results]
    found, expected = operator(*inputs), operator(*(t.to("meta") for t in inputs))
    assert kinds(found) == kinds(expected)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    for results in found, expected:
        some = inputs if results is found else [t.to("meta") for t in inputs]
        gradients = backward(torch.ones_like(results[0]), *some, *results[:6], 0.0, False, *results[6:8])
        assert kinds(gradients) == kinds(inputs)


def test_unsupported_calls_name_the_cause(on_cpu):
    q, k, v = leaves((8, 8), (4, 4), torch.bfloat16, True)
    with pytest.raises(RuntimeError, match=naming("lazy_attention.sdpa", "dropout_p", 0.1)):
        operator(q, k, v, 0.1)
    with pytest.raises(RuntimeError, match=naming("lazy_attention.sdpa", "return_debug_mask")):
        operator(q, k, v, 0.0, False, True)
    with pytest.raises(RuntimeError, match=naming("lazy_attention.sdpa", "is_causal", 7, 8)):
        operator(q[:, :, :7], k, v, 0.0, True)


def test_registration_is_explicit_and_can_be_undone():
    def cuda_kernels():
        names = (operator, torch.ops.aten._scaled_dot_product_flash_attention_backward)
        dumps = [torch._C._dispatch_dump(op.default.name()) for op in names]
        return [next((line for line in d.splitlines() if line.startswith("CUDA")), "") for d in dumps]

    assert "lazy" in registry.list_flash_attention_impls()
    assert registry.current_flash_attention_impl() is None and not any("sdpa.py" in line for line in cuda_kernels())
    registry.activate_flash_attention_impl("lazy")
    try:
        assert registry.current_flash_attention_impl() == "lazy"
        assert all("lazy_attention/sdpa.py" in line for line in cuda_kernels())
    finally:
        registry.restore_flash_attention_impl()
    assert registry.current_flash_attention_impl() is None and not any("sdpa.py" in line for line in cuda_kernels())
