"""Toy models of the attention sink: a single causal attention head without positional encoding, MLP, norm and residual
connection.

The unigram and bigram studies follow Ziming Liu, "Sparse attention 5 -- Attention sink" (2026). The trigger task
follows Ran-Milo (2026, arXiv 2603.11487). All seeds of a variant are trained together: tensors have a leading axis of
seeds.
"""

import argparse
import math
from pathlib import Path

import torch

from .. import records
from .study import rounded, run_command

SEEDS, STEPS, BATCH, LENGTH, VOCABULARY, RANK, RATE = 4, 3000, 64, 10, 100, 20, 0.01
SNAPSHOTS = (0, 10, 100, 1000, 3000)  # training steps whose attention maps are recorded; the last one ends the training
HELD_OUT, SHOWN = 1024, 5  # numbers of held-out sequences, and of sequences whose attention maps are recorded
CHAIN_SEED = 1234  # the bigram chain is the same for all training seeds
PRINTED = [  # the five sequences that the source of the unigram study prints
    [1, 4, 88, 0, 6, 93, 1, 63, 9, 32],
    [3, 2, 57, 0, 5, 9, 3, 20, 67, 0],
    [1, 15, 1, 84, 0, 0, 5, 18, 53, 18],
    [5, 1, 7, 10, 6, 1, 5, 73, 2, 0],
    [1, 1, 17, 25, 46, 0, 0, 88, 0, 5],
]
MORE = {"bos-residual": {"residual": True}, "bos-untied": {"tied": False}}
VARIANTS = {  # changes of the default: BOS, no residual, tied embeddings, width 2 (unigram study) or 20 (bigram study)
    "unigram": {"bos": {}, "plain": {"bos": False}, "bos-d1": {"width": 1}} | MORE,
    "bigram": {"bos": {}, "plain": {"bos": False}, "bos-d2": {"width": 2}} | MORE,
}


class Source:
    """A Markov chain over VOCABULARY tokens. `floor` is the loss of a model that knows the chain, in nats per token."""

    def __init__(self, study):
        if study == "unigram":  # independent tokens: Zipf's law, probability proportional to 1 / (rank + 1)
            first = 1 / torch.arange(1, VOCABULARY + 1, dtype=torch.double)
            self.first = first / first.sum()
            self.transitions = self.first.expand(VOCABULARY, -1)
        else:  # transition probabilities softmax(A B / sqrt(RANK)) with standard normal A and B
            generator = torch.Generator().manual_seed(CHAIN_SEED)
            a = torch.randn(VOCABULARY, RANK, generator=generator, dtype=torch.double)
            b = torch.randn(RANK, VOCABULARY, generator=generator, dtype=torch.double)
            self.transitions = (a @ b / math.sqrt(RANK)).softmax(1)
            self.first = torch.linalg.matrix_power(self.transitions, 1000)[0]  # the stationary distribution
        self.floor = -(self.first[:, None] * torch.xlogy(self.transitions, self.transitions)).sum().item()
        self.cumulative = self.transitions.cumsum(1)

    def sample(self, count, generator):
        """Returns (count, LENGTH + 1) token ids."""
        tokens = [torch.multinomial(self.first, count, replacement=True, generator=generator)]
        draws = torch.rand(LENGTH, count, 1, generator=generator, dtype=torch.double)
        for draw in draws:
            tokens.append((self.cumulative[tokens[-1]] < draw).sum(1).clamp(max=VOCABULARY - 1))
        return torch.stack(tokens, 1)


def causal_mask(length):
    """Returns the (length, length) matrix that is added to the scores: -inf for keys after the query."""
    return torch.full((length, length), -math.inf).triu(1)


