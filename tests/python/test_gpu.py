"""Tests of the operators on a GPU together with features of PyTorch: opcheck, compile, autocast, CUDA graphs, Hugging
Face models."""

import itertools
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
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_forward_and_gradients_match_the_definition(dtype, head_dim, softcap):
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
        lazy_attention.attention(*inputs, softcap=softcap),
        definition.attention(*exact_inputs, softcap=softcap),
        definition.attention(*plain_inputs, softcap=softcap),
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
def test_score_statistics_match_float64(dtype, normalizer, head_dim):
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
    for dtype, softcap in itertools.product(
        (torch.float32, torch.bfloat16), (None, 30.0)
    ):  # the kernels write the output alive_sum only for some of these combinations
        half = (*(leaf(1, 200, 4, 64, dtype=dtype) for _ in range(3)), leaf(4, 4), tau)
        options = (None, None, "elastic", "per_visible", None, None, softcap, True, -1, None, None, 0, False)
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


def test_cu_seqlens_on_cpu_or_gpu_are_accepted_and_checked():
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


def test_invalid_calls_raise_errors_and_leave_the_gpu_usable():
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


def test_autocast_computes_in_the_autocast_type():
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


def recorded(function):
    """Captures function() in a CUDA graph. Returns the graph and the result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def test_cuda_graph_captures_forward_and_backward():
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
    graph, captured = recorded(step)
    graph.replay()
    torch.testing.assert_close(captured, expected, rtol=2e-2, atol=2e-2)  # sums in d_q are computed in a varying order


def test_deterministic_results_are_bitwise_reproducible():
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


def test_lazy_kernel_selects_the_kernel():
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


def test_compiled_hugging_face_llama_can_be_trained():
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
    """Returns the output and d_q of some rows of one head in float64, (rows, dim) each, for causal "elastic"
    attention."""
    q = q[rows].double().requires_grad_()
    s = (q @ k.double().T * q.shape[1] ** -0.5).masked_fill(
        torch.arange(len(k), device="cuda") > rows[:, None], -torch.inf
    )
    out = torch.relu(s.softmax(-1) + tau / (rows[:, None] + 1)) @ v.double()
    return out.detach(), torch.autograd.grad(out, q, d_out[rows].double())[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_of_131072_tokens(dtype):
    n = 131072 if dtype != torch.float32 else 16384  # a shorter sequence in fp32, whose kernel is slow
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


def test_strides_above_2_to_the_31():
    n, step = 60000, 40000  # the last token is at the offset of 2.4e9 elements
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


def documents(*lengths):
    """Returns cu_seqlens for documents of the given lengths."""
    return torch.tensor((0, *lengths), device="cuda").cumsum(0).int()


# Document lengths of packed batches. All batches have the same number of documents and tokens, so that a CUDA graph
# that is captured for one batch can be replayed for another.
LAYOUTS = [(100, 400, 100), (1, 598, 1), (300, 0, 300), (599, 1, 0), (200, 200, 200)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_graphs_of_compiled_functions_read_new_document_lengths(dtype):
    layer = LazyAttention(128, 2, 1, distance_bias_window=8).cuda().to(dtype)
    compiled = torch.compile(layer, mode="reduce-overhead")
    x, d_y = (torch.randn(600, 128, device="cuda", dtype=dtype) for _ in range(2))

    def step(module, cu_seqlens):
        x_here = x.clone().requires_grad_()
        y = module(x_here, cu_seqlens=cu_seqlens)
        gradients = torch.autograd.grad(y, [x_here, *layer.parameters()], d_y)
        return [t.clone() for t in (y, *gradients)]

    # all layouts twice: the first calls warm up and capture the graph, later calls replay it
    for lengths in LAYOUTS + LAYOUTS:
        torch.compiler.cudagraph_mark_step_begin()
        for found, expected in zip(step(compiled, documents(*lengths)), step(layer, documents(*lengths))):
            assert (found - expected).norm() <= 1e-2 * expected.norm(), lengths


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_cuda_graph_replay_reads_new_document_lengths(dtype):
    q, k, v = (torch.randn(600, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    cu = documents(*LAYOUTS[0]).to(dtype)

    def attend(lengths):
        return lazy_attention.attention(q, k, v, normalizer="softmax", cu_seqlens_q=lengths, cu_seqlens_k=lengths)

    graph, out = recorded(lambda: attend(cu))
    for lengths in LAYOUTS:
        cu.copy_(documents(*lengths))
        graph.replay()
        assert torch.equal(out, attend(documents(*lengths))), lengths


def test_wrong_document_lengths_in_a_graph_replay_raise_an_error():
    script = """
