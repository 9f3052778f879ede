"""The decoder of `lazy_attention.hf.LazyForCausalLM` as a torchtitan model. Modules have the same names as in
torchtitan's Llama 3, so that its parallelism plans apply.

Shapes: B batch, L length of the local queries, S length of the keys, H local query heads, K local kv heads, D head
size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F
from torchtitan.models.llama3.model.model import Transformer, TransformerBlock

from ..fused import rope
from ..operator import attention
from .arguments import LazyModelArgs


class PerHeadTensors:
    """Arguments of the operator. FSDP2's mixed precision casts the tensors that a layer receives, also in tuples,
    dictionaries and dataclasses, but not in other classes. These tensors must stay fp32."""

    def __init__(self, distance_bias: Tensor | None, tau: Tensor | None, sink: Tensor | None):
        self.distance_bias, self.tau, self.sink = distance_bias, tau, sink


class PerHead(nn.Module):
    """The per-head parameters of one layer, fp32 whatever the model's type. The forward pass returns them, after FSDP2
    has gathered them, or as this rank's heads under tensor parallelism.

    The model calls this module before the layer. FSDP2's hooks must not run inside a compiled layer."""

    def __init__(self, args: LazyModelArgs):
        super().__init__()
        self.args = args

        def parameter(wanted: bool, trained: bool, *shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(shape, dtype=torch.float32), trained) if wanted else None

        heads, window = args.n_heads, args.distance_bias_window
        self.distance_bias = parameter(window > 0, True, heads, window)
        self.tau = parameter(args.has_tau, args.offset_trainable, heads)
        self.sink = parameter(args.has_sink, args.sink_trainable, heads)

    def init_weights(self) -> None:
        if self.distance_bias is not None:
            nn.init.normal_(self.distance_bias, std=self.args.distance_bias_init_std)
        if self.tau is not None:
            nn.init.constant_(self.tau, self.args.offset_init)
        if self.sink is not None:
            nn.init.constant_(self.sink, self.args.sink_init)

    def forward(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.distance_bias, self.tau, self.sink


class LazyAttention(nn.Module):
    """Projections, RoPE, `lazy_attention.attention` and the output gate."""

    def __init__(self, args: LazyModelArgs):
        super().__init__()
        self.head_dim = args.head_dim
        kv_heads = args.n_heads if args.n_kv_heads is None else args.n_kv_heads
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)
        gates = {"none": 0, "head": args.n_heads, "element": args.n_heads * args.head_dim}[args.attention_gate]
        self.gate = nn.Linear(args.dim, gates, bias=False) if gates else None
        self.rope_theta, self.rope_options = args.rope_theta, args.rope_options
        self.options = dict(normalizer=args.normalizer, offset=args.offset, window=args.sliding_window)
        self.cp_mesh: DeviceMesh | None = None
        self.cp_balanced = True  # whether a rank has chunk r from the head and chunk r from the tail of the sequence

    def forward(self, x: Tensor, per_head: PerHeadTensors, attention_masks: None, positions: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        # Under tensor parallelism the projections return this rank's heads.
        q_BLHD, k_BLKD, v_BLKD = (w(x).view(batch, length, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        if self.rope_theta:  # 0 means no rotary embedding
            q_BLHD, k_BLKD = (
                rope(t, self.rope_theta, positions=positions, **self.rope_options) for t in (q_BLHD, k_BLKD)
            )
        if self.cp_mesh is None:
            out_BLHD = self.attend(q_BLHD, k_BLKD, v_BLKD, per_head)
        else:
            out_BLHD = self.context_parallel(q_BLHD, k_BLKD, v_BLKD, per_head)
        if self.gate is not None:
            out_BLHD = out_BLHD * torch.sigmoid(self.gate(x)).view(batch, length, out_BLHD.shape[2], -1)
        return self.wo(out_BLHD.reshape(batch, length, -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, per_head: PerHeadTensors) -> Tensor:
        return attention(q, k, v, per_head.distance_bias, per_head.tau, per_head.sink, **self.options)

    def context_parallel(self, q_BLHD: Tensor, k_BLKD: Tensor, v_BLKD: Tensor, per_head: PerHeadTensors) -> Tensor:
        """Gathers K and V of all ranks. Each chunk of a rank's queries is a suffix of a prefix of the sequence. This is
        what the operator's bottom-right alignment computes: visible counts, distances and windows are exact."""
        ranks, rank = self.cp_mesh.size(), self.cp_mesh.get_local_rank()
        both = torch.stack((k_BLKD, v_BLKD))
        both = all_gather_tensor_autograd(both, 2, self.cp_mesh.get_group())
        if self.cp_balanced:  # rank 0 head, rank 0 tail, rank 1 head, ...: restore the order of the sequence
            chunks = both.chunk(2 * ranks, 2)
            both = torch.cat(chunks[::2] + chunks[1::2][::-1], 2)
            size = q_BLHD.shape[1] // 2
            parts, ends = q_BLHD.split(size, 1), (size * (rank + 1), size * (2 * ranks - rank))
        else:
            parts, ends = (q_BLHD,), (q_BLHD.shape[1] * (rank + 1),)
        k_BSKD, v_BSKD = both.unbind(0)
        return torch.cat([self.attend(q, k_BSKD[:, :end], v_BSKD[:, :end], per_head) for q, end in zip(parts, ends)], 1)


class FeedForward(nn.Module):
    """SwiGLU with an explicit intermediate size."""

    def __init__(self, dim: int, intermediate_size: int):
        super().__init__()
        self.w1 = nn.Linear(dim, intermediate_size, bias=False)
        self.w2 = nn.Linear(intermediate_size, dim, bias=False)
        self.w3 = nn.Linear(dim, intermediate_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LazyBlock(TransformerBlock):
    """torchtitan's block with other sublayers. Its forward pass hands the argument ``freqs_cis`` to the attention
    unchanged, and `LazyTransformer` passes the per-head tensors in it."""

    def __init__(self, args: LazyModelArgs):
        nn.Module.__init__(self)
        self.attention = LazyAttention(args)
        self.per_head = PerHead(args)
        self.feed_forward = FeedForward(args.dim, args.intermediate_size)
        self.attention_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.ffn_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)


class LazyTransformer(Transformer):
    def __init__(self, args: LazyModelArgs):
        nn.Module.__init__(self)
        self.model_args, self.vocab_size, self.n_layers = args, args.vocab_size, args.n_layers
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleDict({str(layer): LazyBlock(args) for layer in range(args.n_layers)})
        self.norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)

    def init_weights(self, buffer_device: torch.device | None = None) -> None:
        """Initializes the weights as `lazy train`: N(0, initializer_range) for matrices and embeddings."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=self.model_args.initializer_range)
            elif isinstance(module, nn.RMSNorm):
                nn.init.ones_(module.weight)
            elif isinstance(module, PerHead):
                module.init_weights()

    def forward(self, tokens: Tensor, attention_masks: None = None, positions: Tensor | None = None) -> Tensor:
        """tokens: ids (B, L), or the previous stage's output (B, L, dim) under pipeline parallelism."""
        h = tokens if self.tok_embeddings is None else self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, PerHeadTensors(*layer.per_head()), attention_masks=attention_masks, positions=positions)
        h = h if self.norm is None else self.norm(h)
        return h if self.output is None else self.output(h)
