"""Compares the hidden states, attention weights and statistics of lazy_attention.probe with transformers."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
import lazy_attention  # noqa: E402
from lazy_attention import probing  # noqa: E402
from naming import naming  # noqa: E402

try:
    probing.program()
except FileNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)

IDS = [3, 17, 17, 40, 5, 8, 60, 2, 33]


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=32, n_embd=24, n_layer=3, n_head=4, initializer_range=0.3
    )
    return transformers.GPT2LMHeadModel(config).eval()


def llama():
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


def qwen3():
    config = transformers.Qwen3Config(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        initializer_range=0.3,
    )
    return transformers.Qwen3ForCausalLM(config).eval()


def expected(model):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)


def close(ours, theirs):
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("make", [gpt2, llama, qwen3])
def test_tensors_and_statistics_match_transformers(make):
    model = make()
    theirs = expected(model)
    found = lazy_attention.probe(model, IDS, save=["layers.*.residual", "layers.*.attention.weights", "final.hidden"])
    assert found.ids == IDS
    layers = model.config.num_hidden_layers
    for layer in range(layers):
        hidden, weights = theirs.hidden_states[layer][0], theirs.attentions[layer][0]
        close(found.tensors[f"layers.{layer}.residual"], hidden)
        close(found.tensors[f"layers.{layer}.attention.weights"], weights)
        place = found.places[f"layers.{layer}.residual"]
        assert place.shape == tuple(hidden.shape)
        close(place.norm, hidden.norm(dim=1))
        close(place.variance, hidden.var(dim=1))
        close(
            torch.tensor([place.mean, place.lowest, place.highest]),
            torch.stack([hidden.mean(), hidden.min(), hidden.max()]),
        )
        close(found.attention["sink_ratio"][layer], weights[:, :, 0].mean(1))
        close(found.attention["density"][layer], weights[:, :, 1:].sum(2).mean(1))
        assert (found.attention["alive_fraction"][layer] == 1).all()
    close(found.tensors["final.hidden"], theirs.hidden_states[-1][0])
    # The hook points are in execution order, and only the requested ones are returned.
    names = list(found.places)
    assert names[0] == "embedding.tokens" and names[-1] == "final.hidden"
    assert names.index("layers.0.mlp.output") < names.index("layers.1.residual")
    assert not any(name.endswith(".scores") for name in names)
    only = lazy_attention.probe(model, torch.tensor(IDS), read="layers.1.*.input", length=4)
    assert list(only.places) == ["layers.1.attention.input", "layers.1.mlp.input"]
    assert only.ids == IDS[:4] and only.tensors == {}
    close(only.places["layers.1.attention.input"].norm, found.places["layers.1.attention.input"].norm[:4])


@pytest.mark.parametrize("tau", [0.0, -1.0])
def test_weights_of_converted_models_follow_equation_5(tau):
    """Compares the weights of a converted model with max(p + tau / i, 0), equation 5 of the paper. The distance bias is
    zero, so the scores of the first layer are the same as in the softmax model before the conversion."""
    hf = pytest.importorskip("lazy_attention.hf")
    model = llama()
    softmax = expected(model).attentions[0][0]
    hf.make_lazy(model, distance_bias_window=8, tau=tau)
    found = lazy_attention.probe(model, IDS, save=["layers.*.attention.weights"])
    assert list(found.tensors) == ["layers.0.attention.weights", "layers.1.attention.weights"]
    visible = torch.arange(1, len(IDS) + 1)[:, None]
    close(found.tensors["layers.0.attention.weights"], torch.tril((softmax + tau / visible).relu()))


def test_folders_texts_and_interventions(tmp_path):
    model = gpt2()
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[:60]
    byte_level = tokenizers.Tokenizer(tokenizers.models.BPE({c: n for n, c in enumerate([*letters, "<bos>"])}, []))
    byte_level.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level, bos_token="<bos>")
    text = "".join(letters[20:29])
    by_object = lazy_attention.probe(model, text, tokenizer=fast, bos=True)
    assert by_object.ids == [60, *range(20, 29)]
    model.save_pretrained(tmp_path)
    by_folder = lazy_attention.probe(tmp_path, by_object.ids)
    assert by_folder.places.keys() == by_object.places.keys()
    assert torch.equal(by_folder.places["final.hidden"].norm, by_object.places["final.hidden"].norm)
    changed = lazy_attention.probe(
        tmp_path,
        by_object.ids,
        interventions=[("set_zero", "layers.1.attention.q.projected")],
        save=["layers.1.attention.weights"],
    )
    even = torch.tril(torch.ones(10, 10)) / torch.arange(1, 11)[:, None]
    close(changed.tensors["layers.1.attention.weights"], even.expand(4, 10, 10))
    assert torch.equal(
        changed.places["layers.1.residual"].norm, by_folder.places["layers.1.residual"].norm
    )  # the intervention in layer 1 does not change its input


def test_invalid_call_gives_a_one_line_error(tmp_path):
    model = gpt2()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming("probe", "layers.0.residuel", "layers.0.residual")):
        lazy_attention.probe(tmp_path, IDS, read=["layers.0.residuel"])
    with pytest.raises(ValueError, match=naming("probe", "ids", 61)):
        lazy_attention.probe(tmp_path, [3, 61])
    with pytest.raises(ValueError, match=naming("tokenizer=")):
        lazy_attention.probe(model, "a text")
    with pytest.raises(ValueError, match=naming("ids", f"(1, {len(IDS)})")):
        lazy_attention.probe(tmp_path, torch.tensor([IDS]))
    with pytest.raises(ValueError, match=naming("set_zero", "zero")):
        lazy_attention.probe(tmp_path, IDS, interventions=[("zero", "embedding")])
    with pytest.raises(TypeError, match=naming("probe", "int")):
        lazy_attention.probe(7, IDS)
    with pytest.raises(TypeError, match=naming("probe", "GPT2Model", "language-model head")):
        lazy_attention.probe(model.transformer, IDS)
    for ids, found in (
        ([1.5, 2.0], "torch.float32"),
        (torch.tensor([True]), "torch.bool"),
        (["3"], "3"),
        (None, "None"),
    ):
        with pytest.raises(TypeError, match=naming("probe", "token ids", found)):
            lazy_attention.probe(tmp_path, ids)


@pytest.mark.parametrize(
    "error, options, names",
    [
        (TypeError, dict(read=3), ("read", 3)),
        (TypeError, dict(read=[3]), ("read", 3)),
        (TypeError, dict(save=True), ("save", "True")),
        (TypeError, dict(interventions=("set_zero", "layers.0.residual")), ("interventions", "pairs", "set_zero")),
        (TypeError, dict(interventions=[("set_zero", "a", "b")]), ("interventions", "pairs")),
        (TypeError, dict(length=2.5), ("length", "integer", 2.5)),
        (ValueError, dict(length=0), ("length", 1, 0)),
        (TypeError, dict(bos="yes"), ("bos", "True or False", "yes")),
        (ValueError, dict(device="gpu"), ("device", "auto", "cpu", "cuda", "gpu")),
        (ValueError, dict(dtype="fp16"), ("dtype", "fp32", "bf16", "fp16")),
        (ValueError, dict(dtype=torch.float16), ("dtype", "fp32", "bf16", "torch.float16")),
    ],
)
def test_options_are_checked_before_the_model_is_written(error, options, names):
    with pytest.raises(error, match=naming("probe", *names)) as raised:
        lazy_attention.probe(gpt2(), IDS, **options)
    assert "\n" not in str(raised.value) and "--" not in str(raised.value)


def test_types_and_devices_of_pytorch_are_accepted():
    model = gpt2()
    by_name, by_object = (
        lazy_attention.probe(model, IDS, read="final.hidden", device=device, dtype=dtype)
        for device, dtype in (("cpu", "bf16"), (torch.device("cpu"), torch.bfloat16))
    )
    assert torch.equal(by_name.places["final.hidden"].norm, by_object.places["final.hidden"].norm)


def test_program_path_is_configured_or_found(monkeypatch, tmp_path):
    monkeypatch.setenv("LAZY_BINARY", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match=naming("LAZY_BINARY")):
        lazy_attention.probe(tmp_path, IDS)
