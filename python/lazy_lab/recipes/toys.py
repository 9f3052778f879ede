"""Toy models of the attention sink: a single causal attention head without positional encoding, MLP, norm and residual
connection.

The unigram and bigram studies follow Ziming Liu, "Sparse attention 5 -- Attention sink" (2026). The trigger task
follows Ran-Milo (2026, arXiv 2603.11487). All seeds of a variant are trained together: tensors have a leading axis of
seeds.
"""

import argparse
import math
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, pad

from .. import records
from .study import rounded, run_command

SEEDS, STEPS, BATCH, LENGTH, VOCABULARY, RANK, RATE = 4, 3000, 64, 10, 100, 20, 0.01
BOS = VOCABULARY  # token id
SNAPSHOTS = (0, 10, 100, 1000, 3000)  # training steps whose attention maps are recorded, in addition to the last step
HELD_OUT, SHOWN = 1024, 5  # numbers of held-out sequences, and of sequences whose attention maps are recorded
TRAINING_SEED, HELD_OUT_SEED = 1000, 99  # seeds of the data, which are the same for all training seeds
CHAIN_SEED = 1234  # the bigram chain is the same for all training seeds
PRINTED = [  # the five sequences that the source of the unigram study prints
    [1, 4, 88, 0, 6, 93, 1, 63, 9, 32],
    [3, 2, 57, 0, 5, 9, 3, 20, 67, 0],
    [1, 15, 1, 84, 0, 0, 5, 18, 53, 18],
    [5, 1, 7, 10, 6, 1, 5, 73, 2, 0],
    [1, 1, 17, 25, 46, 0, 0, 88, 0, 5],
]
MORE = {"bos-residual": {"residual": True}, "bos-untied": {"tied": False}}
# Study -> {variant: options that differ from the default}. The default is: sequences begin with BOS, no residual
# connection, tied embeddings, width 2 (unigram study) or 20 (bigram study).
VARIANTS = {
    "unigram": {"bos": {}, "plain": {"bos": False}, "bos-d1": {"width": 1}} | MORE,
    "bigram": {"bos": {}, "plain": {"bos": False}, "bos-d2": {"width": 2}} | MORE,
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Source:
    """A Markov chain over VOCABULARY tokens. `floor` is the loss of a model that knows the chain, in nats per token."""

    def __init__(self, study, bos=False):
        self.bos = int(bos)  # whether sequences begin with BOS
        if study == "unigram":  # independent tokens: Zipf's law, probability proportional to 1 / (rank + 1)
            first = 1 / torch.arange(1, VOCABULARY + 1, dtype=torch.double)
            self.first = first / first.sum()
            self.transitions = self.first.expand(VOCABULARY, -1)
        else:  # transition probabilities softmax(A B / sqrt(RANK)) with standard normal A and B
            generator = seeded(CHAIN_SEED)
            a = torch.randn(VOCABULARY, RANK, generator=generator, dtype=torch.double)
            b = torch.randn(RANK, VOCABULARY, generator=generator, dtype=torch.double)
            self.transitions = (a @ b / math.sqrt(RANK)).softmax(1)
            self.first = torch.linalg.matrix_power(self.transitions, 1000)[0]  # the stationary distribution
        self.floor = -(self.first[:, None] * torch.xlogy(self.transitions, self.transitions)).sum().item()
        self.cumulative = self.transitions.cumsum(1)

    def sample(self, count, generator):
        """Returns (count, LENGTH + 1) token ids, or one more per sequence with BOS."""
        tokens = [torch.multinomial(self.first, count, replacement=True, generator=generator)]
        for draw in torch.rand(LENGTH, count, 1, generator=generator, dtype=torch.double):
            tokens.append((self.cumulative[tokens[-1]] < draw).sum(1).clamp(max=VOCABULARY - 1))
        return pad(torch.stack(tokens, 1), (self.bos, 0), value=BOS)


def initial(seeds, shapes, scale=None):
    """Returns one normally distributed parameter (seeds, rows, columns) per shape. The values of seed k depend only on
    k. The default scale is 1 / sqrt(rows)."""
    generators = [seeded(seed) for seed in seeds]
    drawn = [torch.stack([torch.randn(shape, generator=g) for g in generators]) for shape in shapes]
    return [((scale or shape[0] ** -0.5) * values).requires_grad_() for shape, values in zip(shapes, drawn)]


def project(x, matrix):
    """Multiplies x (seeds or 1, batch, t, in) with a matrix (seeds, in, out)."""
    return torch.einsum("sbti,sio->sbto", x, matrix)


def attend(x, query, key, value, normalize):
    """Returns the attention weights (seeds, batch, t, t) of a causal head, and its values averaged with these weights.
    `normalize` receives the scores, which are -inf for keys after the query."""
    scores = project(x, query) @ project(x, key).transpose(2, 3) / math.sqrt(query.shape[2])
    future = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    weights = normalize(scores.masked_fill(future, -math.inf))
    return weights, weights @ project(x, value)


class Toy:
    """The toy model: logits_t = (sum_j a_tj E[x_j] W_V W_O [+ E[x_t]]) E^T. Here x are the token ids, E is the
    embedding matrix, a are the attention weights of the head, and W_V and W_O are its value and output projections. The
    term in brackets is the optional residual connection."""

    def __init__(self, seeds, tokens, width, residual=False, tied=True):
        shapes = [(tokens, width), *[(width, width)] * 4, *[(tokens, width)] * (not tied)]
        self.parameters, self.residual = initial(seeds, shapes, scale=0.02), residual
        self.embedding, self.query, self.key, self.value, self.output, *head = self.parameters
        self.head = head[0] if head else self.embedding

    def forward(self, ids):
        """Returns the attention weights (seeds, batch, t, t) and the logits (seeds, batch, t, tokens) for the token ids
        (seeds or 1, batch, t)."""
        x = self.embedding[torch.arange(len(self.embedding))[:, None, None], ids]
        weights, mixed = attend(x, self.query, self.key, self.value, lambda scores: scores.softmax(-1))
        y = project(mixed, self.output) + (x if self.residual else 0)
        return weights, project(y, self.head.transpose(1, 2))

    def losses(self, ids):
        """Returns the loss of each token except the first of a sequence, (seeds, batch, t - 1), in nats."""
        logits = self.forward(ids[..., :-1])[1]
        return cross_entropy(logits.movedim(3, 1), ids[..., 1:].expand(logits.shape[:3]), reduction="none")


def train(parameters, batch_loss, steps, after_step=lambda step: None):
    """Minimizes batch_loss() with Adam. after_step is called with 0 before the first step and after each step."""
    optimizer = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.999))
    for step in range(steps + 1):
        with torch.no_grad():
            after_step(step)
        if step < steps:
            optimizer.zero_grad()
            batch_loss().sum().backward()  # seeds share no parameters, so Adam trains each as if alone
            optimizer.step()


