"""Lazy Attention for PyTorch: the operator, a layer, and the Hugging Face transformers integration (arXiv 2601.00919).

    import torch, lazy_attention
    q = torch.randn(1, 128, 8, 64)
    out = lazy_attention.attention(q, q, q, tau=torch.full((8,), -1.0))

``import lazy_attention.hf`` registers ``attn_implementation="lazy"`` and ``LazyForCausalLM`` with transformers.
"""

from ._library import LIBRARY
from .decoding import decode
from .fused import linear_cross_entropy, rms_norm, rope, swiglu
from .layer import KVCache, LazyAttention
from .operator import AttentionOutput, attention
from .probing import PlaceStatistics, Probed, probe
from .sequence import context_parallel, gather_sequence, shard_sequence

__all__ = [
    "LIBRARY",
    "AttentionOutput",
    "KVCache",
    "LazyAttention",
    "PlaceStatistics",
    "Probed",
    "attention",
    "context_parallel",
    "decode",
    "gather_sequence",
    "linear_cross_entropy",
    "probe",
    "rms_norm",
    "rope",
    "shard_sequence",
    "swiglu",
]
__version__ = "0.1.0"
