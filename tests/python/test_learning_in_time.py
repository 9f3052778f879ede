"""Compares our C++ implementations of TTT and of the neural memory of Titans with loops over the inner gradient steps.

The C++ code computes a chunk in dual form; the loops compute every gradient step by torch.autograd. The memory is also
compared with titans-pytorch. The tests compare the outputs and the outer gradients of all inputs in float64.
"""

import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

save_file = pytest.importorskip("safetensors.torch").save_file
load_file = pytest.importorskip("safetensors.torch").load_file
PROGRAM = os.environ.get("LAZY_TEST_LEARN_IN_TIME")
pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="LAZY_TEST_LEARN_IN_TIME, the program that runs the C++ side, is not set"
)


def ours(kind, inputs, cotangent, folder):
    tensors = {name: x.detach().contiguous() for name, x in inputs.items()}
    save_file({**tensors, "d_out": cotangent.contiguous()}, folder / "in.safetensors")
    subprocess.run([PROGRAM, kind, folder / "in.safetensors", folder / "out.safetensors"], check=True)
    return load_file(folder / "out.safetensors")


def compare(got, out, inputs, cotangent):
    torch.testing.assert_close(got["out"], out, rtol=1e-9, atol=1e-10)
    names = [name for name, x in inputs.items() if x.is_floating_point()]
    for name, gradient in zip(names, torch.autograd.grad(out, [inputs[name] for name in names], cotangent)):
        torch.testing.assert_close(
            got["d_" + name], gradient, rtol=1e-8, atol=1e-9, msg=lambda m: f"gradient of {name}: {m}"
        )


def leaf(*shape, std=1.0):
    return (torch.randn(*shape, dtype=torch.float64) * std).requires_grad_()


def gate(*shape, bias=0.0):
    return F.logsigmoid(torch.randn(*shape, dtype=torch.float64) + bias).detach().requires_grad_()


def ttt_by_steps(x, layers, size):
    """Computes TTT by single gradient steps, with a loop over sequences and heads. x: {name of an input: tensor}."""
    rows = []
    for n in range(x["q"].shape[0]):
        heads = []
        for h in range(x["q"].shape[2]):
            f = [x[f"{letter}{i + 1}"][h] for letter in "Wb" for i in range(layers)]
            moved = [torch.zeros_like(p) for p in f]

            def model(p, u, h=h):
                z = u @ p[0] + p[layers]
                if layers == 2:
                    z = F.gelu(z, approximate="tanh") @ p[1] + p[3]
                return F.layer_norm(z, z.shape[-1:], x["norm_weight"][h], x["norm_bias"][h], eps=1e-6)

            out = []
            for t in range(x["q"].shape[1]):
                q, k, v = (x[name][n, t, h][None] for name in "qkv")
                loss = 0.5 * (model(f, k) - (v - k)).square().sum()
                gradients = torch.autograd.grad(loss, f, create_graph=True)
                moved = [m + x["rate"][n, t, h] * g for m, g in zip(moved, gradients)]
                now = [p - x["position_scale"][t % size] * m for p, m in zip(f, moved)]
                out.append((q + model(now, q))[0])
                if t % size == size - 1:
                    f, moved = now, [torch.zeros_like(p) for p in f]
            heads.append(torch.stack(out))
        rows.append(torch.stack(heads, 1))
    return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2], ids=["linear", "mlp"])