def received_by_token(weights, ids, tokens):
    """Returns the mean attention weight that each token of the vocabulary receives. For one occurrence of the token, it
    is the mean over the queries at the same or a later position; the result is the mean over all occurrences, or NaN
    for tokens that do not occur. weights: (batch, t, t); ids: (batch, t); tokens: size of the vocabulary."""
    received = (weights.sum(1) / torch.arange(ids.shape[1], 0, -1)).flatten().double()
    return ids.flatten().bincount(received, tokens) / ids.flatten().bincount(minlength=tokens)


def uniform_share(length):
    """Returns the mean weight on the first key, over the later queries, if every query has uniform weights."""
    return (1 / torch.arange(2, length + 1)).mean()


def records_by_seed(study, variant, seeds, steps, measured, **of_first_seed):
    """Returns one record per seed. measured: {key: tensor with an axis of seeds, or one number for all seeds}."""
    same = {"study": study, "variant": variant, "steps": steps}
    found = [{"file": f"toys/{study}.{variant}.seed{seed}", "seed": seed} | same for seed in seeds]
    for key, values in measured.items():
        for record, value in zip(found, values.expand(len(found), *values.shape[1:])):
            record[key] = rounded(value, 4 if value.dim() else 6)
    found[0] |= of_first_seed
    return found


