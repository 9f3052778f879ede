"""Tests of the GPT-2 study. They compare its results for a random model with a separate forward pass in float64."""

import math
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("pyarrow")

from lazy_lab.errors import UserError
from lazy_lab.recipes import gpt2
from lazy_lab.recipes.study import run_command

LAYERS, WIDTH, HEADS, LENGTH = 3, 24, 3, 20


@pytest.fixture(scope="module")
def model():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50, n_positions=32, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, attn_implementation="eager"
    )
    made = GPT2LMHeadModel(config).eval()
    for parameter in made.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def ids():
    return torch.randint(50, (4, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def found(model, ids):
    return gpt2.measure(model, ids, bos=True, pairs=2, few=2)


class Direct:
    """GPT-2 in NumPy with float64. The function `edit` changes the weights. The function `change` changes the residual
    stream before a layer."""

    def __init__(self, model, edit=lambda weights: None):
        self.w = {name: tensor.double().numpy().copy() for name, tensor in model.transformer.state_dict().items()}
        edit(self.w)

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def feed_forward(self, layer, x):
        x = self.linear(f"h.{layer}.mlp.c_fc", x)
        x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return self.linear(f"h.{layer}.mlp.c_proj", x)

    def layer(self, layer, h):
        """Computes one layer. h: residual stream (length, width). Returns the residual stream after the layer, the
        attention weights, and the normalized input of the attention."""
        x = self.norm(f"h.{layer}.ln_1", h)
        parts = np.split(self.linear(f"h.{layer}.attn.c_attn", x), 3, axis=1)
        query, key, value = (part.reshape(len(h), HEADS, -1).transpose(1, 0, 2) for part in parts)
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS)
        scores = np.where(np.tril(np.ones(scores.shape[1:])), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        merged = (weights @ value).transpose(1, 0, 2).reshape(len(h), WIDTH)
        h = h + self.linear(f"h.{layer}.attn.c_proj", merged)
        return h + self.feed_forward(layer, self.norm(f"h.{layer}.ln_2", h)), weights, x

    def run(self, ids, order=None, change=lambda layer, h: h, zero_first=False):
        tokens = self.w["wte.weight"][ids.numpy()].copy()
        if zero_first:
            tokens[0] = 0
        h, streams, weights, inputs = tokens + self.w["wpe.weight"][order or range(len(ids))], [], [], []
        for layer in range(LAYERS):
            h = change(layer, h)
            streams.append(h)
            h, attention, x = self.layer(layer, h)
            weights.append(attention)
            inputs.append(x)
        return types.SimpleNamespace(streams=streams, weights=weights, inputs=inputs)

    def epe(self, reading):
        p = self.w["wpe.weight"]
        if reading == "block":
            return np.concatenate([self.layer(0, vector[None])[0] for vector in p])
        return p + self.feed_forward(0, self.norm("h.0.ln_2", p) if reading == "normed" else p)


def first_attention(run):
    return [weights[:, 1:, 0].mean() for weights in run.weights]


@pytest.mark.parametrize("reading", gpt2.READINGS)
def test_effective_positions_and_their_alignment(model, found, reading):
    direct = Direct(model)
    epe = direct.epe(reading)
    np.testing.assert_allclose(gpt2.effective_positions(model, reading).detach(), epe, rtol=1e-4, atol=1e-4)
    for layer in range(LAYERS):
        bias = direct.w[f"h.{layer}.attn.c_attn.bias"][:WIDTH]
        keys = epe @ direct.w[f"h.{layer}.attn.c_attn.weight"][:, WIDTH : 2 * WIDTH]
        cosines = keys @ bias / np.linalg.norm(keys, axis=1) / np.linalg.norm(bias)
        assert found["epe"][reading]["cosine_first"][layer] == pytest.approx(cosines[0], abs=1e-5)
        assert found["epe"][reading]["cosine_others_mean"][layer] == pytest.approx(cosines[1:].mean(), abs=1e-5)


def test_delta_is_the_part_of_the_scores_that_queries_share(model, ids, found):
    direct = Direct(model)
    runs = [direct.run(row) for row in ids]
    for layer in range(LAYERS):
        weight, bias = (direct.w[f"h.{layer}.attn.c_attn.{name}"] for name in ("weight", "bias"))
        # Delta: the dot products of the query bias with the keys (without the key bias), summed over heads.
        scores = np.array([run.inputs[layer] @ weight[:, WIDTH : 2 * WIDTH] @ bias[:WIDTH] for run in runs])
        values = found["delta"][layer]
        np.testing.assert_allclose(values["first"], scores[:, 0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values["others_mean"], scores[:, 1:].mean(1), rtol=1e-4, atol=1e-4)
        assert sum(values["histogram"]["others"]) == scores[:, 1:].size
        assert found["gamma"][layer]["mean"] == pytest.approx(
            np.abs(weight[:, WIDTH : 2 * WIDTH] @ bias[:WIDTH]).mean(), rel=1e-5
        )


def test_epe_contributions_add_up_to_delta(model, ids):
    """If the residual stream itself is passed as EPE, its contribution to Delta is the whole Delta, except for the part
    that comes from the bias of the layer norm."""
    before, x = gpt2.streams(model, ids[:1])
    vectors = {"stream": before[1][0].detach()}
    norm = model.transformer.h[1].ln_1.bias.detach().double()
    values = gpt2.delta(model, ids[:1], vectors)[1]
    direction = gpt2.gamma(model, 1)
    expected = (x[1].double() - norm) @ direction
    assert values["from_epe"]["stream"] == pytest.approx((expected[0, 0] - expected[0, 1:].mean()).item(), rel=1e-3)


@pytest.mark.parametrize(
    "name", ["none", "1", "4", "5", "2'", "3'", *(f"{n} {r}" for n in "23" for r in gpt2.READINGS)]
)
def test_interventions_match_direct_changes(model, ids, found, name):
    def edit(weights):
        for layer in range(LAYERS):
            if name == "1":
                weights[f"h.{layer}.attn.c_attn.bias"][:WIDTH] = 0
            if name == "5":
                weights[f"h.{layer}.attn.c_attn.weight"][found["massive"], WIDTH : 2 * WIDTH] = 0

    def change(layer, h):
        if layer == 1 and name[:2] in ("2 ", "3 "):
            epe = direct.epe(name[2:])
            h = h.copy()
            h[0] += epe[1] - epe[0]
            h[1] += epe[0] - epe[1] if name[0] == "3" else 0
        return h

    direct = Direct(model, edit)
    rest = list(range(2, LENGTH))
    order = {"2'": [1, 1, *rest], "3'": [1, 0, *rest]}.get(name)
    expected = [first_attention(direct.run(row, order, change, zero_first=name == "4")) for row in ids]
    np.testing.assert_allclose(found["conditions"][name]["first"], expected, rtol=1e-3, atol=1e-5)


def test_interventions_change_the_attention_and_are_undone(model, ids, found):
    before = found["conditions"]["none"]["first"]
    for name, values in found["conditions"].items():
        changed = np.abs(np.subtract(values["first"], before)).max()
        assert changed > 1e-4 if name != "none" else changed == 0, name
    after = gpt2.mean_attention(gpt2.attention(model, ids))
    np.testing.assert_array_equal(after["first"], before)


def test_variances_and_repetition(model, ids, found):
    direct = Direct(model)
    runs = [direct.run(row) for row in ids]
    expected = []
    for run in runs:
        by_layer = [stream.var(1) for stream in run.streams]
        expected.append(np.mean([variance[0] / variance[1:].mean() - 1 for variance in by_layer]))
    np.testing.assert_allclose(found["variances"]["stream"], expected, rtol=1e-4, atol=1e-5)
    ratios = []
    for layer in range(LAYERS):
        values = direct.linear(f"h.{layer}.attn.c_attn", runs[0].inputs[layer])[:, 2 * WIDTH :].reshape(
            LENGTH, HEADS, -1
        )
        variance = values.var(2)
        ratios.append(variance[0] / variance[1:].mean(0) - 1)
    assert found["variances"]["values"][0] == pytest.approx(np.mean(ratios), rel=1e-4)
    repeated = direct.run(ids[2, 1].repeat(LENGTH))
    np.testing.assert_allclose(found["repeated"]["first"][2], first_attention(repeated), rtol=1e-4)


def test_changes_of_one_layer_leave_the_layers_before_unchanged(model, ids, found):
    direct = Direct(model, lambda weights: weights["h.1.attn.c_attn.bias"].__setitem__(slice(WIDTH), 0))
    expected = np.mean([first_attention(direct.run(row))[1] for row in ids[:2]])
    assert found["single"]["1"][1] == pytest.approx(expected, rel=1e-4)
    assert found["single"]["2 block"][0] is None and found["single"]["3 block"][2] is not None


def test_first_order_predictions(model, ids, found):
    direct, position = Direct(model), 4
    p = direct.w["wpe.weight"][position]
    index = found["first_order"]["positions"].index(position)

    def stream(row, factor):
        h = direct.w["wte.weight"][row.numpy()] + direct.w["wpe.weight"][: len(row)]
        h[position] += (factor - 1) * p
        return direct.layer(0, h[: position + 1])[0][position]

    effects = np.array([stream(row, 1) - stream(row, 0) for row in ids])
    step = 1e-4
    slopes = np.array([(stream(row, step) - stream(row, -step)) / (2 * step) for row in ids])
    for name, vectors in (("derivative", slopes), ("literal", np.tile(direct.epe("literal")[position], (4, 1)))):
        values = found["first_order"]["predictions"][name]
        cosines = (effects * vectors).sum(1) / np.linalg.norm(effects, axis=1) / np.linalg.norm(vectors, axis=1)
        assert values["cosine"][index] == pytest.approx(cosines.mean(), abs=1e-4)
        explained = 1 - ((effects - vectors) ** 2).sum() / (effects**2).sum()
        assert values["explained"][index] == pytest.approx(explained, rel=1e-3, abs=1e-3)


class Words:
    """A tokenizer that maps each character to its code."""

    bos_token_id = 0

    def __call__(self, text, **options):
        return {"input_ids": [ord(character) for character in text]}


def test_samples_are_spread_over_the_text():
    text = "".join(chr(100 + n) for n in range(35))
    found = gpt2.samples(Words(), text, count=2, length=5)  # samples are BOS and blocks 0 and 4 of 8 blocks
    assert found.tolist() == [[0, 100, 101, 102, 103], [0, 116, 117, 118, 119]]
    with pytest.raises(UserError, match="at least 4 tokens, found 2"):
        gpt2.samples(Words(), "ab", count=2, length=5)


def test_other_models_are_refused(tmp_path):
    with pytest.raises(UserError, match="no config.json"):
        gpt2.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="config.json: model_type: expected gpt2 .*, found llama"):
        gpt2.load(tmp_path)


def test_page_of_a_measured_model(tmp_path, found):
    from lazy_lab import records
    from lazy_lab.recipes.gpt2_page import write

    path = tmp_path / "gpt2.jsonl.zst"
    records.write(path, [{"file": "gpt2/random", "model": "a random model"} | found])
    write(path, tmp_path)
    page = (tmp_path / "gpt2.md").read_text()
    none = np.mean(found["conditions"]["none"]["first"])
    assert f"| nothing |  |  | {none:.3f} [" in page
    assert {p.name for p in tmp_path.glob("*.svg")} == {
        f"gpt2-{n}.svg" for n in ("interventions", "maps", "delta", "epe")
    }
    assert all(name in page for name in gpt2.READINGS)


def test_published_page_is_made_from_the_records(tmp_path):
    from lazy_lab.recipes.gpt2_page import write
    from lazy_lab.records import FOLDER

    write(FOLDER / "gpt2.jsonl.zst", tmp_path)
    assert (tmp_path / "gpt2.md").read_text() == (FOLDER.parent / "gpt2.md").read_text()


def test_wrong_input_ends_with_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpt2", str(tmp_path), "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        run_command(gpt2.main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "lazy_lab: --text: expected a text file, found none\n"
