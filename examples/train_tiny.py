"""Trains a small language model with Lazy Attention and the same model with softmax, using only PyTorch.

The task is associative recall. A text consists of a question for the value of a key ("b?"), the answer ("b7"), the next
question, and so on. If the same key occurred earlier in the text, the model can answer the question. To do so, its
attention must find the earlier answer. The printed statistics show how much attention weight other tokens get. Usage,
in the source tree after `make python`: PYTHONPATH=python .venv/bin/python examples/train_tiny.py [--steps N]
"""

import argparse

import lazy_attention
import torch
import torch.nn.functional as F
from torch import nn

KEYS, VALUES, PAIRS = 8, 8, 16
VOCABULARY = KEYS + VALUES + KEYS * VALUES  # tokens for questions, for answers and for pairs of key and value


class Block(nn.Module):
    def __init__(self, dim: int, **attention):
        super().__init__()
        self.norms = nn.Parameter(torch.ones(2, dim))
        self.attention = lazy_attention.LazyAttention(dim, num_heads=4, distance_bias_window=32, **attention)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        mixed, stats = self.attention(lazy_attention.rms_norm(x, self.norms[0]), return_stats=True)
        x = x + mixed
        gate, up = self.up(lazy_attention.rms_norm(x, self.norms[1])).chunk(2, -1)
        return x + self.down(lazy_attention.swiglu(gate, up)), stats


class Model(nn.Module):
    def __init__(self, dim: int = 64, layers: int = 2, **attention):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.blocks = nn.ModuleList(Block(dim, **attention) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(dim))

    def forward(self, ids):
        x, stats = self.embedding(ids), []
        for block in self.blocks:
            x, s = block(x)
            stats.append(s)
        return lazy_attention.rms_norm(x, self.norm), torch.stack(stats)


def batch(size: int, generator: torch.Generator):
    """Returns ids and labels of shape (size, 2 PAIRS). A text is a sequence of pairs: a key, followed by its value. The
    value of a key is the same in the whole text, and is drawn separately for each text."""
    table = torch.randint(0, VALUES, (size, KEYS), generator=generator)
    keys = torch.randint(0, KEYS, (size, PAIRS), generator=generator)
    values = table.gather(1, keys)
    ids = torch.stack((keys, KEYS + VALUES + keys * VALUES + values), -1).flatten(1)
    told = (keys[:, :, None] == keys[:, None, :]).tril(-1).any(-1)
    labels = torch.full_like(ids, -100)
    labels[:, 0::2] = torch.where(told, KEYS + values, -100)
    return ids, labels


def train(name: str, steps: int, **attention) -> float:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Model(**attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        ids, labels = batch(64, generator)
        hidden, _ = model(ids)
        loss = lazy_attention.linear_cross_entropy(hidden.flatten(0, 1), model.embedding.weight, labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % (steps // 4) == 0 or step == steps - 1:
            print(f"{name:8} step {step:4}  loss {loss.item():.3f} nats")
    with torch.no_grad():
        ids, labels = batch(256, generator)
        hidden, stats = model(ids)
        right = F.linear(hidden, model.embedding.weight).argmax(-1) == labels
        visible = torch.arange(1, ids.shape[1] + 1)
        accuracy = right[labels >= 0].float().mean().item()
        print(
            f"{name:8} recalls {100 * accuracy:.1f} %  weight on the first token {stats[:, 0].mean():.3f}  "
            f"released mass {stats[:, 1].mean():.3f}  keys with nonzero weight {(stats[:, 2] / visible).mean():.2f}"
        )
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    steps = max(4, parser.parse_args().steps)
    train("softmax", steps, normalizer="softmax", rope_base=1e4)
    train("lazy", steps, normalizer="elastic")


main()