def initial(seeds, *shapes, scale):
    """Returns parameters (seeds, rows, columns). Seed k depends only on k; scale: number, or function of the shape."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    drawn = [torch.stack([torch.randn(shape, generator=g) for g in generators]) for shape in shapes]
    return [(scale(shape) * values).requires_grad_() for shape, values in zip(shapes, drawn)]


class Toy:
    """The toy model: logits_t = (sum_j a_tj E[x_j] W_V W_O [+ E[x_t]]) E^T. Here x are the token ids, E is the
    embedding matrix, a are the attention weights of the head, and W_V and W_O are its value and output projections. The
    term in brackets is the optional residual connection."""

    def __init__(self, seeds, width, bos=True, residual=False, tied=True):
        self.bos, self.residual, self.width = bos, residual, width
        self.tokens = VOCABULARY + bos
        shapes = [(self.tokens, width), *[(width, width)] * 4, *([] if tied else [(self.tokens, width)])]
        self.parameters = initial(seeds, *shapes, scale=lambda shape: 0.02)

    @property
    def embedding(self):
        return self.parameters[0]  # (seeds, tokens, width); BOS is the last token

    def forward(self, content):
        """content: token ids (seeds or 1, batch, length). Returns weights (seeds, batch, t, t) and logits; t includes
        BOS."""
        ids = torch.nn.functional.pad(content, (int(self.bos), 0), value=VOCABULARY)
        rows = ids + self.tokens * torch.arange(len(self.embedding))[:, None, None]
        x = torch.nn.functional.embedding(rows.flatten(1), self.embedding.flatten(0, 1))  # (seeds, batch * t, width)
        query, key, value = ((x @ matrix).unflatten(1, ids.shape[1:]) for matrix in self.parameters[1:4])
        weights = (query @ key.transpose(2, 3) / math.sqrt(self.width) + causal_mask(ids.shape[2])).softmax(-1)
        y = (weights @ value).flatten(1, 2) @ self.parameters[4] + (x if self.residual else 0)
        head = self.parameters[5] if len(self.parameters) > 5 else self.embedding
        return weights, (y @ head.transpose(1, 2)).unflatten(1, ids.shape[1:])

    def losses(self, content):
        """Returns the losses (seeds, batch, predicted tokens) in nats. With BOS, the first content token is predicted
        too."""
        targets = content if self.bos else content[..., 1:]
        logits = self.forward(content[..., :-1])[1]
        targets = targets.expand(logits.shape[:3])
        flat = torch.nn.functional.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        return flat.unflatten(0, targets.shape)


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
    sums = torch.zeros(tokens, dtype=torch.double).index_add(0, ids.flatten(), received)
    return sums / torch.bincount(ids.flatten(), minlength=tokens)


def new_records(study, variant, seeds, steps):
    """Returns one new record per seed. The key `file` is a unique name, by which the file of records is sorted."""
    same = {"study": study, "variant": variant, "steps": steps}
    return [{"file": f"toys/{study}.{variant}.seed{seed}", "seed": seed} | same for seed in seeds]


def toy(study, variant, seeds=range(SEEDS), steps=STEPS):
    """Trains one variant and returns one record per seed. Quantities per token are lists whose index is the frequency
    rank of the token (0: most frequent)."""
    source = Source(study)
    model = Toy(seeds, **{"width": 2 if study == "unigram" else RANK} | VARIANTS[study][variant])
    generator = torch.Generator().manual_seed(1000)
    held_out = source.sample(HELD_OUT, torch.Generator().manual_seed(99))
    shown = torch.tensor(PRINTED) if study == "unigram" else held_out[:SHOWN, :-1]
    found = new_records(study, variant, seeds, steps)
    found[0] |= {"sequences": shown.tolist(), "maps": {}}

    def record_maps(step):
        if step in SNAPSHOTS or step == steps:
            found[0]["maps"][str(step)] = rounded(model.forward(shown[None])[0][0], 2)

    def batch_loss():
        batch = source.sample(len(seeds) * BATCH, generator).unflatten(0, (len(seeds), BATCH))
        return model.losses(batch).mean((1, 2))

    train(model.parameters, batch_loss, steps, record_maps)
    with torch.no_grad():
        content = held_out[:, :-1]
        weights = model.forward(content[None])[0]
        ids = torch.nn.functional.pad(content, (int(model.bos), 0), value=VOCABULARY)
        # The first content token is left out: the entropy of the chain is the floor of the other tokens.
        losses = model.losses(held_out[None])[..., int(model.bos) :].mean((1, 2))
        own = weights[..., int(model.bos) :, int(model.bos) :] * (content[:, :, None] == content[:, None])
        for n, record in enumerate(found):
            record |= {"loss": rounded(losses[n]), "floor": rounded(torch.tensor(source.floor))}
            record["own_token"] = rounded(own[n].sum(2)[:, 1:].mean())  # total weight on the query's own token
            record["received"] = rounded(received_by_token(weights[n], ids, model.tokens), 4)
            if model.width == 2:
                record["embedding"] = rounded(model.embedding[n], 4)
            if model.bos:
                record["to_bos"] = rounded(weights[n, :, 1:, 0].mean())
                record["uniform_share"] = rounded((1 / torch.arange(2, ids.shape[1] + 1)).mean())
                distance = (model.embedding[n, :VOCABULARY] - model.embedding[n, VOCABULARY]).norm(dim=1)
                record["distance"] = rounded(distance, 4)
    return found


TRIGGER_STEPS, TRIGGER_LENGTH, CONTENT, WIDTH = 1500, 16, 8, 16


def off_by_one(scores):
    """Returns exp(s_j) / (1 + sum exp(s)). It is computed as softmax with an additional key of score 0, whose weight is
    then dropped."""
    return torch.nn.functional.pad(scores, (1, 0)).softmax(-1)[..., 1:]


def softpick(scores):
    """Returns the weights of softpick, ReLU(exp(s_j) - 1) / sum |exp(s) - 1| (arXiv 2504.20966)."""
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    above = torch.where(scores.isinf(), 0, (scores - top).exp() - (-top).exp())
    return above.relu() / (above.abs().sum(-1, keepdim=True) + 1e-6)


def visible_keys():
    return torch.arange(1, TRIGGER_LENGTH + 1)[:, None]


HEADS = {  # name -> function of masked scores (seeds, batch, query, key) and the offset tau; returns attention weights
    "softmax": lambda scores, tau: scores.softmax(-1),
    "relu": lambda scores, tau: scores.relu() / visible_keys(),
    "elastic": lambda scores, tau: (scores.softmax(-1) + tau / visible_keys()).relu(),
    "softpick": lambda scores, tau: softpick(scores),
    "off-by-one": lambda scores, tau: off_by_one(scores),
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


def trigger_head(head, seeds):
    """Returns the parameters of one head and its function tokens -> (outputs, weights)."""
    shapes = [*[(3 + CONTENT, WIDTH)] * 3, (WIDTH, CONTENT), *([(3 + CONTENT, 1)] if head == "gated" else [])]
    parameters = initial(seeds, *shapes, scale=lambda shape: shape[0] ** -0.5)
    tau = torch.full((len(seeds), 1, 1, 1), -1.0, requires_grad=True)

    def forward(x):
        query, key, value, output, *gate = (w[:, None] for w in parameters)
        scores = (x @ query) @ (x @ key).transpose(2, 3) / math.sqrt(WIDTH)
        # Masked keys receive no weight even if an offset tau is above zero.
        weights = HEADS[head](scores + causal_mask(TRIGGER_LENGTH), tau).tril()
        y = weights @ (x @ value)
        return (y * (x @ gate[0]).sigmoid() if gate else y) @ output, weights

    return parameters + [tau] * (head == "elastic"), forward


def trigger(head, seeds=range(SEEDS), steps=TRIGGER_STEPS):
    """Trains a head on the trigger task and returns one record per seed. Errors are squared errors divided by the error
    of a model that always returns zero."""
    parameters, forward = trigger_head(head, seeds)
    generator = torch.Generator().manual_seed(1000)
    held_out = trigger_batch(1, HELD_OUT, torch.Generator().manual_seed(99))

    def errors(batch):
        square = (forward(batch[0])[0] - batch[1]).square().sum((2, 3)).mean(1)
        return square / batch[1].square().sum((2, 3)).mean(1)

    train(parameters, lambda: errors(trigger_batch(len(seeds), BATCH, generator)), steps)
    with torch.no_grad():
        weights, final = forward(held_out[0])[1], errors(held_out)
    others = (torch.arange(TRIGGER_LENGTH) != held_out[2][0])[:, 1:].float()  # 0 at the trigger, 1 elsewhere
    share = (1 / torch.arange(2, TRIGGER_LENGTH + 1)).mean()
    found = new_records("trigger", head, seeds, steps)
    for n, record in enumerate(found):
        to_bos = (weights[n, :, 1:, 0] * others).sum() / others.sum()
        record |= {"error": rounded(final[n]), "to_bos": rounded(to_bos), "uniform_share": rounded(share)}
    found[0] |= {"map": rounded(weights[0, 0], 2), "trigger": held_out[2][0, 0].item()}
    return found


def measure(path, steps=None):
    """Trains all variants that are missing in the file of records, and writes the file after each variant. `steps`
    replaces the default number of training steps."""
    found = records.read(path) if path.is_file() else []
    runs = [(study, variant, toy, STEPS) for study, variants in VARIANTS.items() for variant in variants]
    for study, variant, run, default in runs + [("trigger", head, trigger, TRIGGER_STEPS) for head in HEADS]:
        if not records.find(found, study=study, variant=variant, steps=steps or default):
            print(f"lazy toys: {study} {variant}", flush=True)
            name = (variant,) if run is trigger else (study, variant)
            others = [r for r in found if (r["study"], r["variant"]) != (study, variant)]
            found = others + run(*name, steps=steps or default)
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
