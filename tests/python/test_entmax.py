"""Compares sparsemax and entmax-1.5 with the entmax package (deep-spin/entmax): results and all gradients."""

import importlib.metadata

import definition
import lazy_attention
import pytest
import torch
from definition import Pool, gradients, leaf

entmax = pytest.importorskip("entmax", reason="entmax is not installed (the test was written for version 1.3)")
FUNCTIONS = {"sparsemax": entmax.sparsemax, "entmax15": entmax.entmax15}


def package_attention(q, k, v, bias, normalizer, causal, window):
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    seen, distance = definition.visible_pairs(q.shape[1], k.shape[1], causal, window)
    s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    s = s + bias[:, distance.clamp_max(bias.shape[1] - 1)] * (distance < bias.shape[1])
    weights = FUNCTIONS[normalizer](s.masked_fill(~seen, torch.finfo(s.dtype).min / 4), dim=-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v), weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "causal, window, n, m", [(True, -1, 13, 13), (True, 5, 13, 13), (True, -1, 4, 17), (False, -1, 6, 11)]
)
@pytest.mark.parametrize("normalizer", FUNCTIONS)
def test_result_gradients_and_support_match_the_entmax_package(normalizer, causal, window, n, m, dtype):
    print(f"entmax {importlib.metadata.version('entmax')}")
    pool = Pool()
    for _ in range(4):
        exact = [
            leaf(2, n, 4, 8, dtype=torch.float64, scale=2.0),
            leaf(2, m, 2, 8, dtype=torch.float64),
            leaf(2, m, 2, 6, dtype=torch.float64),
            leaf(4, 6, dtype=torch.float64),
        ]
        single = [t.detach().float().requires_grad_() for t in exact]
        cotangent = torch.randn(2, n, 4, 6)

        def theirs(tensors):
            out, weights = package_attention(*tensors, normalizer, causal, window)
            return weights, [out, *gradients(out, tensors, cotangent)]

        tensors = exact if dtype == torch.float64 else single
        out, _, stats = lazy_attention.attention(
            *tensors[:3], tensors[3], normalizer=normalizer, causal=causal, window=window, return_stats=True
        )
        ours = [out, *gradients(out, tensors, cotangent)]
        weights, wide = theirs(exact)
        for name, *three in zip(("out", "q", "k", "v", "bias"), ours, wide, theirs(single)[1]):
            pool.add(name, *three)
        alive = (weights > 0).sum(-1)
        assert alive.max() < m or m < 3, "some keys must have zero weight, otherwise the test case is too weak"
        assert torch.equal(stats[2].long(), alive), "the numbers of keys with nonzero weight must be equal"
    pool.check()