def toy(study, variant, seeds=range(SEEDS), steps=STEPS):
    """Trains one variant and returns one record per seed. Quantities per token are lists whose index is the frequency
    rank of the token (0: most frequent)."""
    options = {"bos": True, "width": 2 if study == "unigram" else RANK} | VARIANTS[study][variant]
    source = Source(study, options.pop("bos"))
    model = Toy(seeds, VOCABULARY + source.bos, **options)
    generator = seeded(TRAINING_SEED)
    held_out = source.sample(HELD_OUT, seeded(HELD_OUT_SEED))
    ids = held_out[:, :-1]
    shown = torch.tensor(PRINTED) if study == "unigram" else ids[:SHOWN, source.bos :]
    maps = {}

    def record_maps(step):
        if step in SNAPSHOTS or step == steps:
            maps[str(step)] = rounded(model.forward(pad(shown, (source.bos, 0), value=BOS)[None])[0][0], 2)

    def batch_loss():
        batch = source.sample(len(seeds) * BATCH, generator).unflatten(0, (len(seeds), BATCH))
        return model.losses(batch).mean((1, 2))

    train(model.parameters, batch_loss, steps, record_maps)
    with torch.no_grad():
        weights, second = model.forward(ids[None])[0], source.bos + 1  # second: position of the second content token
        # The first content token is left out of the loss: the entropy of the chain is the floor of the other tokens.
        loss = model.losses(held_out[None])[..., source.bos :].mean((1, 2))
        own_token = (weights * (ids[:, :, None] == ids[:, None])).sum(3)[..., second:].mean((1, 2))
        received = torch.stack([received_by_token(w, ids, VOCABULARY + source.bos) for w in weights])
        measured = {"loss": loss, "floor": torch.tensor(source.floor), "own_token": own_token, "received": received}
        if model.embedding.shape[2] == 2:
            measured["embedding"] = model.embedding
        if source.bos:
            measured |= {"to_bos": weights[..., 1:, 0].mean((1, 2)), "uniform_share": uniform_share(ids.shape[1])}
            measured["distance"] = (model.embedding[:, :BOS] - model.embedding[:, BOS:]).norm(dim=2)
        return records_by_seed(study, variant, seeds, steps, measured, sequences=shown.tolist(), maps=maps)


TRIGGER_STEPS, TRIGGER_LENGTH, CONTENT, WIDTH = 1500, 16, 8, 16
VISIBLE = torch.arange(1, TRIGGER_LENGTH + 1)[:, None]  # number of keys that each query attends to


def softpick(scores):
    """Returns the weights of softpick, ReLU(exp(s_j) - 1) / sum |exp(s) - 1| (arXiv 2504.20966)."""
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    above = torch.where(scores.isinf(), 0, (scores - top).exp() - (-top).exp())
    return above.relu() / (above.abs().sum(-1, keepdim=True) + 1e-6)


HEADS = {  # name -> function of masked scores (seeds, batch, query, key) and the offset tau; returns attention weights
    "softmax": lambda scores, tau: scores.softmax(-1),
    "relu": lambda scores, tau: scores.relu() / VISIBLE,
    # tril() sets the weights of masked keys to zero, which would be positive if tau is above zero.
    "elastic": lambda scores, tau: (scores.softmax(-1) + tau / VISIBLE).relu().tril(),
    "softpick": lambda scores, tau: softpick(scores),
    # exp(s_j) / (1 + sum exp(s)): softmax with an additional key of score 0, whose weight is dropped
    "off-by-one": lambda scores, tau: pad(scores, (1, 0)).softmax(-1)[..., 1:],
    "gated": lambda scores, tau: scores.softmax(-1),
}


