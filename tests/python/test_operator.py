"""Tests of lazy_attention.attention and the fused operators: results, gradients, types, errors, opcheck."""

import math
import pathlib
import re
import subprocess
import sys
import typing
import warnings

import definition
import lazy_attention
import pytest
import torch
from definition import close, gradients, leaf
from lazy_attention import attention
from naming import naming
from torch import library

NORMALIZERS = list(typing.get_args(lazy_attention.operator.Normalizer))
PLAIN = definition.NORMALIZERS  # test_entmax.py tests sparsemax and entmax15


def inputs(normalizer, dtype=torch.float64, n=9, m=9, heads=4, kv_heads=2, window=5):
    """Returns leaf tensors q, k, v, distance_bias, tau, sink. tau and sink are None if the normalizer does not use
    them."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = (
        leaf(2, n, heads, 8, dtype=dtype),
        leaf(2, m, kv_heads, 8, dtype=dtype),
        leaf(2, m, kv_heads, 6, dtype=dtype),
    )
    tau = (leaf(heads, dtype=wide, scale=0.3).detach() - 0.8).requires_grad_()
    tau = tau if normalizer in definition.TAKES_TAU else None
    sink = leaf(heads, dtype=wide) if normalizer in definition.TAKES_SINK else None
    return q, k, v, leaf(heads, window, dtype=wide), tau, sink


def as_type(tensors, dtype):
    return [None if t is None else t.detach().to(dtype).requires_grad_() for t in tensors]


VARIANTS = [
    dict(),
    dict(causal=False),
    dict(window=4),
    dict(scale=0.7),
    dict(softcap=0.9),
    dict(softcap=5.0, scale=7.0),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("normalizer", PLAIN)
def test_result_and_gradients_match_the_definition(normalizer, variant, dtype):
    pool = definition.Pool()
    for _ in range(4):
        exact = inputs(normalizer, n=7)
        single = as_type(exact, torch.float32)
        given = [n for n, t in enumerate(exact) if t is not None]
        cotangent = torch.randn(2, 7, 4, 6, dtype=torch.float64)

        def run(function, tensors):
            out = function(*tensors, normalizer=normalizer, **variant)
            return [out, *gradients(out, [tensors[n] for n in given], cotangent)]

        theirs, plain = run(definition.attention, exact), run(definition.attention, single)
        names = ["out", *(["q", "k", "v", "distance_bias", "tau", "sink"][n] for n in given)]
        for name, *results in zip(names, run(attention, exact if dtype == torch.float64 else single), theirs, plain):
            pool.add(name, *results)
    pool.check()


@pytest.mark.parametrize("offset", ["per_visible", "constant"])
def test_elastic_offsets_match_the_definition(offset):
    tensors = inputs("elastic")
    single = as_type(tensors, torch.float32)
    exact = definition.attention(*tensors, offset=offset)
    close(attention(*single, offset=offset), exact, definition.attention(*single, offset=offset))


def test_softcap_of_zero_disables_soft_capping():
    q, k, v, bias, tau, _ = inputs("elastic", torch.float32)
    assert torch.equal(attention(q, k, v, bias, tau, softcap=0.0), attention(q, k, v, bias, tau))
    assert not torch.equal(attention(q, k, v, bias, tau, softcap=0.5), attention(q, k, v, bias, tau))


def test_lse_and_statistics_are_returned_only_on_request():
    q, k, v, bias, tau, _ = inputs("elastic", torch.float32)
    out = attention(q, k, v, bias, tau)
    full = attention(q, k, v, bias, tau, return_lse=True, return_stats=True)
    assert isinstance(out, torch.Tensor) and isinstance(full, lazy_attention.AttentionOutput)
    assert torch.equal(out, full.out)
    assert full.lse.shape == (2, 4, 9) and full.stats.shape == (3, 2, 4, 9) and full.lse.dtype == torch.float32
    assert attention(q, k, v, bias, tau, return_lse=True).stats.numel() == 0
    assert not full.lse.requires_grad and not full.stats.requires_grad
    with_scores = attention(q, k, v, bias, tau, return_score_stats=True)
    assert torch.equal(out, with_scores.out) and with_scores.stats.shape == (5, 2, 4, 9)
    assert torch.equal(with_scores.stats[:3], full.stats) and not with_scores.stats.requires_grad
    with pytest.raises(RuntimeError, match=naming("lazy::attention", "return_stats", 0, 3)):
        torch.ops.lazy.attention(q, k, v, bias, tau, return_stats=3)
    soft = attention(q, k, v, normalizer="softmax", return_stats=True).stats
    assert torch.equal(soft[2][0, 0], torch.arange(1.0, 10.0)), "softmax gives every visible key a nonzero weight"


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_score_statistics_match_softmax(normalizer):
    q, k, v, bias, tau, sink = (None if t is None else t.detach() for t in inputs(normalizer, torch.float32, n=9, m=12))
    stats = attention(q, k, v, bias, tau, sink, normalizer=normalizer, window=5, return_score_stats=True).stats
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2)) * q.shape[-1] ** -0.5
    distance = torch.arange(3, 12)[:, None] - torch.arange(12)
    if bias is not None:
        near = distance.abs().clamp(max=bias.shape[1] - 1)
        scores = scores + torch.where(distance.abs() < bias.shape[1], bias[:, near], 0)
    scores = scores.masked_fill((distance < 0) | (distance >= 5), -torch.inf)
    torch.testing.assert_close(stats[3], scores.amax(-1))
    torch.testing.assert_close(stats[4], torch.distributions.Categorical(logits=scores).entropy())


def test_packed_documents_match_separate_documents():
    q, k, v, bias, tau, _ = inputs("elastic", torch.float32, n=12, m=12)
    cu = torch.tensor([0, 5, 5, 12, 24])
    packed = attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), bias, tau, cu_seqlens_q=cu, cu_seqlens_k=cu)
    assert torch.equal(packed[:5], attention(q[:1, :5], k[:1, :5], v[:1, :5], bias, tau)[0])
    assert torch.equal(packed[5:12], attention(q[:1, 5:], k[:1, 5:], v[:1, 5:], bias, tau)[0])
    assert torch.equal(packed[12:], attention(q[1:], k[1:], v[1:], bias, tau)[0])


@pytest.mark.slow
@pytest.mark.parametrize("softcap", [None, 0.9])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_gradcheck(normalizer, softcap):
    tensors = inputs(normalizer, n=5, m=6)
    given = [t for t in tensors if t is not None]
    places = [n for n, t in enumerate(tensors) if t is not None]

    def function(*some):
        full = [None] * 6
        for place, t in zip(places, some):
            full[place] = t
        return attention(*full, normalizer=normalizer, softcap=softcap)

    assert torch.autograd.gradcheck(function, given)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_opcheck(normalizer, dtype):
    library.opcheck(torch.ops.lazy.attention.default, inputs(normalizer, dtype), {"normalizer": normalizer})


@pytest.mark.slow
def test_opcheck_of_layouts():
    q, k, v, bias, tau, _ = inputs("elastic", torch.float32)
    op = torch.ops.lazy.attention.default
    slopes = leaf(4)
    library.opcheck(
        op, (q, k, v, bias, tau), {"window": 4, "alibi_slopes": slopes, "return_stats": True, "offset": "constant"}
    )
    library.opcheck(op, (q, k, v, bias, tau), {"return_stats": 2, "softcap": 30.0})
    library.opcheck(
        op,
        (q.detach().transpose(1, 2).contiguous().transpose(1, 2), k.detach(), v.detach()),
        {"normalizer": "softmax", "causal": False},
    )
    cu = torch.tensor([0, 4, 18], dtype=torch.int32)
    flat = [t.detach().flatten(0, 1).requires_grad_() for t in (q, k, v)]
    library.opcheck(op, (*flat, bias, tau), {"cu_seqlens_q": cu, "cu_seqlens_k": cu})


@pytest.mark.parametrize("normalizer", ["elastic", "softmax"])
def test_second_derivative_raises_an_error(normalizer):
    q, k, v, bias, tau, _ = inputs(normalizer, torch.float32)
    out = attention(q, k, v, bias, tau, normalizer=normalizer)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="lazy::attention"):
        torch.autograd.grad(first.sum(), q)


def test_autocast_casts_inputs_but_not_parameters():
    q, k, v, bias, tau, _ = inputs("elastic", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, bias, tau)
        mixed = attention(q, k, v.bfloat16(), bias, tau)
    assert out.dtype == torch.bfloat16 and torch.equal(out, mixed)
    assert torch.equal(out, attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias, tau))
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32 and tau.grad.dtype == torch.float32


ERRORS = [
    (dict(tau=None), ("tau", "elastic", "None")),
    (dict(normalizer="softmax"), ("tau", "elastic", "softmax")),
    (dict(normalizer="softmaxx", tau=None), ("normalizer", "elastic", "softmaxx")),
    (dict(offset="per_key"), ("offset", "per_visible", "constant", "per_key")),
    (dict(window=0), ("window", -1, 1, 0)),
    (dict(softcap=-1.0), ("softcap", "-1")),
    (dict(softcap=float("nan")), ("softcap", "nan")),
    (dict(softcap=float("inf")), ("softcap", "inf")),
    (dict(softcap=1e-30), ("softcap", "1e-30")),
    (dict(softcap=1e-5, scale=1e38), ("scale", "1e+38", "softcap", "1e-05")),
    (dict(tau=torch.zeros(3)), ("tau", 4, "[3]")),
    (dict(tau=torch.zeros(4, dtype=torch.float64)), ("tau", "Float")),
    (dict(k=torch.zeros(2, 9, 3, 8)), ("v", "k")),
    (dict(k=torch.zeros(9, 2, 8)), ("k", "batch", "length", "heads", "head_dim")),
    (dict(cu_seqlens_q=torch.tensor([0, 9])), ("cu_seqlens_q", "cu_seqlens_k")),
]


@pytest.mark.parametrize("change, names", ERRORS, ids=["-".join(map(str, names)) for _, names in ERRORS])
def test_errors_name_expected_and_received_values(change, names):
    q, k, v, bias, tau, _ = inputs("elastic", torch.float32)
    arguments = dict(q=q, k=k, v=v, distance_bias=bias, tau=tau) | change
    with pytest.raises(RuntimeError, match=naming("lazy::attention", *names)):
        attention(**arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_fused_operators_support_every_type(dtype):
    x, up, weight = leaf(3, 5, 8, dtype=dtype), leaf(3, 5, 8, dtype=dtype), leaf(8)
    wide = weight.double() if dtype == torch.float64 else weight
    norm = lazy_attention.rms_norm(x, wide)
    exact = torch.nn.functional.rms_norm(x.double(), (8,), weight.double(), 1e-6)
    gate = lazy_attention.swiglu(x, up)
    assert norm.dtype == gate.dtype == dtype
    close(norm, exact, torch.nn.functional.rms_norm(x.double(), (8,), weight.double(), 1e-6).to(dtype))
    product = torch.nn.functional.silu(x.double()) * up.double()
    close(gate, product, (torch.nn.functional.silu(x) * up))
    (norm.sum() + gate.sum()).backward()
    assert x.grad.dtype == dtype and weight.grad is not None


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(interleaved=True),
        dict(rotary_dim=4),
        dict(scaling="linear", factor=4.0),
        dict(scaling="llama3", factor=8.0, original_length=32),
        dict(scaling="yarn", factor=8.0, original_length=32),
        dict(scaling="longrope", factor=8.0, original_length=32, pair_factors=[1.0, 1.5, 2, 9.0]),
        dict(scaling="longrope", attention_factor=1.0, original_length=1, pair_factors=[0.8, 1.0, 3.0, 4.0]),
    ],
    ids=str,
)
def test_rope_matches_the_definition(options):
    """Tests the arguments offset and positions, compares float64 and float16 with float32, and checks the gradient,
    which is the inverse rotation."""
    x = leaf(2, 60, 3, 8)
    exact = lazy_attention.rope(x.double(), 1e4, 3, **options)
    assert exact.dtype == torch.float64
    dims, half = options.get("rotary_dim", 8), options.get("rotary_dim", 8) // 2
    if options.get("scaling", "longrope") == "longrope":  # compare with the definition in plain PyTorch
        factors = torch.tensor(options.get("pair_factors", [1.0] * half), dtype=torch.float64)
        frequencies = 1e4 ** (-torch.arange(half).double() / half) / factors
        angle = torch.arange(3, 63, dtype=torch.float64)[:, None, None] * frequencies
        scale = (1 + math.log(options["factor"]) / math.log(32)) ** 0.5 if "factor" in options else 1.0
        cos, sin = (scale * angle.cos()).float(), (scale * angle.sin()).float()
        a, b = (
            (slice(0, dims, 2), slice(1, dims, 2))
            if options.get("interleaved")
            else (slice(0, half), slice(half, dims))
        )
        plain, wide = x.detach().clone(), x.detach().double()
        for t in (plain, wide):
            first, second = t[..., a].clone(), t[..., b].clone()
            t[..., a], t[..., b] = first * cos - second * sin, second * cos + first * sin
        definition.close_float64(exact, wide, plain)
    else:
        plain = exact.float()
    ours = lazy_attention.rope(x, 1e4, 3, **options)
    close(ours, exact, plain)
    assert torch.equal(ours, lazy_attention.rope(x, 1e4, positions=torch.arange(3, 63).expand(2, -1), **options))
    half_precision = x.detach().half()
    assert torch.equal(
        lazy_attention.rope(half_precision, 1e4, 3, **options),
        lazy_attention.rope(half_precision.float(), 1e4, 3, **options).half(),
    )
    cotangent = torch.randn(2, 60, 3, 8)
    (turned_back,) = gradients(ours, [x], cotangent)
    wide = x.detach().double().requires_grad_()
    (exact,) = gradients(lazy_attention.rope(wide, 1e4, 3, **options), [wide], cotangent)
    close(turned_back, exact, exact.float())


def test_linear_cross_entropy_matches_pytorch():
    hidden, weight, labels = leaf(70, 8), leaf(11, 8), torch.randint(0, 11, (70,))
    labels[2] = -100

    def plain(hidden, weight, labels):
        return torch.nn.functional.cross_entropy(hidden @ weight.T, labels)

    def run(function, *tensors):
        loss = function(*tensors, labels)
        return [loss, *torch.autograd.grad(loss, tensors)]

    results = (
        run(lazy_attention.linear_cross_entropy, hidden, weight),
        run(plain, hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()),
        run(plain, hidden, weight),
    )
    for name, ours, exact, single in zip(("loss", "hidden", "weight"), *results):
        if name == "loss":  # the error of a single number may be zero by chance
            assert abs(ours.item() - exact.item()) <= 2 * torch.finfo(torch.float32).eps * abs(exact.item())
        else:
            close(ours, exact, single, name)


def test_linear_cross_entropy_under_autocast():
    hidden, weight, labels = leaf(7, 8), leaf(11, 8), torch.randint(0, 11, (7,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = lazy_attention.linear_cross_entropy(hidden, weight.bfloat16(), labels)
    assert torch.equal(loss, lazy_attention.linear_cross_entropy(hidden.bfloat16(), weight.bfloat16(), labels))
    loss.backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32


def test_library_is_searched_in_the_documented_order(tmp_path, monkeypatch):
    from lazy_attention import _library

    package, tree = tmp_path / "tree" / "python" / "lazy_attention", tmp_path / "tree"
    for folder in (package, tree / "src" / "ops", tree / "build" / "python"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(_library, "__file__", str(package / "_library.py"))
    named, packaged, built = tmp_path / "named.so", package / _library.NAME, tree / "build" / "python" / _library.NAME
    monkeypatch.delenv("LAZY_OPS_LIBRARY", raising=False)
    with pytest.raises(FileNotFoundError) as error:
        _library.find()
    assert all(str(place) in str(error.value) for place in (packaged, built))
    for place in (built, packaged):  # the later path has priority over the earlier one
        place.touch()
        assert _library.find() == place
    monkeypatch.setenv("LAZY_OPS_LIBRARY", str(named))
    with pytest.raises(FileNotFoundError, match=naming("LAZY_OPS_LIBRARY", named)):
        _library.find()
    named.touch()
    assert _library.find() == named
    monkeypatch.setenv("LAZY_OPS_LIBRARY", "")
    assert _library.find() == packaged


def test_version_matches_the_project():
    project = (pathlib.Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    assert re.search(r"project\(lazy VERSION ([0-9.]+)", project)[1] == lazy_attention.__version__


# Regression test: oneDNN computed some matrix products with the stack pointer in the middle of the heap. Signal
# handlers that ran at this time overwrote other objects (src/ops/signal_stack.h).
@pytest.mark.slow
def test_signals_during_linear_cross_entropy_do_not_corrupt_the_heap():
    script = """
