"""Tests of the operator together with features of PyTorch: compile, export, autocast, activation checkpointing, data
parallel training."""

import copy
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from lazy_attention import LazyAttention
from torch.utils.checkpoint import checkpoint


def make():
    torch.manual_seed(3)
    return LazyAttention(32, 4, 2, distance_bias_window=6, distance_bias_std=0.5)


def gradients_of(module, out):
    module.zero_grad()
    out.float().square().sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile_fullgraph_forward_and_backward(backend):
    layer, x = make(), torch.randn(2, 10, 32)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    try:
        out = compiled(x)
    except Exception as error:  # skip the test if the C++ compiler is missing
        if backend == "inductor" and "InvalidCxxCompiler" in repr(error):
            pytest.skip(f"PyTorch's inductor finds no C++ compiler: {error}")
        raise
    torch.testing.assert_close(out, layer(x))
    assert_same(gradients_of(layer, compiled(x)), gradients_of(layer, layer(x)))


@pytest.mark.slow
def test_compile_with_dynamic_lengths_does_not_compile_again():
    layer = make()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    compiled(torch.randn(2, 10, 32))
    first = counter.frame_count
    for length in (13, 31):
        x = torch.randn(2, length, 32)
        torch.testing.assert_close(compiled(x), layer(x))
    assert counter.frame_count == first


def test_compile_fullgraph_of_packed_documents():
    layer, x, cu = make(), torch.randn(12, 32), torch.tensor([0, 5, 12])
    compiled = torch.compile(lambda x, cu: layer(x, cu_seqlens=cu), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, cu), layer(x, cu_seqlens=cu))


def test_compile_under_autocast():
    layer, x = make(), torch.randn(2, 10, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        a, b = compiled(x), layer(x)
    assert a.dtype == torch.bfloat16
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_bitwise_equal_gradients(reentrant):
    layer, x = make(), torch.randn(2, 10, 32, requires_grad=True)
    plain = gradients_of(layer, layer(x))
    again = gradients_of(layer, checkpoint(layer, x, use_reentrant=reentrant))
    for name in plain:
        assert torch.equal(plain[name], again[name]), name


@pytest.mark.parametrize("dynamic", [False, True])
def test_export(dynamic, tmp_path):
    layer, x = make().eval(), torch.randn(2, 10, 32)
    shapes = {"x": {1: torch.export.Dim("length", min=2, max=64)}} if dynamic else None
    program = torch.export.export(layer, (x,), dynamic_shapes=shapes)
    assert any("lazy.attention" in str(node.target) for node in program.graph.nodes)
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    for length in (10, 17) if dynamic else (10,):
        y = torch.randn(2, length, 32)
        assert torch.equal(loaded(y), layer(y))


def test_deepcopy():
    layer, x = make(), torch.randn(1, 5, 32)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_second_derivative_of_the_layer_raises_an_error():
    layer, x = make(), torch.randn(1, 5, 32, requires_grad=True)
    (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="lazy::"):
        first.sum().backward()


DDP = """
import sys, torch, torch.distributed as dist
from lazy_attention import LazyAttention
rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
torch.manual_seed(3 + rank)  # rank 1 starts elsewhere: DDP must bring rank 0's parameters
layer = LazyAttention(32, 4, 2, distance_bias_window=6, distance_bias_std=0.5)
model = torch.nn.parallel.DistributedDataParallel(layer)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.load(out + ".data")
for step in range(3):
    optimizer.zero_grad()
    model(data[step, rank]).square().mean().backward()
    optimizer.step()
torch.save(layer.state_dict(), f"{out}.{rank}")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_distributed_data_parallel_matches_one_process():
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    data = torch.randn(3, 2, 4, 10, 32)  # shape (steps, ranks, batch, length, width)
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "state")
        torch.save(data, out + ".data")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", DDP, str(rank), str(Path(folder) / "store"), out],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        for process in processes:
            text, _ = process.communicate(timeout=300)
            assert process.returncode == 0, text
        first, second = (torch.load(f"{out}.{rank}") for rank in range(2))
    layer = make()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        layer(data[step].flatten(0, 1)).square().mean().backward()
        optimizer.step()
    for name, value in layer.state_dict().items():
        assert torch.equal(first[name], second[name]), name
    assert_same(first, dict(layer.state_dict()))
