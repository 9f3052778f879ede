"""Tests of context parallelism: results and gradients are compared with one process. Uses four gloo processes."""

import itertools

import definition
import lazy_attention
import pytest
import torch
import torch.distributed as dist
from lazy_attention import context_parallel, gather_sequence, shard_sequence
from naming import naming
from processes import in_processes

HEADS, KV_HEADS, DIM, LENGTH, WINDOW = 4, 2, 8, 48, 9
DOCUMENTS = [0, 5, 5, 17, 18, 41, 48]  # borders within chunks and between them, one empty document
# name -> (normalizer, per-head parameters, options)
CASES = {
    "elastic": ("elastic", ("distance_bias", "tau"), {}),
    "softcap": ("elastic", ("tau", "alibi_slopes"), {"softcap": 1.5, "scale": 0.7}),
    "window": ("softmax_sink", ("distance_bias", "sink"), {"window": 7}),
    "sinks": ("elastic_sink", ("distance_bias", "tau", "sink"), {"offset": "constant"}),
    "sigmoid": ("sigmoid", ("alibi_slopes",), {}),
    "entmax15": ("entmax15", ("distance_bias",), {"window": 20}),
    "not causal": ("elastic", ("tau",), {"causal": False}),
    "documents": ("elastic", ("distance_bias", "tau"), {"window": 10}),
    "documents, not causal": ("softmax", (), {"causal": False}),
}


def inputs(names, dtype, packed):
    torch.manual_seed(5)
    batch = () if packed else (2,)
    made = {
        "q": definition.leaf(*batch, LENGTH, HEADS, DIM, scale=1.5),
        "k": definition.leaf(*batch, LENGTH, KV_HEADS, DIM, scale=1.5),
        "v": definition.leaf(*batch, LENGTH, KV_HEADS, DIM - 2),
        "distance_bias": definition.leaf(HEADS, WINDOW, scale=0.5),
        "tau": definition.leaf(HEADS, scale=0.3),
        "sink": definition.leaf(HEADS),
        "alibi_slopes": definition.leaf(HEADS, scale=0.1),
    }
    made = {name: made[name].detach().to(dtype).requires_grad_() for name in ("q", "k", "v", *names)}
    if "tau" in made:
        made["tau"].data -= 0.8
    return made, torch.randn(*batch, LENGTH, HEADS, DIM - 2)


def whole(tensors, options, packed):
    """Computes the definition for the whole sequence, or the operator in one process for normalizers without one."""
    if options["normalizer"] not in definition.NORMALIZERS:
        return lazy_attention.attention(**tensors, **options)
    if not packed:
        return definition.attention(**tensors, **options)
    parts = []
    for a, b in itertools.pairwise(DOCUMENTS):
        if a < b:
            document = {name: t[None, a:b] if name in ("q", "k", "v") else t for name, t in tensors.items()}
            parts.append(definition.attention(**document, **options)[0])
    return torch.cat(parts)


def check(make_group, layout, folder):
    """Compares a group of processes with the definition, in float64 and in fp32, and with the operator in one
    process."""
    group, pool = make_group(), definition.Pool()
    for name, (normalizer, parameters, options) in CASES.items():
        packed = "documents" in name
        dim, options = 0 if packed else 1, options | {"normalizer": normalizer}
        cu_seqlens = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.tensor(DOCUMENTS)) if packed else {}
        found = {}
        for dtype in (torch.float64, torch.float32):
            tensors, cotangent = inputs(parameters, dtype, packed)
            local = {
                n: shard_sequence(t.detach(), dim, group=group, layout=layout).requires_grad_() if n in "qkv" else t
                for n, t in tensors.items()
            }
            ours = context_parallel(**local, group=group, layout=layout, return_stats=True, **options, **cu_seqlens)
            d_out = shard_sequence(cotangent, dim, group=group, layout=layout)
            results = {"out": gather_sequence(ours.out, dim, group=group, layout=layout).detach()}
            for n, gradient in zip(local, definition.gradients(ours.out, local.values(), d_out)):
                if n in "qkv":
                    results[n] = gather_sequence(gradient, dim, group=group, layout=layout)
                else:
                    dist.all_reduce(gradient, group=group and group.get_group())
                    results[n] = gradient
            exact = whole(tensors, options, packed)
            expected = dict(zip(local, definition.gradients(exact, tensors.values(), cotangent)))
            found[dtype] = results, expected | {"out": exact.detach()}
            if dtype == torch.float64:
                for n, result in results.items():
                    torch.testing.assert_close(result, found[dtype][1][n], rtol=1e-12, atol=1e-12, msg=f"{name}: {n}")
                alone = lazy_attention.attention(**tensors, return_stats=True, **options, **cu_seqlens)
                for n in ("lse", "stats"):
                    one, part = getattr(alone, n), getattr(ours, n)
                    if one.numel():  # "sigmoid" has no log-sum-exp
                        one = shard_sequence(one, -1, group=group, layout=layout)
                    torch.testing.assert_close(part, one, rtol=1e-12, atol=1e-12, msg=f"{name}: {n}")
        for n, result in found[torch.float32][0].items():
            pool.add(n, result, found[torch.float64][1][n], found[torch.float32][1][n])
    pool.check()


