"""Reference implementation of attention in plain PyTorch with n x n matrices, and functions that compare results."""

import torch

TAKES_TAU, TAKES_SINK = ("elastic", "elastic_sink"), ("softmax_sink", "elastic_sink")
NORMALIZERS = ["elastic", "softmax", "softmax_sink", "elastic_sink", "sigmoid"]  # supported by `attention` below


def visible_pairs(n, m, causal, window):
    """Returns the mask (n, m), which is True for visible pairs of query and key, and the distances (n, m). Query i has
    the position i + m - n."""
    distance = torch.arange(n)[:, None] + (m - n) - torch.arange(m)[None]
    seen = distance >= 0 if causal else torch.ones(n, m, dtype=torch.bool)
    if window > 0:
        seen = seen & (distance.abs() < window)
    return seen, distance.abs()


def attention(
    q,
    k,
    v,
    distance_bias=None,
    tau=None,
    sink=None,
    *,
    alibi_slopes=None,
    normalizer="elastic",
    offset="per_visible",
    sigmoid_bias=None,
    scale=None,
    softcap=None,
    causal=True,
    window=-1,
):
    """Computes the same function as torch.ops.lazy.attention, for the normalizers in NORMALIZERS."""
    heads, group = q.shape[2], q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    seen, distance = visible_pairs(q.shape[1], k.shape[1], causal, window)
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s.to(q.dtype if q.dtype == torch.float64 else torch.float32)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if distance_bias is not None:
        reach = distance_bias.shape[1]
        s = s + distance_bias[:, distance.clamp_max(reach - 1)] * (distance < reach)
    if alibi_slopes is not None:
        s = s - alibi_slopes.view(-1, 1, 1) * distance
    count = seen.sum(1)[:, None].to(s.dtype)
    hidden = s.masked_fill(~seen, -torch.inf)
    if normalizer == "sigmoid":
        bias = -count.log() if sigmoid_bias is None else sigmoid_bias
        weights = torch.sigmoid(s + bias) * seen
    else:
        if normalizer in TAKES_SINK:
            column = sink.view(1, heads, 1, 1).expand(*s.shape[:3], 1).to(s.dtype)
            weights = torch.cat((hidden, column), -1).softmax(-1)[..., :-1]
        else:
            weights = hidden.softmax(-1)
        if normalizer in TAKES_TAU:
            shift = tau.view(-1, 1, 1) / (count if offset == "per_visible" else 1)
            weights = torch.relu(weights + shift) * seen
    return torch.einsum("bhij,bjhd->bihd", weights.to(v.dtype), v)


def distance_of(a, b):
    return (a.double() - b.double()).square().mean().sqrt().item()


def close(result, exact, plain, what=""):
    """Asserts that the error of `result` relative to the float64 result `exact` is at most twice the error of the plain
    computation in the same precision, plus one rounding."""
    rounding = torch.finfo(result.dtype).eps / 2 * exact.double().square().mean().sqrt().item()
    ours, theirs = distance_of(result, exact), distance_of(plain, exact)
    assert ours <= 2 * theirs + rounding, f"{what}: {ours:.3e} from float64, plain PyTorch {theirs:.3e}"


def close_float64(result, other, other_fp32, what=""):
    """Asserts that two float64 results agree. The expected rounding error is the error of a plain fp32 computation,
    multiplied by the float64 epsilon and divided by the fp32 epsilon. Each of the two results may have twice this
    error."""
    assert result.dtype == other.dtype == torch.float64
    scale = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    rounding = torch.finfo(torch.float64).eps * other.square().mean().sqrt().item()
    allowed = 4 * scale * distance_of(other_fp32, other) + rounding
    found = distance_of(result, other)
    assert found <= allowed, f"{what}: {found:.3e} apart, allowed {allowed:.3e}"


class Pool:
    """Collects the results for several random inputs and compares them together. A comparison of only a few numbers
    would be unreliable, because their rounding errors vary strongly."""

    def __init__(self):
        self.results = {}

    def add(self, name, ours, exact, plain):
        for place, t in zip(self.results.setdefault(name, ([], [], [])), (ours, exact, plain)):
            place.append(t.detach().flatten())

    def check(self):
        assert self.results
        for name, lists in self.results.items():
            ours, exact, plain = (torch.cat(some) for some in lists)
            (close_float64 if ours.dtype == torch.float64 else close)(ours, exact, plain, name)


def leaf(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype).requires_grad_()


def gradients(out, inputs, cotangent):
    return torch.autograd.grad(out, inputs, cotangent.to(out.dtype))