def trigger_batch(seeds, count, generator):
    """Returns tokens (seeds, count, length, 3 + CONTENT), targets (seeds, count, length, CONTENT) and the positions of
    the triggers. A token is [is BOS, is the trigger, is content, content]. The target is the mean of all preceding
    content at the trigger, which is in the second half, and zero at all other positions."""
    position = torch.arange(TRIGGER_LENGTH)
    trigger = torch.randint(TRIGGER_LENGTH // 2, TRIGGER_LENGTH, (seeds, count, 1), generator=generator)
    is_bos, is_trigger = (position == 0).expand(seeds, count, -1), position == trigger
    is_content = ~(is_bos | is_trigger)
    content = torch.randn(seeds, count, TRIGGER_LENGTH, CONTENT, generator=generator) * is_content[..., None]
    mean = content.cumsum(2) / is_content.cumsum(2).clamp(min=1)[..., None]
    marks = torch.stack([is_bos, is_trigger, is_content], 3).float()
    return torch.cat([marks, content], 3), mean * is_trigger[..., None], trigger


def trigger(head, seeds=range(SEEDS), steps=TRIGGER_STEPS):
    """Trains a head on the trigger task and returns one record per seed. Errors are squared errors divided by the error
    of a model that always returns zero."""
    token = 3 + CONTENT
    shapes = [*[(token, WIDTH)] * 3, (WIDTH, CONTENT), *[(token, 1)] * (head == "gated")]
    query, key, value, output, *gate = parameters = initial(seeds, shapes)
    tau = torch.full((len(seeds), 1, 1, 1), -1.0, requires_grad=True)

    def weights_and_errors(x, target, position=None):
        weights, mixed = attend(x, query, key, value, lambda scores: HEADS[head](scores, tau))
        y = project(mixed * project(x, gate[0]).sigmoid() if gate else mixed, output)
        squares = [part.square().sum((2, 3)).mean(1) for part in (y - target, target)]
        return weights, squares[0] / squares[1]

    trained, generator = parameters + [tau] * (head == "elastic"), seeded(TRAINING_SEED)
    train(trained, lambda: weights_and_errors(*trigger_batch(len(seeds), BATCH, generator))[1], steps)
    tokens, target, position = trigger_batch(1, HELD_OUT, seeded(HELD_OUT_SEED))
    with torch.no_grad():
        weights, error = weights_and_errors(tokens, target)
    others = (torch.arange(TRIGGER_LENGTH) != position)[..., 1:]  # queries that are neither BOS nor the trigger
    to_bos = (weights[..., 1:, 0] * others).sum((1, 2)) / others.sum()
    measured = {"error": error, "to_bos": to_bos, "uniform_share": uniform_share(TRIGGER_LENGTH)}
    shown = {"map": rounded(weights[0, 0], 2), "trigger": position[0, 0].item()}
    return records_by_seed("trigger", head, seeds, steps, measured, **shown)


def measure(path, steps=None):
    """Trains all variants that are missing in the file of records, and writes the file after each variant. `steps`
    replaces the default number of training steps."""
    found = records.read(path) if path.is_file() else []
    for study, variants in (VARIANTS | {"trigger": HEADS}).items():
        run, default = (trigger, TRIGGER_STEPS) if study == "trigger" else (partial(toy, study), STEPS)
        for variant in variants:
            if not records.find(found, study=study, variant=variant, steps=steps or default):
                print(f"lazy toys: {study} {variant}", flush=True)
                found = [r for r in found if (r["study"], r["variant"]) != (study, variant)]
                found += run(variant, steps=steps or default)
                records.write(path, found)


def main():
    parser = argparse.ArgumentParser(description="Train the toy models of the attention sink and write their page")
    parser.add_argument("--output", type=Path, required=True, help="folder for toys.md and its pictures")
    parser.add_argument("--records", type=Path, help="write the page from this file of records instead of training")
    parser.add_argument("--steps", type=int, help="training steps of every model (default: 3000; trigger task: 1500)")
    arguments = parser.parse_args()
    from .toys_page import write

    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.records or arguments.output / "toys.jsonl.zst"
    if not arguments.records:
        torch.set_num_threads(1)  # the matrices are so small that a second thread makes the training slower
        measure(path, arguments.steps)
    write(path, arguments.output)


if __name__ == "__main__":
    run_command(main)