def world():
    return None


def pair():
    """Returns a dimension of a mesh: the groups {0, 1} and {2, 3}."""
    return dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))["cp"]


@pytest.mark.slow
def test_groups_of_two_and_four_processes_match_one_process(tmp_path):
    layouts = ("head-tail", "contiguous")
    in_processes(4, tmp_path, check, {f"{g.__name__} {x}": (g, x) for g in (world, pair) for x in layouts})


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def example(length=6):
    return [torch.randn(1, length, heads, 8) for heads in (4, 2, 2)]


def test_head_tail_is_the_order_of_pytorch(monkeypatch):
    """The parts of all ranks in a row are the order of PyTorch's load balancer."""
    balancer = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    expected = balancer._HeadTailLoadBalancer(24, 3, "cpu")._generate_indices()
    parts = []
    for rank in range(3):
        group = type("Group", (), {"rank": lambda _: rank, "size": lambda _: 3})()
        monkeypatch.setattr(lazy_attention.sequence, "_process_group", lambda *_: group)
        parts.append(shard_sequence(torch.arange(24)[None]))
    assert torch.equal(torch.cat(parts, 1), expected)


def test_errors_name_the_cause(one_process):
    q, k, v = example()
    tau, cu_seqlens = torch.zeros(4), torch.tensor([0, 4, 6])
    with pytest.raises(ValueError, match=naming("context_parallel", "layout", "head-tail", "contiguous", "'zigzag'")):
        context_parallel(q, k, v, tau=tau, layout="zigzag")
    for call in (shard_sequence, gather_sequence):
        with pytest.raises(ValueError, match=naming(call.__name__, "multiple of 2", "head-tail", 5)):
            call(q[:, :5])
    with pytest.raises(ValueError, match=naming("context_parallel", "multiple of 2", 5)):
        context_parallel(q[:, :5], k[:, :5], v[:, :5], tau=tau)
    with pytest.raises(ValueError, match=naming("context_parallel", "local length", "[1, 4, 4, 8]", "[1, 6, 2, 8]")):
        context_parallel(q[:, :4], k, v, tau=tau)
    with pytest.raises(ValueError, match=naming("context_parallel", "causal=False", "window")):
        context_parallel(q, k, v, tau=tau, causal=False, window=3)
    with pytest.raises(TypeError, match=naming("ProcessGroup", "DeviceMesh", "str")):
        context_parallel(q, k, v, tau=tau, group="cp")
    with pytest.raises(ValueError, match=naming("group", "contains this process")):
        context_parallel(q, k, v, tau=tau, group=dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(ValueError, match=naming("one-dimensional DeviceMesh", "dp", "cp")):
        shard_sequence(q, group=dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "cp")))
    with pytest.raises(ValueError, match=naming("cu_seqlens_q", "from 0 to 4", "0 to 6")):
        context_parallel(q[0, :4], k[0, :4], v[0, :4], tau=tau, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)
    for other in (None, torch.tensor([0, 3, 6])):
        with pytest.raises(ValueError, match=naming("cu_seqlens_k", "equal to cu_seqlens_q")):
            context_parallel(q[0], k[0], v[0], tau=tau, cu_seqlens_q=cu_seqlens, cu_seqlens_k=other)
    with pytest.raises(TypeError, match=naming("is_causal", "causal=")):
        context_parallel(q, k, v, tau=tau, is_causal=True)
    with pytest.raises(TypeError, match=naming("k", "tensor", "list")):
        context_parallel(q, [1.0], v, tau=tau)


def test_without_a_process_group():
    q, k, v = example()
    for call in (lambda: context_parallel(q, k, v, tau=torch.zeros(4)), lambda: shard_sequence(q)):
        with pytest.raises(RuntimeError, match=naming("process group", "torchrun", "init_process_group")):
            call()


def test_compiles(one_process):
    (q, k, v), tau = [t.requires_grad_() for t in example()], torch.full((4,), -0.7)
    compiled = torch.compile(context_parallel, fullgraph=True, backend="aot_eager")
    results = []
    for function in (compiled, lazy_attention.attention):
        out = function(q, k, v, tau=tau)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for ours, expected in zip(*results):
        torch.testing.assert_close(ours, expected)
