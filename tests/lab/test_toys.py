"""Tests of the toy models. Their outputs are compared with direct computations, and short trainings must reach the
lowest possible loss."""

import math
import re
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from lazy_lab import records
from lazy_lab.recipes import gpt2_page, toys, toys_page
from torch.nn.functional import scaled_dot_product_attention


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The matrices are so small that a second thread makes the training slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_entropies_of_the_sources():
    p = 1 / np.arange(1, 101)
    p /= p.sum()
    unigram, bigram = toys.Source("unigram"), toys.Source("bigram")
    assert unigram.floor == pytest.approx(-(p * np.log(p)).sum(), rel=1e-12)
    transitions = bigram.transitions.numpy()
    values, vectors = np.linalg.eig(transitions.T)
    stationary = np.real(vectors[:, np.argmax(values.real)])
    stationary /= stationary.sum()
    np.testing.assert_allclose(bigram.first.numpy(), stationary, rtol=1e-8)
    entropy = -(stationary[:, None] * transitions * np.log(transitions)).sum()
    assert bigram.floor == pytest.approx(entropy, rel=1e-10)


def test_samples_follow_the_transitions():
    source = toys.Source("bigram")
    tokens = source.sample(20000, torch.Generator().manual_seed(0))
    most = int(source.first.argmax())
    following = tokens[:, 1:][tokens[:, :-1] == most]
    counts = torch.bincount(following, minlength=toys.VOCABULARY) / len(following)
    deviation = (source.transitions[most] * (1 - source.transitions[most]) / len(following)).sqrt()
    assert ((counts - source.transitions[most]).abs() / deviation).max() < 5


def test_forward_of_batched_seeds_matches_one_head_computed_directly():
    model = toys.Toy([0, 7], tokens=101, width=3, residual=True, tied=False)
    ids = toys.Source("unigram", bos=True).sample(4, torch.Generator().manual_seed(1))
    assert (ids[:, 0] == 100).all()  # BOS
    weights, logits = model.forward(ids[None])
    for n in range(2):
        embedding, query, key, value, output, head = [parameter[n].detach().double() for parameter in model.parameters]
        x = embedding[ids]
        attend = partial(scaled_dot_product_attention, x @ query, x @ key, is_causal=True)
        expected = attend(torch.eye(ids.shape[1]).double().expand(4, -1, -1))  # the values are unit vectors
        torch.testing.assert_close(weights[n].double(), expected, rtol=1e-5, atol=1e-7)
        expected = (attend(x @ value) @ output + x) @ head.T
        torch.testing.assert_close(logits[n].double(), expected, rtol=1e-4, atol=1e-9)
    expected = -logits.log_softmax(3)[1, 2, 4, ids[2, 5]]  # the logits at position 4 predict the token at position 5
    torch.testing.assert_close(model.losses(ids[None])[1, 2, 4], expected)


def test_training_of_a_seed_does_not_depend_on_other_seeds():
    batch = toys.Source("unigram").sample(8, torch.Generator().manual_seed(2))
    together, alone = toys.Toy([0, 1], tokens=100, width=2), toys.Toy([1], tokens=100, width=2)
    for model in (together, alone):
        toys.train(model.parameters, lambda model=model: model.losses(batch[None]).mean((1, 2)), steps=5)
    torch.testing.assert_close(together.embedding[1], alone.embedding[0])


def test_unigram_reaches_its_entropy_and_bos_receives_weight():
    found = toys.toy("unigram", "bos", seeds=[0], steps=400)[0]
    assert found["floor"] - 0.02 < found["loss"] < found["floor"] + 0.1
    assert set(found["maps"]) == {"0", "10", "100", "400"}
    first = np.array(found["maps"]["0"])[:, :, 0]  # weight on BOS before the training: nearly uniform
    np.testing.assert_allclose(first, np.broadcast_to(1 / np.arange(1, 12), first.shape), atol=0.01)
    assert found["uniform_share"] == pytest.approx(sum(1 / i for i in range(2, 12)) / 10, rel=1e-3)