import torch, lazy_attention
q = torch.randn(600, 2, 64, device="cuda", dtype=torch.bfloat16)
cu = torch.tensor([0, 100, 600], device="cuda", dtype=torch.int32)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = lazy_attention.attention(q, q, q, normalizer="softmax", cu_seqlens_q=cu, cu_seqlens_k=cu)
graph.replay()
torch.cuda.synchronize()
print("fine")
cu[1] = 1 << 30
graph.replay()
torch.cuda.synchronize()
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "fine" in run.stdout and run.returncode != 0
    assert re.search(naming("cu_seqlens_q", "600", str(1 << 30)), run.stdout), run.stdout


MANY = 70000  # number of sequences, which exceeds the maximum grid size along y and z (65535)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [None, 16, 1])
def test_decode_of_many_sequences(dtype, page_size):
    keys, heads, kv_heads = 20, 4, 2
    q = torch.randn(MANY, 1, heads, 64, device="cuda", dtype=dtype)
    lengths = torch.randint(0, keys + 1, (MANY,), device="cuda", dtype=torch.int32)
    tau = torch.full((heads,), -0.5, device="cuda")
    k, v = (torch.randn(MANY, keys, kv_heads, 64, device="cuda", dtype=dtype) for _ in range(2))
    if page_size is None:
        arguments = (q, k, v, lengths)
        options = {}
    else:
        pages = -(-keys // page_size)
        table = torch.randperm(MANY * pages, device="cuda").int().view(MANY, pages)
        caches = []
        for t in (k, v):
            padded = torch.nn.functional.pad(t, (0, 0, 0, 0, 0, pages * page_size - keys))
            cache = torch.empty(MANY * pages, page_size, kv_heads, 64, device="cuda", dtype=dtype)
            cache[table.flatten().long()] = padded.reshape(MANY * pages, page_size, kv_heads, 64)
            caches.append(cache)
        arguments = (q, *caches, lengths)
        options = {"block_table": table}
    for statistics in (False, True):
        out = lazy_attention.decode(*arguments, tau=tau, return_stats=statistics, **options)
        out = out[0] if isinstance(out, tuple) else out
        for part in (slice(0, 300), slice(MANY - 5000, MANY)):
            scores = torch.einsum(
                "bhd,bkhd->bhk", q[part, 0].double(), k[part].double().repeat_interleave(heads // kv_heads, 2)
            )
            seen = torch.arange(keys, device="cuda") < lengths[part, None, None]
            weights = (scores * 64**-0.5).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
            count = lengths[part, None, None].clamp(min=1)
            weights = torch.where(seen, torch.relu(weights + tau[:, None] / count), 0)
            expected = torch.einsum("bhk,bkhd->bhd", weights, v[part].double().repeat_interleave(heads // kv_heads, 2))
            assert (out[part, 0] - expected).norm() <= 2 * torch.finfo(dtype).eps * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_many_sequences(dtype):
    heads, length = 2, 5
    q, k, v = (leaf(MANY, length, heads, 64, dtype=dtype) for _ in range(3))
    bias = (torch.randn(heads, 3, device="cuda") * 0.3).requires_grad_()
    tau = torch.full((heads,), -0.8, device="cuda").requires_grad_()
    inputs = (q, k, v, bias, tau)
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    plain_inputs = [x.detach().requires_grad_() for x in inputs]
    out = lazy_attention.attention(*inputs)
    with torch.device("cuda"):
        exact, plain = definition.attention(*exact_inputs), definition.attention(*plain_inputs)
    definition.close(out, exact, plain, "out")
    d_out = torch.randn_like(out)
    for name, ours, truth, second in zip(
        ("q", "k", "v", "distance_bias", "tau"),
        torch.autograd.grad(out, inputs, d_out),
        torch.autograd.grad(exact, exact_inputs, d_out.double()),
        torch.autograd.grad(plain, plain_inputs, d_out),
    ):
        definition.close(ours, truth, second, name)


def attention_of_float16(q, k, v, tau):
    """Returns output, lse, statistics and gradients for q, k, v (1, length, 1, 64) in float16, float64 and float32."""
    d_out = 256 * torch.randn_like(q)  # large gradients, as with loss scaling in float16 training

    def by_definition(q, k, v, tau):
        scores = (q[0, :, 0] @ k[0, :, 0].T) / 8
        first = k.shape[1] - q.shape[1]
        hidden = torch.arange(k.shape[1], device="cuda") > torch.arange(q.shape[1], device="cuda")[:, None] + first
        scores = scores.masked_fill(hidden, -torch.inf)
        count = (~hidden).sum(1, keepdim=True)
        weights = (scores.softmax(-1) + tau / count).relu().masked_fill(hidden, 0)
        stats = torch.stack((weights[:, 0], 1 - weights.sum(1), (weights > 0).sum(1)))
        return (weights @ v[0, :, 0])[None, :, None], scores.logsumexp(1), stats.view(3, 1, 1, -1)

    def results(attend, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        out, *statistics = attend(*leaves, tau.double() if dtype == torch.float64 else tau)
        return out, *statistics, *torch.autograd.grad(out, leaves, d_out.to(dtype))

    ours = results(lambda *x: lazy.attention(*x[:3], None, x[3], return_stats=1), torch.float16)
    return ours, results(by_definition, torch.float64), results(by_definition, torch.float32)


def test_float16_with_subnormal_weights_is_accurate():
    """The weights are nearly uniform over so many keys that each weight is below the smallest normal float16 number.
    The error must not exceed the error in bfloat16."""
    keys, rows = 65536, 200
    q = (0.01 * torch.randn(1, rows, 1, 64, device="cuda")).half()
    k, v = (torch.randn(1, keys, 1, 64, device="cuda").half() for _ in range(2))
    for tau in (0.3, -0.3):
        found, exact, plain = attention_of_float16(q, k, v, torch.full((1,), tau, device="cuda"))
        for name, index in (("out", 0), ("d_q", 3), ("d_k", 4), ("d_v", 5)):
            definition.close(found[index], exact[index], plain[index].bfloat16(), name)


@pytest.mark.parametrize("size", [1e-4, 1.0, 200.0])
def test_float16_statistics_do_not_overflow_or_underflow(size):
    """Tests inputs whose scores are up to 3e5 and whose sums of squares exceed the range of float16."""
    q, k, v = ((size * torch.randn(1, 3000, 1, 64, device="cuda")).half() for _ in range(3))
    found, exact, plain = attention_of_float16(q, k, v, torch.full((1,), -0.7, device="cuda"))
    definition.close(found[0], exact[0], plain[0].half(), "out")
    torch.testing.assert_close(found[1].flatten().double(), exact[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[2][:2].double(), exact[2][:2], rtol=1e-3, atol=1e-5)
    # keys whose weight is zero up to rounding may be counted differently
    assert ((found[2][2] - exact[2][2]).abs() <= 0.005 * exact[2][2] + 1).all()

    x = (300 * size * torch.randn(50, 512, device="cuda")).clamp(-6e4, 6e4).half()
    w = torch.rand(512, device="cuda").half()
    wide = x.double()
    norm = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w.double()
    torch.testing.assert_close(lazy_attention.rms_norm(x, w), norm.half(), rtol=2e-3, atol=1e-7)
    gated = torch.nn.functional.silu(wide) * (x.flip(0).double() / (300 * size))
    torch.testing.assert_close(
        lazy_attention.swiglu(x, (x.flip(0).double() / (300 * size)).half()), gated.half(), rtol=4e-3, atol=1e-6
    )
    head, labels = (size * torch.randn(1000, 512, device="cuda")).half(), torch.randint(1000, (50,), device="cuda")
    rows = (x / 300).contiguous()
    loss = torch.nn.functional.cross_entropy(rows.double() @ head.double().T, labels)
    torch.testing.assert_close(
        lazy_attention.linear_cross_entropy(rows, head, labels).double(), loss, rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("base", [1e4, 1e7])
def test_float16_rope_at_large_positions(base):
    x = torch.randn(1, 64, 2, 64, device="cuda").half()
    x[:, ::2] *= 2e4
    x[:, 1::4] *= 1e-4
    positions = (torch.arange(64, device="cuda") * 16411).flip(0)  # positions up to a million
    angle = positions[:, None] * base ** (-torch.arange(32, device="cuda").double() / 32)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.double().chunk(2, -1)
    expected = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    found = lazy_attention.rope(x, base=base, positions=positions).double()
    # length of each rotated pair, to which rounding errors are proportional
    pair = (a.square() + b.square()).sqrt().repeat(1, 1, 1, 2)
    fits = expected.abs() < 65504
    assert ((found - expected).abs() <= 2**-11 * expected.abs() + 2**-20 * pair + 2**-25)[fits].all()
    assert torch.isinf(found[expected.abs() > 65520]).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("first", [0, 1])
def test_operators_on_a_gpu_that_is_not_current(first):
    """Tests operators whose tensors are on a GPU that is not the current device. Every operator is called directly and
    captured in a CUDA graph. `first`: the GPU that the process uses first."""
    script = """
import sys
import torch, lazy_attention
from lazy_attention import attention, decode, linear_cross_entropy, rms_norm, rope, swiglu

torch.manual_seed(0)
torch.cuda.set_device(0)


def tensors(dtype):
    make = lambda *shape: torch.randn(*shape, dtype=dtype)
    return {
        "q": make(2, 300, 4, 64), "k": make(2, 300, 2, 64), "v": make(2, 300, 2, 64), "tau": torch.full((4,), -1.0),
        "one": make(2, 1, 4, 64), "lengths": torch.tensor([300, 17], dtype=torch.int32), "x": make(20, 256),
        "w": make(256), "gate": make(20, 256), "head": make(1000, 256), "labels": torch.randint(1000, (20,)),
        "cu": torch.tensor([0, 250, 600], dtype=torch.int32), "table": torch.arange(40, dtype=torch.int32).view(2, 20),
    }


def run(t):
    t = {n: x.detach() for n, x in t.items()}  # new leaves: gradients come on the stream of the call
    q, k, v = (t[n].requires_grad_() for n in "qkv")
    out = attention(q, k, v, tau=t["tau"], deterministic=True)
    packed = attention(*(x.flatten(0, 1) for x in (q, k, v)), tau=t["tau"], cu_seqlens_q=t["cu"], cu_seqlens_k=t["cu"])
    results = [out, packed, *torch.autograd.grad(out, (q, k, v), out.detach())]
    with torch.no_grad():
        results.append(decode(t["one"], k, v, t["lengths"], tau=t["tau"]))
        pages = [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 20)).reshape(40, 16, 2, 64) for x in (k, v)]
        results.append(decode(t["one"], *pages, t["lengths"], tau=t["tau"], block_table=t["table"]))
    x, w = t["x"].requires_grad_(), t["w"].requires_grad_()
    y = swiglu(rms_norm(x, w), t["gate"])
    results += [y, rope(q), *torch.autograd.grad(y.sum(), (x, w))]
    loss = linear_cross_entropy(x, t["head"].requires_grad_(), t["labels"])
    return results + [loss, *torch.autograd.grad(loss, (x, t["head"]))]


for dtype in (torch.float32, torch.bfloat16):
    cpu = tensors(dtype)
    found = {}
    for device in FIRST, 1 - FIRST:
        here = {n: x.to(f"cuda:{device}") for n, x in cpu.items()}
        found[device] = run(here)
        assert torch.cuda.current_device() == 0
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.cuda.device(0):
            run(here)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph, stream=stream), torch.cuda.device(0):
            recorded = run(here)
        graph.replay()
        torch.cuda.synchronize(device)
        found[device, "graph"] = recorded
    for key, results in found.items():
        for n, (a, b) in enumerate(zip(results, found[0])):
            assert a.device.index == (key if isinstance(key, int) else key[0])
            assert torch.allclose(a.cpu().float(), b.cpu().float(), rtol=2e-2, atol=2e-2), (dtype, key, n)
print("equal")
""".replace("FIRST", str(first))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stdout.strip().endswith("equal"), run.stderr[-3000:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [20, 64, 128])
@pytest.mark.parametrize("compiled", [False, True])
def test_scaled_dot_product_attention_uses_our_kernels(dtype, causal, head_dim, compiled, monkeypatch):
    import lazy_attention.sdpa as sdpa
    from torch.nn.attention import SDPBackend, activate_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel

    calls = []
    for name in ("forward", "backward"):
        kernel = getattr(sdpa, name)
        spy = lambda *arguments, kernel=kernel, **options: calls.append(kernel) or kernel(*arguments, **options)
        monkeypatch.setattr(sdpa, name, spy)

    def function(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return out.transpose(1, 2)

    inputs = [leaf(2, 150, heads, head_dim, dtype=dtype) for heads in (4, 2, 2)]
    d_out = torch.randn(2, 150, 4, head_dim, dtype=dtype, device="cuda")
    activate_flash_attention_impl("lazy")
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = (torch.compile(function) if compiled else function)(*inputs)
            ours = [out, *torch.autograd.grad(out, inputs, d_out)]
    finally:
        restore_flash_attention_impl()
    assert len(calls) == 2
    references = []
    for convert in (torch.Tensor.double, torch.Tensor.clone):
        some = [convert(x.detach().cpu()).requires_grad_() for x in inputs]
        out = definition.attention(*some, normalizer="softmax", causal=causal)
        references.append([out, *torch.autograd.grad(out, some, convert(d_out.cpu()))])
    for name, a, exact, plain in zip(("out", "d_q", "d_k", "d_v"), ours, *references):
        definition.close(a.cpu(), exact, plain, name)
