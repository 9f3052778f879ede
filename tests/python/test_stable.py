"""CPU tests of functions in src/ops for LibTorch's stable ABI. Except for these tests (stable_functions.cc), only GPU
kernels call them."""

import os

import lazy_attention  # noqa: F401  registers lazy::add_product
import pytest
import torch

LIBRARY = os.environ.get("LAZY_TEST_STABLE")
if not LIBRARY:
    pytest.skip("LAZY_TEST_STABLE is not set to stable_functions of a build folder", allow_module_level=True)
torch.ops.load_library(LIBRARY)
ops = torch.ops.lazy_test


def test_views_and_copies():
    x = torch.randn(4, 6)
    assert torch.equal(ops.padded(x), torch.nn.functional.pad(x, (0, 3)))
    assert torch.equal(ops.strided(x), x.as_strided((2, 3), (1, 2)))
    assert torch.equal(ops.as_integers(x), x.view(torch.int32))
    assert torch.equal(ops.as_double(x), x.double())


def test_products():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    torch.testing.assert_close(ops.twice_product(a, b), 2 * a @ b)
    assert torch.equal(ops.scaled(a, torch.tensor(3.0)), 3 * a)


def test_assertions():
    assert ops.asserted(torch.tensor(True))
    with pytest.raises(RuntimeError):
        ops.asserted(torch.tensor(False))


def test_a_tensor_that_was_seen_is_known_until_it_changes():
    x = torch.tensor([0, 3, 9])
    assert ops.seen(x, x).tolist() == [True, False, False]
    assert ops.seen(x, x.clone()).tolist() == [False, False, False]
    assert ops.seen(x, x[:2]).tolist() == [False, False, False]
    x.add_(0)
    assert ops.seen(x, x).tolist() == [False, False, False]