def test_ttt_matches_single_gradient_steps(layers, tmp_path):
    batch, length, heads, dim, size = 2, 39, 2, 6, 16
    inner = dim if layers == 1 else 4 * dim
    x = {name: leaf(batch, length, heads, dim) for name in "qkv"}
    x["rate"] = (torch.rand(batch, length, heads, dtype=torch.float64) / dim).requires_grad_()
    x["position_scale"] = (1 / torch.arange(1, size + 1, dtype=torch.float64)).requires_grad_()
    x["norm_weight"], x["norm_bias"] = (
        (1 + leaf(heads, dim, std=0.2)).detach().requires_grad_(),
        leaf(heads, dim, std=0.2),
    )
    x["W1"], x["b1"] = leaf(heads, dim, inner, std=0.3), leaf(heads, 1, inner, std=0.3)
    if layers == 2:
        x["W2"], x["b2"] = leaf(heads, inner, dim, std=0.3), leaf(heads, 1, dim, std=0.3)
    cotangent = torch.randn(batch, length, heads, dim, dtype=torch.float64)
    compare(ours("ttt", x, cotangent, tmp_path), ttt_by_steps(x, layers, size), x, cotangent)


def bounded_error(e):
    """Returns |e|^2 for |e|^2 <= dim. For larger e, |e|^2 is replaced by its tangent (a linear function of |e|) at
    |e|^2 = dim."""
    square, dim = e.square().sum(-1), e.shape[-1]
    return torch.where(square <= dim, square, 2 * (square.clamp(min=dim) * dim).sqrt() - dim)


def memory_by_steps(x, depth, chunk):
    norm = x.get("norm_weight")

    def model(p, u, h):
        z = u
        for n, w in enumerate(p):
            z = (F.gelu(z) if n else z) @ w
        return z if norm is None else u + F.layer_norm(z, z.shape[-1:], norm[h], eps=1e-6)

    def error(e):
        return bounded_error(e) if norm is None else e.square().sum(-1)

    rows = []
    for n in range(x["q"].shape[0]):
        heads = []
        for h in range(x["q"].shape[2]):
            M = [x[f"W{i + 1}"][h] for i in range(depth)]
            S = [torch.zeros_like(w) for w in M]
            out = []
            for t in range(x["q"].shape[1]):
                if t % chunk == 0:
                    base = M
                q, k, v = (x[name][n, t, h][None] for name in "qkv")
                gradients = torch.autograd.grad(error(model(base, k, h) - v).sum(), base, create_graph=True)
                eta, keep, step = x["log_momentum"][n, t, h].exp(), x["log_keep"][n, t, h].exp(), x["step"][n, t, h]
                S = [eta * s - step * g for s, g in zip(S, gradients)]
                M = [keep * m + s for m, s in zip(M, S)]
                out.append(model(M, q, h)[0])
            heads.append(torch.stack(out))
        rows.append(torch.stack(heads, 1))
    return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalized"])
def test_memory_matches_single_gradient_steps(depth, normalized, tmp_path):
    batch, length, heads, dim, chunk = 2, 37, 2, 6, 16
    x = {name: leaf(batch, length, heads, dim, std=dim**-0.5) for name in "qkv"}
    x["step"] = (0.1 * torch.rand(batch, length, heads, dtype=torch.float64)).requires_grad_()
    x["log_momentum"], x["log_keep"] = gate(batch, length, heads), gate(batch, length, heads, bias=2)
    for n in range(depth):
        x[f"W{n + 1}"] = leaf(heads, dim if n == 0 else 2 * dim, dim if n == depth - 1 else 2 * dim, std=0.5)
    if normalized:
        x["norm_weight"] = (1 + leaf(heads, dim, std=0.2)).detach().requires_grad_()
    cotangent = torch.randn(batch, length, heads, dim, dtype=torch.float64)
    got = ours("memory", {**x, "chunk": torch.tensor(chunk)}, cotangent, tmp_path)
    compare(got, memory_by_steps(x, depth, chunk), x, cotangent)