def test_weight_received_by_token():
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.25, 0.25]]])
    received = toys.received_by_token(weights, torch.tensor([[5, 2, 5]]), 6)
    # Token 5 is at positions 0 and 2. The mean weight that it receives from queries at the same or later positions is
    # 1.75 / 3 for the first occurrence and 0.25 for the second.
    assert received[5].item() == pytest.approx((1.75 / 3 + 0.25) / 2)
    assert received[2].item() == pytest.approx((0.75 + 0.25) / 2)
    assert math.isnan(received[0].item())


@pytest.mark.parametrize("head", ["softmax", "relu", "elastic", "softpick", "off-by-one"])
def test_heads_match_their_definitions(head):
    rows = torch.randn(toys.TRIGGER_LENGTH, toys.TRIGGER_LENGTH, generator=torch.Generator().manual_seed(3)).double()
    scores = rows.masked_fill(torch.ones_like(rows).triu(1).bool(), -math.inf)
    found = toys.HEADS[head](scores, torch.tensor(-0.5))
    for t, row in enumerate(rows.numpy()):
        s = row[: t + 1]
        exp = np.exp(s)
        expected = {
            "softmax": exp / exp.sum(),
            "relu": np.maximum(s, 0) / (t + 1),
            "elastic": np.maximum(exp / exp.sum() - 0.5 / (t + 1), 0),
            "softpick": np.maximum(exp - 1, 0) / np.abs(exp - 1).sum(),
            "off-by-one": exp / (1 + exp.sum()),
        }[head]
        np.testing.assert_allclose(found[t, : t + 1].numpy(), expected, rtol=1e-4, atol=1e-6)
        assert (found[t, t + 1 :] == 0).all()


def test_trigger_targets_are_the_mean_of_preceding_content():
    x, target, trigger = toys.trigger_batch(1, 3, torch.Generator().manual_seed(4))
    for b in range(3):
        at = trigger[0, b, 0].item()
        assert at >= toys.TRIGGER_LENGTH // 2 and x[0, b, at, 1] == 1 and x[0, b, 0, 0] == 1
        torch.testing.assert_close(target[0, b, at], x[0, b, 1:at, 3:].mean(0))
        assert target[0, b].abs().sum(1).count_nonzero() == 1


def test_softmax_and_relu_heads_learn_the_trigger_task():
    softmax, relu = (toys.trigger(head, seeds=[0], steps=700)[0] for head in ("softmax", "relu"))
    assert softmax["error"] < 0.05 and relu["error"] < 0.05
    assert softmax["to_bos"] > 0.7 > softmax["uniform_share"] > relu["to_bos"]


def test_page_from_records_of_short_trainings(tmp_path, monkeypatch):
    monkeypatch.setattr(toys, "HELD_OUT", 64)
    path = tmp_path / "toys.jsonl.zst"
    toys.measure(path, steps=2)
    found = records.read(path)
    monkeypatch.setattr(toys, "train", None)
    toys.measure(path, steps=2)  # nothing is missing, so nothing is trained
    assert records.read(path) == found
    toys_page.write(path, tmp_path)
    page = (tmp_path / "toys.md").read_text()
    excess = np.mean([r["loss"] - r["floor"] for r in records.find(found, study="unigram", variant="bos")])
    assert f"| unigram, bos | {excess:.3f} [" in page
    assert set(re.findall(r"\]\((toy-[\w-]+\.svg)\)", page)) == {p.name for p in tmp_path.glob("*.svg")}


@pytest.mark.parametrize(("study", "page"), [("toys", toys_page), ("gpt2", gpt2_page)])
def test_published_pages_are_made_from_the_records(tmp_path, study, page):
    page.write(records.FOLDER / f"{study}.jsonl.zst", tmp_path)
    published = records.FOLDER.parent
    assert (tmp_path / f"{study}.md").is_file()
    assert [p.name for p in tmp_path.iterdir() if p.read_bytes() != (published / p.name).read_bytes()] == []
