"""Compares lazy_attention.decode with the reference implementation, for contiguous and paged caches, for several query
rows, and for all normalizers."""

import typing

import definition
import lazy_attention
import pytest
import torch
from definition import Pool, leaf
from lazy_attention import decode
from naming import naming
from torch import library

LENGTHS = [37, 4, 61]
ROWS = 3


def problem(normalizer, dtype=torch.float64):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    make = lambda *shape: leaf(*shape, dtype=torch.float64).detach()  # noqa: E731
    q, k, v = make(3, ROWS, 4, 16), make(3, 64, 2, 16), make(3, 64, 2, 12)
    parameters = [
        make(4, 9),
        make(4) * 0.2 - 0.8 if normalizer in definition.TAKES_TAU else None,
        make(4) if normalizer in definition.TAKES_SINK else None,
    ]
    return [t.to(dtype) for t in (q, k, v)], [None if t is None else t.to(wide) for t in parameters]


def row_by_row(function, q, k, v, parameters, **options):
    return torch.cat(
        [
            function(q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n], *parameters, **options)
            for b, n in enumerate(LENGTHS)
        ]
    )


def paged(cache, page_size, poison):
    """Copies a KV cache to pages in random order. Rows of the pages that belong to no token are set to `poison`, which
    would change the results if a kernel read them."""
    pages = -(-cache.shape[1] // page_size)
    order = torch.randperm(len(cache) * pages).view(len(cache), pages)
    store = torch.full((len(cache) * pages, page_size, *cache.shape[2:]), poison, dtype=cache.dtype)
    for b, n in enumerate(LENGTHS):
        for j in range(n):
            store[order[b, j // page_size], j % page_size] = cache[b, j]
    return store, order


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("variant", [dict(), dict(window=10), dict(softcap=2.0)], ids=str)
@pytest.mark.parametrize("normalizer", definition.NORMALIZERS)
def test_decode_matches_the_definition(normalizer, variant, dtype):
    pool = Pool()
    for _ in range(3):
        (q, k, v), parameters = problem(normalizer)
        low, low_parameters = [t.float() for t in (q, k, v)], [None if t is None else t.float() for t in parameters]
        options = dict(normalizer=normalizer, **variant)
        exact = row_by_row(definition.attention, q, k, v, parameters, **options)
        plain = row_by_row(definition.attention, *low, low_parameters, **options)
        tensors, given = ([q, k, v], parameters) if dtype == torch.float64 else (low, low_parameters)
        for b, n in enumerate(LENGTHS):
            for cache in tensors[1:]:
                cache[b, n:] = torch.nan
        lengths = torch.tensor(LENGTHS)
        pool.add("contiguous", decode(*tensors, lengths, *given, **options), exact, plain)
        torch.manual_seed(4)
        keys, table = paged(tensors[1], 8, torch.nan)
        torch.manual_seed(4)
        values, _ = paged(tensors[2], 8, torch.nan)
        ours = decode(tensors[0], keys, values, lengths.int(), *given, block_table=table.int(), **options)
        pool.add("paged", ours, exact, plain)
    pool.check()


@pytest.mark.parametrize("normalizer", typing.get_args(lazy_attention.operator.Normalizer))
def test_decode_matches_attention(normalizer):
    """decode and attention return the same results, lse and statistics in float64."""
    (q, k, v), parameters = problem(normalizer)
    ours = decode(
        q, k, v, torch.tensor(LENGTHS), *parameters, normalizer=normalizer, return_lse=True, return_score_stats=True
    )
    parts = [
        lazy_attention.attention(
            q[b : b + 1],
            k[b : b + 1, :n],
            v[b : b + 1, :n],
            *parameters,
            normalizer=normalizer,
            return_score_stats=True,
        )
        for b, n in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(ours.out, torch.cat([p.out for p in parts]))
    torch.testing.assert_close(ours.stats, torch.cat([p.stats for p in parts], 1))
    torch.testing.assert_close(ours.lse, torch.cat([p.lse for p in parts]))


def test_visible_count_for_a_cache_with_evicted_keys():
    (q, k, v), (bias, tau, _) = problem("elastic")
    counts = torch.tensor(LENGTHS) * 2
    ours = decode(q[:, :1], k, v, torch.tensor(LENGTHS), bias, tau, visible_count=counts)
    for b, n in enumerate(LENGTHS):  # visible_count 2 n and tau give the same tau / c_i as n and tau / 2
        exact = definition.attention(q[b : b + 1, :1], k[b : b + 1, :n], v[b : b + 1, :n], bias, tau / 2)
        torch.testing.assert_close(ours[b : b + 1], exact)


def test_opcheck_and_compile():
    (q, k, v), parameters = problem("elastic", torch.float32)
    lengths = torch.tensor(LENGTHS)
    library.opcheck(torch.ops.lazy.decode.default, (q, k, v, lengths, *parameters))
    compiled = torch.compile(lambda *t: decode(*t), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, lengths, *parameters), decode(q, k, v, lengths, *parameters))


def test_inputs_that_require_gradients_are_refused():
    (q, k, v), parameters = problem("softmax", torch.float32)
    slopes = torch.full((q.shape[2],), 0.1, requires_grad=True)
    for changes in (dict(alibi_slopes=slopes), dict(q=q.clone().requires_grad_())):
        arguments = dict(q=q, k_cache=k, v_cache=v, cache_lengths=torch.tensor(LENGTHS), normalizer="softmax") | changes
        with pytest.raises(NotImplementedError, match=naming("lazy::decode", "torch.no_grad()")):
            decode(**arguments)
        with torch.no_grad():
            assert decode(**arguments).isfinite().all()


@pytest.mark.parametrize(
    "change, names",
    [
        (dict(cache_lengths=torch.tensor([65, 1, 1])), ("cache_lengths[0]", 65)),
        (dict(cache_lengths=torch.tensor([1, 1])), ("cache_lengths", "batch", "[2]")),
        (dict(block_table=torch.tensor([[0], [1], [3]])), ("block_table",)),
        (dict(visible_count=torch.tensor([1, 1, 1])), ("visible_count[0]", 1)),
    ],
)
def test_invalid_arguments_raise_errors(change, names):
    (q, k, v), (bias, tau, _) = problem("elastic", torch.float32)
    arguments = dict(q=q, k_cache=k, v_cache=v, cache_lengths=torch.tensor(LENGTHS), distance_bias=bias, tau=tau)
    with pytest.raises(RuntimeError, match=naming("lazy::decode", *names)):
        decode(**arguments | change)


def test_autocast_casts_the_inputs():
    (q, k, v), (bias, tau, _) = problem("elastic", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = decode(q, k, v, torch.tensor(LENGTHS), bias, tau)
    assert torch.equal(out, decode(q.bfloat16(), k.bfloat16(), v.bfloat16(), torch.tensor(LENGTHS), bias, tau))
