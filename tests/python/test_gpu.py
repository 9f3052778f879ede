"""The operators on a GPU as PyTorch users meet them: opcheck, compile, autocast, CUDA graphs, Hugging Face."""

import re
import subprocess
import sys

import definition
import lazy_attention
import pytest
import torch
from lazy_attention import LazyAttention
from naming import naming
from torch import library

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]
lazy = torch.ops.lazy


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device="cuda").requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_forward_and_gradients_are_the_definition(dtype, head_dim):
    q, k, v = (
        leaf(2, 150, 4, head_dim, dtype=dtype),
        leaf(2, 150, 2, head_dim, dtype=dtype),
        leaf(2, 150, 2, head_dim, dtype=dtype),
    )
    bias, tau = (
        (torch.randn(4, 30, device="cuda") * 0.3).requires_grad_(),
        torch.full((4,), -0.8, device="cuda").requires_grad_(),
    )
    inputs = (q, k, v, bias, tau)
    exact_inputs = [x.detach().cpu().double().requires_grad_() for x in inputs]
    plain_inputs = [x.detach().cpu().requires_grad_() for x in inputs]
    out, exact, plain = (
        lazy_attention.attention(*inputs),
        definition.attention(*exact_inputs),
        definition.attention(*plain_inputs),
    )
    definition.close(out.cpu(), exact, plain, "out")
    d_out = torch.randn_like(out)
    for ours, truth, second in zip(
        torch.autograd.grad(out, inputs, d_out),
        torch.autograd.grad(exact, exact_inputs, d_out.cpu().double()),
        torch.autograd.grad(plain, plain_inputs, d_out.cpu()),
    ):
        definition.close(ours.cpu(), truth, second, str(tuple(ours.shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normalizer", ["softmax", "sigmoid"])
@pytest.mark.parametrize("head_dim", [40, 64, 128])
def test_statistics_of_scores_are_those_of_float64(dtype, normalizer, head_dim):
    q, k, v = (leaf(2, 300, heads, head_dim, dtype=dtype).detach() for heads in (4, 2, 2))
    exact = [t.cpu().double() for t in (q, k, v)]
    ours = lazy_attention.attention(q, k, v, normalizer=normalizer, return_score_stats=True)
    theirs = lazy_attention.attention(*exact, normalizer=normalizer, return_score_stats=True)
    assert torch.equal(ours.out, lazy_attention.attention(q, k, v, normalizer=normalizer))
    torch.testing.assert_close(ours.stats[3:].cpu().double(), theirs.stats[3:], rtol=1e-4, atol=1e-4)
    lengths = torch.tensor([300, 120], device="cuda")
    ours = lazy_attention.decode(q[:, :2], k, v, lengths, normalizer=normalizer, return_score_stats=True)
    theirs = lazy_attention.decode(
        exact[0][:, :2], *exact[1:], lengths.cpu(), normalizer=normalizer, return_score_stats=True
    )
    torch.testing.assert_close(ours.stats[3:].cpu().double(), theirs.stats[3:], rtol=1e-4, atol=1e-4)


def test_opcheck():
    q, k, v, bias = leaf(1, 9, 4, 16), leaf(1, 9, 2, 16), leaf(1, 9, 2, 8), leaf(4, 4)
    tau = torch.full((4,), -0.9, device="cuda").requires_grad_()
    library.opcheck(lazy.attention.default, (q, k, v, bias, tau))
    library.opcheck(lazy.attention.default, (q, k, v), {"normalizer": "softmax", "causal": False, "return_stats": True})
    library.opcheck(lazy.attention.default, (q, k, v), {"normalizer": "softmax", "return_stats": 2})
    for dtype in (torch.float32, torch.bfloat16):  # with alive_sum and without
        half = (*(leaf(1, 200, 4, 64, dtype=dtype) for _ in range(3)), leaf(4, 4), tau)
        options = (None, None, "elastic", "per_visible", None, None, True, -1, None, None, 0, False)
        library.opcheck(lazy.attention_forward.default, half + options, test_utils=("test_schema", "test_faketensor"))
    lengths = torch.tensor([9], dtype=torch.int32, device="cuda")
    with torch.no_grad():
        library.opcheck(lazy.decode.default, (q[:, :1], k, v, lengths, bias, tau))
    x, weight = leaf(3, 5, 16), leaf(16)
    library.opcheck(lazy.rms_norm.default, (x, weight, 1e-6))
    library.opcheck(lazy.add_rms_norm.default, (x, leaf(3, 5, 16), weight, 1e-6))
    library.opcheck(lazy.swiglu.default, (x, leaf(3, 5, 16)))
    library.opcheck(lazy.rope.default, (leaf(2, 5, 3, 16),))
    labels = torch.tensor([1, 2, -100, 0, 3, 6, 5], device="cuda")
    library.opcheck(lazy.linear_cross_entropy.default, (leaf(7, 16), leaf(7, 16), labels))


def test_packed_documents_on_either_device_and_their_mistakes():
    q = leaf(1000, 4, 64, dtype=torch.bfloat16)
    cu = torch.tensor([0, 300, 300, 1000], dtype=torch.int32)
    call = lambda c: lazy_attention.attention(q, q, q, normalizer="softmax", cu_seqlens_q=c, cu_seqlens_k=c)
    apart = torch.cat(
        [
            lazy_attention.attention(part[None], part[None], part[None], normalizer="softmax")[0]
            for part in (q[:300], q[300:])
        ]
    )
    torch.testing.assert_close(call(cu.cuda()), apart)
    assert torch.equal(call(cu.cuda()), call(cu)) and torch.equal(call(cu.cuda()), call(cu.long().cuda()))
    with pytest.raises(RuntimeError, match=naming("cu_seqlens_q", 1000, 999)):
        call(torch.tensor([0, 999]).cuda())


def test_bad_calls_are_refused_and_leave_the_gpu_usable():
    q = leaf(1, 64, 2, 64)
    for wrong in (
        lambda: lazy_attention.attention(q, q.cpu(), q, normalizer="softmax"),
        lambda: lazy_attention.attention(q, q[:, :, :1].repeat(1, 1, 3, 1), q, normalizer="softmax"),
        lambda: lazy_attention.attention(q.double(), q.double(), q.double(), normalizer="softmax"),
        lambda: lazy_attention.attention(q, q, q, tau=torch.zeros(2)),
    ):
        with pytest.raises(RuntimeError, match="^lazy::attention: "):
            wrong()
    assert torch.isfinite(lazy_attention.attention(q, q, q, normalizer="softmax")).all()


def test_autocast_computes_in_its_type():
    layer, x = LazyAttention(128, 2, 1, distance_bias_window=8).cuda(), torch.randn(2, 40, 128, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x), rtol=0.05, atol=0.05 * layer(x).std().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compile_fullgraph(dtype):
    layer, x = (
        LazyAttention(128, 2, 1, distance_bias_window=8).cuda().to(dtype),
        torch.randn(2, 40, 128, device="cuda", dtype=dtype),
    )
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=2e-2, atol=2e-2)


def test_cuda_graph_of_forward_and_backward():
    layer, x = (
        LazyAttention(128, 2, 1, distance_bias_window=8).cuda().bfloat16(),
        torch.randn(2, 300, 128, device="cuda", dtype=torch.bfloat16),
    )
    cu = torch.tensor([0, 100, 600], dtype=torch.int32, device="cuda")
    flat = x.flatten(0, 1).requires_grad_()

    def step():
        (gradient,) = torch.autograd.grad(layer(flat, cu_seqlens=cu).float().square().sum(), flat)
        return gradient

    expected = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.testing.assert_close(captured, expected, rtol=2e-2, atol=2e-2)  # d_q's sums come in any order


def test_deterministic_gives_the_same_bits():
    q, k, v = (leaf(2, 1000, 4, 64, dtype=torch.bfloat16) for _ in range(3))
    tau = torch.full((4,), -1.0, device="cuda").requires_grad_()
    d_out = torch.randn_like(q)

    def gradients():
        return torch.autograd.grad(
            lazy_attention.attention(q, k, v, tau=tau, deterministic=True), (q, k, v, tau), d_out
        )

    first = gradients()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients()))