import os, signal, threading, time, torch, lazy_attention
torch.set_num_threads(1)
hidden, weight, labels = torch.randn(172, 256), torch.randn(64, 256), torch.randint(64, (172,))
expected = lazy_attention.linear_cross_entropy(hidden, weight, labels)
received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append(None))
main, sender = os.getpid(), os.fork()
if sender == 0:
    while os.getppid() == main:
        os.kill(main, signal.SIGUSR1)
        time.sleep(2e-5)
    os._exit(0)
while len(received) < 2000:
    assert torch.equal(lazy_attention.linear_cross_entropy(hidden, weight, labels), expected)
print("same", flush=True)
os.kill(sender, signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout == "same\n", (ended.returncode, ended.stderr)


# --- The layout of scaled_dot_product_attention ---


def sdpa_layout(heads=8, kv_heads=2, length=12, key_length=12):
    return tuple(torch.randn(2, h, n, 16) for h, n in ((heads, length), (kv_heads, key_length), (kv_heads, key_length)))


@pytest.mark.parametrize(
    "shape, parameters",
    [
        (dict(), dict(tau=torch.zeros(8))),
        (dict(kv_heads=8), dict(tau=torch.zeros(8))),
        (dict(), dict(normalizer="softmax", alibi_slopes=torch.zeros(8))),
        (dict(), dict(normalizer="softmax", distance_bias=torch.zeros(8, 5))),
        (dict(), dict(normalizer="softmax_sink", sink=torch.zeros(8))),
        (dict(key_length=20), dict(normalizer="softmax")),  # more keys than queries, as with a KV cache
        (dict(length=1), dict(normalizer="softmax")),
    ],
)
def test_sdpa_layout_is_rejected(shape, parameters):
    q, k, v = sdpa_layout(**shape)
    names = ("(batch, length, heads, head_dim)", "scaled_dot_product_attention", "transpose(1, 2)")
    with pytest.raises(RuntimeError, match=naming("lazy::attention", *names)):
        attention(q, k, v, **parameters)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    assert attention(q, k, v, **parameters).shape == q.shape
    lengths = torch.full((2,), k.shape[1])
    k, v = (t.transpose(1, 2) for t in (k, v))
    if k.shape[2] != q.shape[2]:
        with pytest.raises(RuntimeError, match=naming("lazy::decode", *names)):
            lazy_attention.decode(q.transpose(1, 2), k, v, lengths, **parameters)


def test_sdpa_layout_is_rejected_under_compile():
    q, k, v = sdpa_layout()
    compiled = torch.compile(attention, backend="aot_eager")
    with pytest.raises(
        RuntimeError, match=naming("lazy::attention", "scaled_dot_product_attention", "transpose(1, 2)")
    ):
        compiled(q, k, v, tau=torch.zeros(8))


def test_sdpa_layout_without_parameters_emits_a_warning_for_long_sequences():
    q, k, v = sdpa_layout(kv_heads=8, length=300, key_length=300)
    with pytest.warns(UserWarning, match=naming("lazy::attention", 300, "heads", "scaled_dot_product_attention")):
        attention(q, k, v, normalizer="softmax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(*(t.transpose(1, 2) for t in (q, k, v)), normalizer="softmax")
        attention(q, k, v, tau=torch.zeros(300))  # the shape of tau shows that there are 300 heads


def test_sdpa_layout_with_grouped_heads_emits_a_warning():
    q, k, v = sdpa_layout()  # attention() reads these shapes as 8 queries with 12 heads, and 2 keys
    with pytest.warns(UserWarning, match=naming("lazy::attention", "scaled_dot_product_attention")):
        attention(q, k, v, normalizer="softmax")


def test_other_wrong_sizes_do_not_mention_the_layout():
    q, k, v = (t.transpose(1, 2) for t in sdpa_layout())
    with pytest.raises(RuntimeError) as error:
        attention(q, k, v, tau=torch.zeros(3))
    assert "scaled_dot_product_attention" not in str(error.value)


def test_invalid_head_counts_are_not_reported_as_sdpa_layout():
    for length, parameters in ((8, {}), (8, dict(tau=torch.zeros(6))), (6, dict(tau=torch.zeros(6)))):
        q, k = torch.randn(1, length, 6, 16), torch.randn(1, length, 4, 16)
        with pytest.raises(RuntimeError, match=naming("lazy::attention", "multiple", 6, 4)) as error:
            attention(q, k, k, **dict(normalizer="elastic" if parameters else "softmax") | parameters)
        assert "scaled_dot_product_attention" not in str(error.value)


@pytest.mark.parametrize("function", [attention, torch.compile(attention, backend="aot_eager")])
@pytest.mark.parametrize(
    "arguments, names",
    [
        (dict(tau=-1.0), ("tau", "(heads)", "float", -1.0)),
        (dict(tau=[-1.0] * 4), ("tau", "(heads)", "list")),
        (dict(distance_bias=0), ("distance_bias", "(heads, W)", "int", 0)),
        (dict(window=None), ("window", "integer", "None")),
        (dict(window=[8]), ("window", "integer", "list")),
        (dict(window=8.0), ("window", "integer", "float", 8.0)),
        (dict(window=True), ("window", "integer", "bool")),
        (dict(cu_seqlens_q=[0, 8], cu_seqlens_k=[0, 8]), ("cu_seqlens_q", "(documents + 1)", "list")),
    ],
)
def test_arguments_of_wrong_types_are_named_in_the_error(function, arguments, names):
    q = torch.randn(1, 8, 4, 16)
    with pytest.raises(TypeError, match=naming("lazy::attention", *names)):
        function(q, q, q, **dict(tau=torch.zeros(4)) | arguments)


def test_decode_arguments_of_wrong_types_are_named_in_the_error():
    q, tau = torch.randn(1, 8, 4, 16), torch.zeros(4)
    for lengths in (8, [8], None):
        with pytest.raises(TypeError, match=naming("lazy::decode", "cache_lengths", "(batch)", type(lengths).__name__)):
            lazy_attention.decode(q[:, :1], q, q, lengths, tau=tau)
    compiled = torch.compile(lazy_attention.decode, fullgraph=True, backend="aot_eager")
    lengths = torch.tensor([8])
    expected = lazy_attention.decode(q[:, :1], q, q, lengths, tau=tau, window=5)
    assert torch.equal(compiled(q[:, :1], q, q, lengths, tau=tau, window=5), expected)
