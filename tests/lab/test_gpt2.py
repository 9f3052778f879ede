"""Tests of the GPT-2 study. They compare its results for a random model with a separate forward pass in float64."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("pyarrow")

from lazy_lab import records
from lazy_lab.errors import UserError
from lazy_lab.recipes import gpt2
from lazy_lab.recipes.gpt2_page import write
from lazy_lab.recipes.study import run_command
from torch.nn import functional

LAYERS, WIDTH, HEADS, LENGTH = 3, 24, 3, 20
QUERIES, KEYS, VALUES = slice(WIDTH), slice(WIDTH, 2 * WIDTH), slice(2 * WIDTH, 3 * WIDTH)


@pytest.fixture(scope="module", autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    made = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="eager")).eval()
    for parameter in made.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def ids():
    return torch.randint(50, (4, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def found(model, ids):
    return gpt2.measure(model, ids, bos=True, pairs=2, few=2)


@pytest.fixture
def direct(model):
    return Direct(model)


class Direct:
    """GPT-2 in float64. Tests change its weights `w`."""

    def __init__(self, model):
        self.w = {name: tensor.double().clone() for name, tensor in model.transformer.state_dict().items()}

    def norm(self, name, x):
        return functional.layer_norm(x, [WIDTH], self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def mlp(self, x, layer=0):
        return self.linear(
            f"h.{layer}.mlp.c_proj", functional.gelu(self.linear(f"h.{layer}.mlp.c_fc", x), approximate="tanh")
        )

    def layer(self, layer, h):
        """Computes one layer. h: residual stream (texts, length, width). Returns the residual stream after the layer,
        the attention weights, and the normalized input of the attention."""
        x = self.norm(f"h.{layer}.ln_1", h)
        parts = self.linear(f"h.{layer}.attn.c_attn", x).chunk(3, 2)
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)
        unit = torch.eye(h.shape[1]).double().expand(len(h), HEADS, -1, -1)
        weights = functional.scaled_dot_product_attention(query, key, unit, is_causal=True)
        h = h + self.linear(f"h.{layer}.attn.c_proj", (weights @ value).transpose(1, 2).flatten(2))
        return h + self.mlp(self.norm(f"h.{layer}.ln_2", h), layer), weights, x

    def run(self, ids, order=None, zero_first=False, change=0):
        """Returns by layer: the residual stream before it, the attention weights, and the normalized input of the
        attention. order: positions of the position embeddings. change: tensor added to the stream before layer 1."""
        tokens = self.w["wte.weight"][ids]
        tokens[:, 0] *= not zero_first
        h, streams, weights, inputs = tokens + self.w["wpe.weight"][order or range(LENGTH)], [], [], []
        for layer in range(LAYERS):
            streams.append(h + change if layer == 1 else h)
            h, attention, x = self.layer(layer, streams[-1])
            weights.append(attention)
            inputs.append(x)
        return streams, weights, inputs

    def first_attention(self, ids, **options):
        """Returns the mean attention to the first position, (texts, layers)."""
        return torch.stack([weights[:, :, 1:, 0].mean((1, 2)) for weights in self.run(ids, **options)[1]], 1)

    def epe(self, reading):
        p = self.w["wpe.weight"]
        if reading == "block":
            return self.layer(0, p[:, None])[0][:, 0]
        return p + self.mlp(self.norm("h.0.ln_2", p) if reading == "normed" else p)


def assert_close(found, expected, rtol=1e-4, atol=1e-5):
    torch.testing.assert_close(torch.as_tensor(found, dtype=torch.double), expected.double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("reading", gpt2.READINGS)
def test_effective_positions_and_their_alignment(model, found, direct, reading):
    epe = direct.epe(reading)
    assert_close(gpt2.effective_positions(model, reading), epe, atol=1e-4)
    for layer in range(LAYERS):
        keys = epe @ direct.w[f"h.{layer}.attn.c_attn.weight"][:, KEYS]
        bias = direct.w[f"h.{layer}.attn.c_attn.bias"][QUERIES]
        cosines = keys @ bias / keys.norm(dim=1) / bias.norm()
        assert_close(found["epe"][reading]["cosine_first"][layer], cosines[0])
        assert_close(found["epe"][reading]["cosine_others_mean"][layer], cosines[1:].mean())


def test_delta_is_the_part_of_the_scores_that_queries_share(ids, found, direct):
    for layer, x in enumerate(direct.run(ids)[2]):
        weight, bias = (direct.w[f"h.{layer}.attn.c_attn.{name}"] for name in ("weight", "bias"))
        # Delta: the dot products of the query bias with the keys (without the key bias), summed over heads.
        scores = (x @ weight[:, KEYS]) @ bias[QUERIES]
        values = found["delta"][layer]
        assert_close(values["first"], scores[:, 0], atol=1e-4)
        assert_close(values["others_mean"], scores[:, 1:].mean(1), atol=1e-4)
        assert sum(values["histogram"]["others"]) == scores[:, 1:].numel()
        assert_close(found["gamma"][layer]["mean"], (weight[:, KEYS] @ bias[QUERIES]).abs().mean())


def test_epe_contributions_add_up_to_delta(model, ids):
    """If the residual stream itself is passed as EPE, its contribution to Delta is the whole Delta, except for the part
    that comes from the bias of the layer norm."""
    block, stream, x = gpt2.streams(model, ids[:1])[1]
    values = gpt2.delta(model, ids[:1], {"stream": stream[0]})[1]
    expected = (x[0].double() - block.ln_1.bias.double()) @ gpt2.gamma(block)
    assert_close(values["from_epe"]["stream"], expected[0] - expected[1:].mean(), rtol=1e-3)


@pytest.mark.parametrize(
    "name", ["none", "1", "4", "5", "2'", "3'", *(f"{n} {r}" for n in "23" for r in gpt2.READINGS)]
)
def test_interventions_match_direct_changes(ids, found, direct, name):
    change = torch.zeros(LENGTH, WIDTH)
    if name[:2] in ("2 ", "3 "):
        epe = direct.epe(name[2:])
        change[0] = epe[1] - epe[0]
        change[1] = epe[0] - epe[1] if name[0] == "3" else 0
    for layer in range(LAYERS):
        if name == "1":
            direct.w[f"h.{layer}.attn.c_attn.bias"][QUERIES] = 0
        if name == "5":
            direct.w[f"h.{layer}.attn.c_attn.weight"][found["massive"], KEYS] = 0
    order = {"2'": [1, 1], "3'": [1, 0]}.get(name, [0, 1]) + list(range(2, LENGTH))
    expected = direct.first_attention(ids, order=order, zero_first=name == "4", change=change)
    assert_close(found["conditions"][name]["first"], expected, rtol=1e-3)


def test_interventions_change_the_attention_and_are_undone(model, ids, found):
    before = torch.tensor(found["conditions"]["none"]["first"])
    for name, values in found["conditions"].items():
        changed = (torch.tensor(values["first"]) - before).abs().max()
        assert changed > 1e-4 if name != "none" else changed == 0, name
    assert gpt2.mean_attention(gpt2.attention(model, ids)) == found["conditions"]["none"]


def test_variances_and_repetition(ids, found, direct):
    streams, _, inputs = direct.run(ids)
    values = [
        direct.linear(f"h.{n}.attn.c_attn", x)[..., VALUES].unflatten(2, (HEADS, -1)) for n, x in enumerate(inputs)
    ]
    for name, vectors in (("stream", torch.stack(streams)[..., None, :]), ("values", torch.stack(values))):
        variance = vectors.var(-1, unbiased=False)  # (layers, texts, length, heads)
        ratio = variance[:, :, 0] / variance[:, :, 1:].mean(2) - 1
        assert_close(found["variances"][name], ratio.mean((0, 2)))
    repeated = ids[:, 1:2].expand(-1, LENGTH)
    assert_close(found["repeated"]["first"], direct.first_attention(repeated))


def test_changes_of_one_layer_leave_the_layers_before_unchanged(ids, found, direct):
    direct.w["h.1.attn.c_attn.bias"][QUERIES] = 0
    assert_close(found["single"]["1"][1], direct.first_attention(ids[:2])[:, 1].mean())
    assert found["single"]["2 block"][0] is None and found["single"]["3 block"][2] is not None


def test_first_order_predictions(ids, found, direct):
    position, step = 4, 1e-4
    p = direct.w["wpe.weight"]

    def stream(factor):
        """Returns the stream after the first layer at `position`, where the position embedding is scaled."""
        h = direct.w["wte.weight"][ids] + p[:LENGTH]
        h[:, position] += (factor - 1) * p[position]
        return direct.layer(0, h)[0][:, position]

    effects = stream(1) - stream(0)
    slopes = (stream(step) - stream(-step)) / (2 * step)
    index = found["first_order"]["positions"].index(position)
    for name, vectors in (("derivative", slopes), ("literal", direct.epe("literal")[position].expand(4, -1))):
        values = found["first_order"]["predictions"][name]
        assert_close(values["cosine"][index], torch.cosine_similarity(effects, vectors).mean(), atol=1e-4)
        explained = 1 - (effects - vectors).square().sum() / effects.square().sum()
        assert_close(values["explained"][index], explained, rtol=1e-3, atol=1e-3)


class Words:
    """A tokenizer that maps each character to its code."""

    def __init__(self, bos_token_id):
        self.bos_token_id = bos_token_id

    def __call__(self, text, **options):
        return {"input_ids": [ord(character) for character in text]}


def test_samples_are_spread_over_the_text():
    text = "".join(chr(100 + n) for n in range(35))
    found = gpt2.samples(Words(0), text, count=2, length=5)  # BOS and the blocks 0 and 4 of 8 blocks
    assert found.tolist() == [[0, 100, 101, 102, 103], [0, 116, 117, 118, 119]]
    found = gpt2.samples(Words(None), text, count=9, length=15)  # the text has only two blocks
    assert found.tolist() == [[*range(100, 115)], [*range(115, 130)]]
    with pytest.raises(UserError, match="at least 4 tokens, found 2"):
        gpt2.samples(Words(0), "ab", count=2, length=5)


def test_other_models_are_refused(tmp_path):
    with pytest.raises(UserError, match="no config.json"):
        gpt2.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="config.json: model_type: expected gpt2 .*, found llama"):
        gpt2.load(tmp_path)


def test_page_of_a_measured_model(tmp_path, found):
    path = tmp_path / "gpt2.jsonl.zst"
    records.write(path, [{"file": "gpt2/random", "model": "a random model"} | found])
    write(path, tmp_path)
    none = torch.tensor(found["conditions"]["none"]["first"]).mean()
    assert f"| nothing |  |  | {none:.3f} [" in (tmp_path / "gpt2.md").read_text()


def test_wrong_input_ends_with_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpt2", str(tmp_path), "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        run_command(gpt2.main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "lazy_lab: --text: expected a text file, found none\n"
