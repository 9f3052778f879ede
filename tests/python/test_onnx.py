"""Runs ONNX's test cases for its Attention operator (opset 23 and 24). Cases with masks or with scores as outputs are
not applicable. Past keys and values are concatenated before the new keys and values, as in ONNX."""

import importlib
import warnings

import definition
import lazy_attention
import pytest
import torch

onnx = pytest.importorskip("onnx")


def import_attention(package):
    importlib.import_module(package.__name__ + ".attention")


def cases():
    from onnx.backend.test.case import node

    # import_recursive is replaced, because otherwise collect_testcases would import the modules of all operators and
    # compute their test cases, which takes 10 s.
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(node, "import_recursive", import_attention)
        return [
            c
            for c in node.collect_testcases("Attention")
            if c.model.graph.node[0].op_type == "Attention" and "_expanded" not in c.name
        ]


def settings(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def why_not(case):
    """Returns the first reason why a case is not applicable to lazy::attention, or None if it is applicable."""
    node = case.model.graph.node[0]
    attributes, given = settings(node), arguments(case)
    if given["mask"] is not None:
        return "an explicit mask"
    if attributes.get("right_window_size", -1) >= 0 or (
        attributes.get("left_window_size", -1) >= 0 and not attributes.get("is_causal")
    ):
        return "a window on both sides of the query"
    if attributes.get("is_causal") and given["lengths"] is None:
        past = 0 if given["past_key"] is None else given["past_key"].shape[-2]
        if given["Q"].shape[-2] + past > given["K"].shape[-2] + past:
            return "queries after the last key"
    return None


PLACES = ("Q", "K", "V", "mask", "past_key", "past_value", "lengths")


def arguments(case):
    """Returns the inputs of the Attention node in order, with None for omitted inputs."""
    node, (inputs, _) = case.model.graph.node[0], case.data_sets[0]
    values, given = iter(inputs), dict.fromkeys(PLACES)
    for place, name in zip(PLACES, node.input):
        given[place] = next(values) if name else None
    return given


ALL = cases()
APPLY = [c for c in ALL if why_not(c) is None]


def test_enough_onnx_cases_are_applicable():
    print(f"{len(APPLY)} of {len(ALL)} cases apply")
    assert len(APPLY) >= 30, {c.name: why_not(c) for c in ALL}


@pytest.mark.parametrize("case", APPLY, ids=[c.name for c in APPLY])
def test_attention_matches_onnx(case):
    node, (_, outputs) = case.model.graph.node[0], case.data_sets[0]
    attributes, given = settings(node), arguments(case)
    dtype = {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}[str(given["Q"].dtype)]
    flat = given["Q"].ndim == 3  # the shape is (batch, length, heads * head_dim)

    def tensor(array):
        return torch.from_numpy(array.astype("float64"))

    def heads(name, count):
        t = tensor(given[name])
        return t.unflatten(-1, (attributes[count], -1)) if flat else t.transpose(1, 2)

    q, k, v = heads("Q", "q_num_heads"), heads("K", "kv_num_heads"), heads("V", "kv_num_heads")
    past = 0
    if given["past_key"] is not None:
        past = given["past_key"].shape[-2]
        k = torch.cat((tensor(given["past_key"]).transpose(1, 2), k), 1)
        v = torch.cat((tensor(given["past_value"]).transpose(1, 2), v), 1)
    causal, n = bool(attributes.get("is_causal", 0)), q.shape[1]
    window = attributes.get("left_window_size", -1)
    options = dict(
        normalizer="softmax",
        causal=causal,
        scale=attributes.get("scale"),
        softcap=attributes.get("softcap"),
        window=window + 1 if window >= 0 else -1,
    )
    # In ONNX, query i is at the position of key i unless the number of used keys per batch row is given. In
    # lazy::attention, the last query is at the position of the last key. The test therefore removes the keys that no
    # query sees.
    used = [past + n] * len(q) if causal else [k.shape[1]] * len(q)
    if given["lengths"] is not None:
        used = given["lengths"].tolist()
    low = [t.to(dtype) for t in (q, k, v)]
    cu_q, cu_k = torch.arange(len(q) + 1) * n, torch.tensor([0, *used]).cumsum(0)
    packed = [low[0].flatten(0, 1), *(torch.cat([t[b, :m] for b, m in enumerate(used)]) for t in low[1:])]
    out = lazy_attention.attention(*packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options).unflatten(0, (len(q), n))
    exact = torch.cat(
        [
            definition.attention(low[0][b : b + 1].double(), *(t[b : b + 1, :m].double() for t in low[1:]), **options)
            for b, m in enumerate(used)
        ]
    ).nan_to_num()  # the result of rows without visible keys is zero and not NaN
    expected = tensor(outputs[0])
    expected = expected.view_as(exact) if flat else expected.transpose(1, 2)
    # Check the expected vector of ONNX: it must agree with the float64 result up to the rounding of its type.
    assert (expected - exact).abs().max() <= 8 * torch.finfo(dtype).eps * exact.abs().max()
    # The expected result of ONNX is a plain computation in this type. The error of lazy::attention may be twice as
    # large.
    definition.close(out, exact, expected.to(dtype), case.name)