def test_forced_kernels():
    script = """
import torch, lazy_attention
torch.manual_seed(0)
q = torch.randn(1, 200, 2, 64, device="cuda", dtype=torch.bfloat16)
print(lazy_attention.attention(q, q, q, tau=torch.full((2,), -1.0, device="cuda")).float().sum().item())
"""

    def run(kernel, code=script):
        import os

        return subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"LAZY_KERNEL": kernel}, capture_output=True, text=True
        )

    values = [float(run(kernel).stdout) for kernel in ("reference", "plain", "portable", "automatic")]
    assert max(values) - min(values) < 0.05 * abs(values[0]) + 1, values
    wrong = run("portable", script.replace("torch.bfloat16", "torch.float32"))
    assert wrong.returncode != 0 and re.search(naming("portable", "bfloat16", "float16", "float32"), wrong.stderr)
    unknown = run("fast")
    assert unknown.returncode != 0
    assert re.search(naming("LAZY_KERNEL", "automatic", "plain", "hopper", "fast"), unknown.stderr)


def test_a_hugging_face_llama_trains_compiled():
    transformers = pytest.importorskip("transformers")
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 0):
        pytest.skip(f"transformers {transformers.__version__} is older than 5")
    import lazy_attention.hf  # noqa: F401, registers "lazy"

    def train(attention, compiled):
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            vocab_size=256,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation=attention,
        )
        model = transformers.LlamaForCausalLM(config).cuda().bfloat16().train()
        run = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        ids = torch.randint(0, 256, (4, 200), device="cuda")
        losses = []
        for _ in range(8):
            loss = run(ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return torch.tensor(losses)

    expected, eager, compiled = train("sdpa", False), train("lazy", False), train("lazy", True)
    assert compiled[-1] < compiled[0] - 0.5
    torch.testing.assert_close(eager, expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(compiled, expected, rtol=0.02, atol=0.02)


def rows_by_definition(q, k, v, tau, rows, d_out):
    """Output and d_q of some rows of one head in float64, causal elastic: (rows, dim) each."""
    q = q[rows].double().requires_grad_()
    s = (q @ k.double().T * q.shape[1] ** -0.5).masked_fill(
        torch.arange(len(k), device="cuda") > rows[:, None], -torch.inf
    )
    out = torch.relu(s.softmax(-1) + tau / (rows[:, None] + 1)) @ v.double()
    return out.detach(), torch.autograd.grad(out, q, d_out[rows].double())[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_length_of_131072(dtype):
    n = 131072 if dtype != torch.float32 else 16384  # the plain kernel takes its time
    q, k, v = (leaf(1, n, 2, 64, dtype=dtype) for _ in range(3))
    tau = torch.full((2,), -1.0, device="cuda")
    d_out = torch.randn_like(q)
    out = lazy_attention.attention(q, k, v, tau=tau)
    (d_q,) = torch.autograd.grad(out, q, d_out)
    rows = torch.tensor([0, 1, 127, n // 3, n - 2, n - 1], device="cuda")
    with torch.no_grad():
        k1, v1, d1 = k[0, :, 1], v[0, :, 1], d_out[0, :, 1]
    expected, expected_d_q = rows_by_definition(q[0, :, 1].detach(), k1, v1, tau[1].double(), rows, d1)
    eps = 2**-7 if dtype == torch.bfloat16 else 1e-5
    for found, truth in ((out[0, rows, 1], expected), (d_q[0, rows, 1], expected_d_q)):
        assert (found.double() - truth).norm() <= eps * truth.norm()


def test_strides_beyond_two_to_the_31():
    n, step = 60000, 40000  # the last token lies at element 2.4e9
    if torch.cuda.mem_get_info()[0] < 12e9:
        pytest.skip("less than 12 GB of GPU memory free")
    far = torch.empty(n * step, device="cuda", dtype=torch.bfloat16)
    q, k, v = (
        far.as_strided((1, n, 1, 64), (0, step, 64, 1), 128 * part).copy_(torch.randn(1, n, 1, 64)) for part in range(3)
    )
    near = [x.contiguous().requires_grad_() for x in (q, k, v)]
    tau, d_out = torch.full((1,), -1.0, device="cuda"), torch.randn(1, n, 1, 64, device="cuda", dtype=torch.bfloat16)
    out = lazy_attention.attention(*near, tau=tau, deterministic=True)
    apart = [x.requires_grad_() for x in (q, k, v)]
    assert torch.equal(lazy_attention.attention(*apart, tau=tau, deterministic=True), out)
    for a, b in zip(
        torch.autograd.grad(lazy_attention.attention(*apart, tau=tau, deterministic=True), apart, d_out),
        torch.autograd.grad(out, near, d_out),
    ):
        assert torch.equal(a, b)
