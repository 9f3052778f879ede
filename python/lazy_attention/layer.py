"""LazyAttention: the paper's attention layer as a module, with grouped queries, a KV cache and packed documents."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from .arguments import expect_types
from .decoding import attention_or_decode
from .fused import rope
from .operator import TAKES_SINK, TAKES_TAU, AttentionOutput, Normalizer, Offset, attention
from .per_head import gathered, read, warn_of_rounding, without_rounding


def _entries(t: Tensor) -> tuple:
    """Returns the batch size, number of heads, head_dim, type and device of keys or values t, a tensor (batch, tokens,
    heads, head_dim). A KV cache can only be extended by tensors that agree in all of these."""
    return (t.shape[0], *t.shape[2:], t.dtype, t.device)


class KVCache:
    """The keys and values of all previous tokens, for one layer. It only supports inference: `extend` raises
    RuntimeError if gradients are enabled.

    ``keys`` and ``values`` are (batch, capacity, kv heads, head_dim). The first ``length`` positions are valid. The
    capacity doubles when it is exhausted.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends keys and values (batch, tokens, kv heads, head_dim). Returns views of all keys and values."""
        if torch.is_grad_enabled():
            raise RuntimeError("KVCache: expected torch.no_grad(), because the cache only supports inference")
        if keys.dim() != 4 or values.shape[:3] != keys.shape[:3]:
            raise ValueError(
                "KVCache: expected keys and values of shape (batch, tokens, kv heads, head_dim), received "
                f"{tuple(keys.shape)} and {tuple(values.shape)}"
            )
        for fresh, store in ((keys, self.keys), (values, self.values)):
            if store is not None and _entries(fresh) != _entries(store):
                raise ValueError(
                    f"KVCache: expected keys and values like the {self.length} cached ones, {_entries(store)} (batch, "
                    f"kv heads, head_dim, type, device), received {_entries(fresh)}: create one cache per layer and "
                    "batch"
                )
        end = self.length + keys.shape[1]
        self.keys = self._append(self.keys, keys, end)
        self.values = self._append(self.values, values, end)
        self.length = end
        return self.keys[:, :end], self.values[:, :end]

    def _append(self, store: Tensor | None, fresh: Tensor, end: int) -> Tensor:
        if store is None or store.shape[1] < end:
            capacity = max(end, 256 if store is None else 2 * store.shape[1])
            grown = fresh.new_empty(fresh.shape[0], capacity, *fresh.shape[2:])
            if store is not None:
                grown[:, : self.length] = store[:, : self.length]
            store = grown
        store[:, self.length : end] = fresh
        return store


class LazyAttention(nn.Module):
    """Attention layer of arXiv 2601.00919: query, key, value and output projections, rotary positions with a large
    base, a learned distance bias, and Elastic-Softmax (equations 4 and 5, see `lazy_attention.attention`).

    Args:
        hidden_size: width of the input and output.
        num_heads: query heads.
        num_kv_heads: number of key and value heads, a divisor of num_heads. Default: num_heads.
        head_dim: dimension of each head. Default: hidden_size / num_heads.
        normalizer: see `lazy_attention.attention`. With "elastic" and "elastic_sink" the layer has the parameter
            ``softmax_offset`` (tau, shape (heads)), with "softmax_sink" and "elastic_sink" the parameter ``sinks``
            (heads).
        offset: "per_visible" (tau / visible keys) or "constant" (tau).
        tau: initial value of tau; the paper's is -1.
        tau_trainable: False makes tau a buffer of the same name, fixed at its initial value.
        distance_bias_window: number W of entries per head in the parameter ``learnable_bias_diagonals`` (heads, W); 0
            means no distance bias.
        distance_bias_std: standard deviation of the initial values of the distance bias.
        rope_base: base of the rotary embedding; None means no rotary embedding. The paper uses a base larger than 1e4.
        rope_options: further keyword arguments of `lazy_attention.rope` (rotary_dim, interleaved, scaling, ...).
        window: size of the sliding window in keys, including the query's own key; -1 means no window.
        softcap: soft-capping of the scores, see `lazy_attention.attention`; None means no soft-capping.
        causal: False lets queries see later keys; the distance bias then depends on |i - j|.
        bias: whether the query, key, value and output projections have biases.
        gate: output gate (gated attention, arXiv 2505.06708). "head" and "element" multiply the output of every head by
            sigmoid(gate_proj(x)), which has one value per head or one value per element. "none" disables the gate.
        sink: initial value of the sinks of "softmax_sink" and "elastic_sink".
        sink_trainable: False makes the sinks a buffer, fixed at their initial value (0: off-by-one softmax).

    The parameters have the same names as in the checkpoints of `lazy` (``attn.*`` in model.safetensors).
    ``softmax_offset``, ``sinks`` and ``learnable_bias_diagonals`` are created in fp32 for every ``dtype``, and stay in
    fp32 under ``layer.bfloat16()``, ``layer.half()`` and ``layer.to``, because they decide which keys have weight.

    Raises ValueError if num_heads is not a multiple of num_kv_heads, and every error of `lazy_attention.attention`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        normalizer: Normalizer = "elastic",
        offset: Offset = "per_visible",
        tau: float = -1.0,
        tau_trainable: bool = True,
        distance_bias_window: int = 512,
        distance_bias_std: float = 1e-3,
        rope_base: float | None = 1.5e5,
        rope_options: dict | None = None,
        window: int = -1,
        softcap: float | None = None,
        causal: bool = True,
        bias: bool = False,
        gate: Literal["none", "head", "element"] = "none",
        sink: float = 0.0,
        sink_trainable: bool = True,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        expect_types("LazyAttention", self.KINDS, locals())
        if not math.isfinite(tau) or not math.isfinite(sink) or not 0 <= distance_bias_std < math.inf:
            raise ValueError(
                "LazyAttention: expected finite numbers tau and sink, and distance_bias_std of at least 0, "
                f"received {tau}, {sink} and {distance_bias_std}"
            )
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        sizes = dict(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"LazyAttention: expected {name} of at least 1, received {size}")
        if num_heads % num_kv_heads:
            raise ValueError(
                f"LazyAttention: expected num_heads to be a multiple of num_kv_heads, "
                f"received {num_heads} and {num_kv_heads}"
            )
        if head_dim is None:
            if hidden_size % num_heads:
                raise ValueError(
                    f"LazyAttention: expected hidden_size to be a multiple of num_heads where head_dim is "
                    f"not given, received {hidden_size} and {num_heads}"
                )
            head_dim = hidden_size // num_heads
        if rope_base is not None and head_dim % 2 and "rotary_dim" not in (rope_options or {}):
            raise ValueError(f"LazyAttention: expected an even head_dim for rotary positions, received {head_dim}")
        if distance_bias_window < 0:
            raise ValueError(
                f"LazyAttention: expected distance_bias_window of at least 0, received {distance_bias_window}"
            )
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.normalizer, self.offset, self.window, self.causal = normalizer, offset, window, causal
        self.softcap = softcap
        self.rope_base, self.rope_options = rope_base, dict(rope_options or {})
        self._check_settings()
        self.tau_init, self.distance_bias_std, self.sink_init = tau, distance_bias_std, sink
        where = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias, **where)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias, **where)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias, **where)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias, **where)
        gates = {"none": 0, "head": num_heads, "element": num_heads * head_dim}
        if gate not in gates:
            raise ValueError(f'LazyAttention: expected gate "none", "head" or "element", received "{gate}"')
        self.gate_proj = nn.Linear(hidden_size, gates[gate], False, **where) if gates[gate] else None

        def parameter(wanted: bool, *shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(shape, device=device)) if wanted else None

        if normalizer in TAKES_TAU and not tau_trainable:
            self.register_buffer("softmax_offset", torch.empty(num_heads, device=device))
        else:
            self.softmax_offset = parameter(normalizer in TAKES_TAU, num_heads)
        if normalizer in TAKES_SINK and not sink_trainable:
            self.register_buffer("sinks", torch.empty(num_heads, device=device))
        else:
            self.sinks = parameter(normalizer in TAKES_SINK, num_heads)
        self.learnable_bias_diagonals = parameter(distance_bias_window > 0, num_heads, distance_bias_window)
        self.reset_attention_parameters()

    PER_HEAD = ("learnable_bias_diagonals", "softmax_offset", "sinks")
    KINDS = {  # types of the constructor's arguments that the operators do not check
        **dict.fromkeys(("hidden_size", "num_heads", "distance_bias_window"), "int"),
        **dict.fromkeys(("num_kv_heads", "head_dim"), "Optional[int]"),
        **dict.fromkeys(("tau", "sink", "distance_bias_std"), "float"),
        **dict.fromkeys(("tau_trainable", "sink_trainable", "bias"), "bool"),
    }

    @torch.no_grad()
    def _check_settings(self) -> None:
        """Calls the operators on a single zero token with this layer's settings, so that invalid settings raise an
        error in the constructor instead of in the first forward pass."""
        x = torch.zeros(1, 1, 1, self.head_dim, device="cpu").float()
        number = torch.zeros(1, device="cpu").float()
        if self.rope_base is not None:
            rope(x, self.rope_base, **self.rope_options)
        attention(
            x,
            x,
            x,
            tau=number if self.normalizer in TAKES_TAU else None,
            sink=number if self.normalizer in TAKES_SINK else None,
            normalizer=self.normalizer,
            offset=self.offset,
            softcap=self.softcap,
            causal=self.causal,
            window=self.window,
        )

    def reset_attention_parameters(self) -> None:
        """Initializes tau, the sinks and the distance bias. The projections keep the initial values of nn.Linear."""
        bias, tau, sinks = (read(self, name) for name in self.PER_HEAD)
        if tau is not None:
            nn.init.constant_(tau, self.tau_init)
        if sinks is not None:
            nn.init.constant_(sinks, self.sink_init)
        if bias is not None:
            nn.init.normal_(bias, 0.0, self.distance_bias_std)

    def per_head_arguments(self, q: Tensor) -> dict[str, Tensor | None]:
        """Returns the arguments distance_bias, tau and sink of the operator, in fp64 if q is fp64 and otherwise in
        fp32."""
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        values = gathered(self, self.PER_HEAD)
        warn_of_rounding(values[self.PER_HEAD.index("softmax_offset")])
        return {
            name: None if value is None else value.to(dtype)
            for name, value in zip(("distance_bias", "tau", "sink"), values)
        }

    def _apply(self, fn, recurse: bool = True):
        """Converts the layer (``to``, ``bfloat16``, ``cuda``, ...). The per-head parameters are never cast to 16
        bits."""
        tensors = [getattr(self, name, None) for name in self.PER_HEAD]
        return super()._apply(without_rounding(fn, tensors), recurse)

    def extra_repr(self) -> str:
        return (
            f"heads={self.num_heads}, kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, "
            f"normalizer={self.normalizer}, offset={self.offset}, rope_base={self.rope_base}, window={self.window}"
            + (f", softcap={self.softcap}" if self.softcap else "")
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects x (..., hidden_size) to q (..., heads, head_dim) and k, v (..., kv heads, head_dim), without
        RoPE."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return (
            q.unflatten(-1, (self.num_heads, self.head_dim)),
            k.unflatten(-1, (self.num_kv_heads, self.head_dim)),
            v.unflatten(-1, (self.num_kv_heads, self.head_dim)),
        )

    def gated(self, out: Tensor, x: Tensor) -> Tensor:
        """Multiplies the head outputs `out` (..., heads, head_dim) by the gates, which are computed from the layer's
        input x. Returns `out` unchanged if the layer has no gate."""
        if self.gate_proj is None:
            return out
        return out * torch.sigmoid(self.gate_proj(x)).unflatten(-1, (self.num_heads, -1))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        return_stats: bool = False,
        return_score_stats: bool = False,
    ) -> Tensor | AttentionOutput:
        """Calls the operator with this layer's parameters and settings."""
        arguments = dict(
            **self.per_head_arguments(q),
            normalizer=self.normalizer,
            offset=self.offset,
            softcap=self.softcap,
            causal=self.causal,
            window=self.window,
            return_stats=return_stats,
            return_score_stats=return_score_stats,
        )
        if cu_seqlens_q is None:
            return attention_or_decode(q, k, v, **arguments)
        return attention(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, **arguments)

    def forward(
        self,
        x: Tensor,
        *,
        cache: KVCache | None = None,
        cu_seqlens: Tensor | None = None,
        positions: Tensor | None = None,
        return_stats: bool = False,
        return_score_stats: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """
        Args:
            x: (batch, length, hidden_size), or (tokens, hidden_size) with ``cu_seqlens``.
            cache: the KV cache, which is read and extended. Positions continue after its last token.
            cu_seqlens: (documents + 1), cumulative lengths of packed documents.
            positions: (length) or (batch, length), for the rotary embedding. Default: 0, 1, 2, ... after the cache;
                The default also works for packed documents, because RoPE only depends on position differences.
            return_stats: return (out, stats) with the statistics of `lazy_attention.AttentionOutput`.
            return_score_stats: return (out, stats) with the statistics and the score statistics.

        Returns a tensor of the same shape as x.
        """
        packed = cu_seqlens is not None
        hidden_size = self.q_proj.in_features
        if not isinstance(x, Tensor) or x.dim() != (2 if packed else 3) or x.shape[-1] != hidden_size:
            shape = "(tokens, hidden_size), because cu_seqlens is passed," if packed else "(batch, length, hidden_size)"
            found = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            hint = ": pass cu_seqlens= with packed documents" if getattr(x, "ndim", 0) == 2 and not packed else ""
            raise ValueError(
                f"LazyAttention: expected x of shape {shape} with hidden_size {hidden_size}, received {found}{hint}"
            )
        if cache is not None and not isinstance(cache, KVCache):
            raise TypeError(f"LazyAttention: expected cache to be a KVCache, or None, found {type(cache).__name__}")
        if packed and cache is not None:
            raise ValueError("LazyAttention: expected either a cache or packed documents, received both")
        q, k, v = self.project(x.unsqueeze(0) if packed else x)
        if self.rope_base is not None:
            start = cache.length if cache is not None and positions is None else 0
            q, k = (rope(t, self.rope_base, start, positions, **self.rope_options) for t in (q, k))
        if cache is not None:
            k, v = cache.extend(k, v)
        if packed:
            q, k, v = q.squeeze(0), k.squeeze(0), v.squeeze(0)
        counted = return_stats or return_score_stats
        result = self.attend(q, k, v, cu_seqlens, cu_seqlens, return_stats, return_score_stats)
        out = self.o_proj(self.gated(result.out if counted else result, x).flatten(-2))
        return (out, result.stats) if counted else out
