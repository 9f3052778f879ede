"""A fast softmax decoder in plain PyTorch, with which the speed of `lazy bench train` is compared.

The model has the architecture of Llama: RMSNorm, RoPE, causal attention, SwiGLU. Queries, keys and values are computed
by one fused projection, and so are the gate and up projections of SwiGLU. SDPA uses cuDNN if possible. torch.compile
fuses norms, RoPE and SwiGLU. The language-model head and the loss process the tokens in chunks and compute the
gradients of each chunk in the forward pass, so that the logits of all tokens are never stored.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Block(nn.Module):
    def __init__(self, width, heads, inner, eps):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width, eps)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [batch, heads, length, head size]
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Maps token ids [batch, length] to the hidden states [batch * length, width] after the last norm."""

    def __init__(self, layers, width, heads, inner, vocab, length, tied, base=1e4, eps=1e-6, block=Block):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(block(width, heads, inner, eps) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps)
        self.head = nn.Linear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        if tied:
            self.head.weight = self.embedding.weight
        size = width // heads
        angles = torch.outer(torch.arange(length), base ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.norm(x).flatten(0, 1)


def chunk_loss(hidden, weight, targets, scale):
    """Returns the sum of the cross-entropies of the rows, multiplied by `scale`, and the gradients of this value with
    respect to `hidden` and `weight`."""
    logits = (hidden @ weight.T).float()
    log_sum = logits.logsumexp(-1, keepdim=True)
    loss = (log_sum - logits.gather(-1, targets[:, None])).sum() * scale
    gradient = (logits - log_sum).exp() * scale
    gradient = gradient.scatter_add(-1, targets[:, None], torch.full_like(log_sum, -scale)).to(hidden.dtype)
    return loss, gradient @ weight, gradient.T @ hidden


class HeadLoss(torch.autograd.Function):
    """Computes the mean cross-entropy of the logits hidden [rows, width] @ weight.T [width, vocab] with respect to the
    targets [rows]."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk, one_chunk):
        kind = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled() else hidden.dtype
        rows, narrow = hidden.to(kind), weight.to(kind)
        loss = torch.zeros((), device=hidden.device)
        d_hidden, d_weight = torch.empty_like(rows), torch.zeros_like(weight, dtype=torch.float32)
        for begin in range(0, len(rows), chunk):
            part = slice(begin, begin + chunk)
            one, d_hidden[part], d_part = one_chunk(rows[part], narrow, targets[part], 1 / len(rows))
            loss += one
            d_weight += d_part
        ctx.save_for_backward(d_hidden.to(hidden.dtype), d_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx, d_loss):
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_loss, d_weight * d_loss, None, None, None


class PeerDecoder:
    """Computes the loss of a decoder, optionally compiled, for ids [batch, length] and targets of the same shape."""

    def __init__(self, decoder, compiled, chunk=4096):
        self.decoder, self.chunk = decoder, chunk
        self.body = torch.compile(decoder) if compiled else decoder
        self.one_chunk = torch.compile(chunk_loss) if compiled else chunk_loss

    def loss(self, ids, targets):
        with sdpa_kernel(BACKENDS, set_priority=True):
            hidden = self.body(ids)
        return HeadLoss.apply(hidden, self.decoder.head.weight, targets.flatten(), self.chunk, self.one_chunk)
