"""Implements RetNet, Mamba2, DeltaNet and Gated DeltaNet decoders in plain PyTorch. They process the tokens
sequentially, in the precision of their weights. Callers can pass another implementation of the recurrence as the
argument `recurrence`."""

import torch
import torch.nn.functional as F


def loop(q, k, v, log_decay, beta, scale, delta):
    """Computes the recurrence token by token. q, k: (batch, length, heads, key dim); v: (batch, length, heads, value
    dim); log_decay, beta: (batch, length, heads). Returns a tensor of v's shape."""
    state = v.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[-1])
    out = []
    for t in range(q.shape[1]):
        state = state * log_decay[:, t].exp()[..., None, None]
        fresh = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state) if delta else v[:, t]
        state = state + torch.einsum("bhk,bhv,bh->bhkv", k[:, t], fresh, beta[:, t])
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * scale, state))
    return torch.stack(out, 1)


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def convolve(x, w, name):
    if name + ".weight" not in w:
        return F.silu(x)
    kernel = w[name + ".weight"]
    padded = F.pad(x.transpose(1, 2), (kernel.shape[-1] - 1, 0))
    return F.silu(F.conv1d(padded, kernel, w.get(name + ".bias"), groups=kernel.shape[0])).transpose(1, 2)


def rotate(x):
    half = x.shape[-1] // 2
    frequency = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def retnet(x, w, c, recurrence):
    heads = c["num_heads"]
    q, k, v = (F.linear(x, w[f"{n}_proj.weight"]).unflatten(-1, (heads, -1)) for n in "qkv")
    decay = torch.log1p(-(2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))))
    decay = decay.to(x.dtype).expand(*x.shape[:2], heads)
    o = recurrence(rotate(q), rotate(k), v, decay, torch.ones_like(decay), q.shape[-1] ** -0.5, False)
    name = "g_norm_swish_gate.weight" if c["use_output_gate"] else "g_norm.weight"
    o = rms_norm(o, w[name], c["norm_eps"]).flatten(2)
    return F.linear(o * F.silu(F.linear(x, w["g_proj.weight"])) if c["use_output_gate"] else o, w["o_proj.weight"])


def delta_net(x, w, c, recurrence):
    heads = c["num_heads"]
    q, k, v = (convolve(F.linear(x, w[f"{n}_proj.weight"]), w, f"{n}_conv1d").unflatten(-1, (heads, -1)) for n in "qkv")
    q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    beta = F.linear(x, w["b_proj.weight"]).sigmoid()
    decay = torch.zeros_like(beta)
    if "A_log" in w:
        decay = -w["A_log"].exp() * F.softplus(F.linear(x, w["a_proj.weight"]) + w["dt_bias"])
    o = recurrence(q, k, v, decay, beta, q.shape[-1] ** -0.5, True)
    o = rms_norm(o, w["o_norm.weight"], c["norm_eps"]).flatten(2)
    return F.linear(o * F.silu(F.linear(x, w["g_proj.weight"])) if c["use_gate"] else o, w["o_proj.weight"])


def mamba2(x, w, c, recurrence):
    heads, groups, n = c["num_heads"], c["n_groups"], c["state_size"]
    inner = heads * c["head_dim"]
    z, xbc, dt = F.linear(x, w["in_proj.weight"]).split([inner, inner + 2 * groups * n, heads], -1)
    v, b, cc = convolve(xbc, w, "conv1d").split([inner, groups * n, groups * n], -1)
    v = v.unflatten(-1, (heads, -1))
    b, cc = (t.unflatten(-1, (groups, n)).repeat_interleave(heads // groups, 2) for t in (b, cc))
    step = F.softplus(dt + w["dt_bias"]).clamp(*c.get("time_step_limit", (0, float("inf"))))
    y = recurrence(cc, b, v, -w["A_log"].exp() * step, step, 1.0, False) + w["D"][:, None] * v
    y = (y.flatten(2) * F.silu(z)).unflatten(-1, (groups, -1))
    y = rms_norm(y, w["norm.weight"].unflatten(0, (groups, -1)), c["norm_eps"]).flatten(2)
    return F.linear(y, w["out_proj.weight"])


MIXERS = {"retnet": retnet, "delta_net": delta_net, "gated_deltanet": delta_net, "mamba2": mamba2}


def logits(weights, config, ids, recurrence=loop):
    mamba = config["model_type"] == "mamba2"
    root, mixer = ("backbone.", "mixer.") if mamba else ("model.", "attn.")
    x = weights[root + "embeddings.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"{root}layers.{layer}."
        w = {name[len(at) :]: tensor for name, tensor in weights.items() if name.startswith(at)}
        inside = {name[len(mixer) :]: tensor for name, tensor in w.items() if name.startswith(mixer)}
        norm = w["norm.weight" if mamba else "attn_norm.weight"]
        x = x + MIXERS[config["model_type"]](rms_norm(x, norm, config["norm_eps"]), inside, config, recurrence)
        if not mamba:
            h = rms_norm(x, w["mlp_norm.weight"], config["norm_eps"])
            gate = F.silu(F.linear(h, w["mlp.gate_proj.weight"]))
            x = x + F.linear(gate * F.linear(h, w["mlp.up_proj.weight"]), w["mlp.down_proj.weight"])
    final = weights[root + ("norm_f.weight" if mamba else "norm.weight")]
    return F.linear(rms_norm(x, final, config["norm_eps"]), weights["lm_head.weight"])