@pytest.mark.data
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunk", [1, 8])
@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalized"])
def test_memory_matches_titans_pytorch(depth, chunk, normalized, tmp_path, monkeypatch):
    """Compares the memory with titans-pytorch. The package's argument `batch_size` corresponds to our chunk size, the
    interval at which gradients are computed. Its `chunk_size` is 1, so that gates are computed per token.

    The package differs from our model in these points: its loss is a mean instead of a sum, it normalizes the input and
    gates the output, and it has neither convolutions nor an L2 norm of the keys. The test disables these differences or
    excludes them from the comparison.
    """
    titans_pytorch = pytest.importorskip(
        "titans_pytorch", reason="titans-pytorch is not installed (the test was written for version 0.5.5)"
    )
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from learner_peers import ResidualNorm

    print(f"titans-pytorch {importlib.metadata.version('titans-pytorch')}")
    heads, dim, batch, length = 2, 8, 2, 24
    torch.set_default_dtype(torch.float64)
    try:
        mlp = titans_pytorch.MemoryMLP(dim, depth=depth, expansion_factor=2.0)
        error = (lambda e: e.square().sum(-1)) if normalized else bounded_error
        peer = titans_pytorch.NeuralMemory(
            heads * dim,
            model=ResidualNorm(mlp) if normalized else mlp,
            chunk_size=1,
            batch_size=chunk,
            heads=heads,
            dim_head=dim,
            pre_rmsnorm=False,
            mem_model_norm_add_residual=False,
            store_memory_loss_fn=lambda a, b: error(a - b),
            default_step_transform_max_lr=0.1,
            init_momentum_bias=0.0,
            init_decay_bias=-2.0,
        )
        peer.retrieve_gate, peer.combine_heads = None, torch.nn.Identity()
        for gated in (peer.to_momentum[0], peer.to_decay_factor[0]):
            torch.nn.init.normal_(gated.weight)
        seq = torch.randn(batch, length, heads * dim) / dim
        out = peer(seq)[0].view(batch, length, heads, dim)
    finally:
        torch.set_default_dtype(torch.float32)
    split = lambda layer: layer(seq).view(batch, length, heads, dim)  # noqa: E731
    x = {"q": split(peer.to_queries), "k": split(peer.to_keys), "v": split(peer.to_values)}
    x["step"] = 0.1 * F.linear(seq, peer.to_adaptive_step[0].weight, peer.to_adaptive_step[0].bias).sigmoid()
    momentum, decay = peer.to_momentum[0], peer.to_decay_factor[0]
    x["log_momentum"] = F.logsigmoid(F.linear(seq, momentum.weight, momentum.bias))
    x["log_keep"] = F.logsigmoid(-F.linear(seq, decay.weight, decay.bias))
    for n, w in enumerate(peer.memory_model_parameters):
        x[f"W{n + 1}"] = w
    if normalized:
        x["norm_weight"] = torch.ones(heads, dim, dtype=torch.float64)
    cotangent = torch.randn_like(out)
    got = ours("memory", {**x, "chunk": torch.tensor(chunk)}, cotangent, tmp_path)
    torch.testing.assert_close(got["out"], out, rtol=1e-9, atol=1e-10)
    # Compare the gradients of all trained parameters of titans-pytorch. Our program returns gradients with respect to
    # the inputs of the recurrence; autograd computes the gradients of the parameters from them.
    names = [name for name in x if name[0] != "W" and name != "norm_weight"]
    trained = [p for p in peer.parameters() if p.requires_grad]
    theirs = torch.autograd.grad(out, trained, cotangent, retain_graph=True, allow_unused=True)
    through = torch.autograd.grad([x[n] for n in names], trained, [got["d_" + n] for n in names], allow_unused=True)
    memory = {id(w): got[f"d_W{n + 1}"] for n, w in enumerate(peer.memory_model_parameters)}
    compared = 0
    for parameter, gradient, mine in zip(trained, theirs, through):
        mine = memory.get(id(parameter), mine)
        assert (gradient is None) == (mine is None)
        if gradient is not None:
            torch.testing.assert_close(mine, gradient, rtol=1e-8, atol=1e-9)
            compared += 1
    assert compared == 3 + 3 * 2 + depth, "q, k, v, three gates with biases and the memory weights must be compared"
