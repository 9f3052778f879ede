"""Tests of `lazy convert --from-torch`, which reads files of torch.save. The results must equal the saved tensors."""

import collections
import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.slow

WIDTH, LAYERS, WORDS = 20, 2, 31
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": WORDS,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 16,
}
TRANSFORMER_XL = {
    "architectures": ["TransfoXLLMHeadModel"],
    "model_type": "transfo-xl",
    "vocab_size": WORDS,
    "cutoffs": [7, 15],
    "d_model": WIDTH,
    "d_embed": 16,
    "n_head": 2,
    "d_head": 10,
    "d_inner": 24,
    "div_val": 2,
    "n_layer": LAYERS,
    "mem_len": 9,
    "clamp_len": 12,
    "same_length": True,
    "untie_r": True,
    "tie_projs": [False, True, True],
    "eos_token_id": 0,
}


def drawn(shapes):
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def gpt2(prefix=""):
    """Returns a pair: the parameters of a GPT-2 model, whose names begin with `prefix`, and the buffers. The published
    checkpoint of 2019 has no prefix and contains the buffers."""
    d = WIDTH
    shapes = {"wte.weight": (WORDS, d), "wpe.weight": (16, d), "ln_f.weight": (d,), "ln_f.bias": (d,)}
    for n in range(LAYERS):
        for part, sizes in (("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)), ("mlp.c_fc", (d, 4 * d))):
            shapes |= {f"h.{n}.{part}.weight": sizes, f"h.{n}.{part}.bias": sizes[1:]}
        shapes |= {f"h.{n}.mlp.c_proj.weight": (4 * d, d), f"h.{n}.mlp.c_proj.bias": (d,)}
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{n}.{norm}.weight": (d,), f"h.{n}.{norm}.bias": (d,)}
    buffers = {f"h.{n}.attn.bias": torch.ones(16, 16).tril()[None, None] for n in range(LAYERS)}
    buffers |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(LAYERS)}
    return {prefix + name: tensor for name, tensor in drawn(shapes).items()}, buffers


def transformer_xl():
    """Returns the tensors of a Transformer-XL model. Tied tensors are stored under both of their names, as in files of
    transformers 4."""
    d, inner, ends = WIDTH, 24, [7, 15, WORDS]
    shapes = {"crit.cluster_weight": (2, 16), "crit.cluster_bias": (2,), "crit.out_projs.0": (d, 16)}
    for n, (begin, end) in enumerate(zip([0, *ends], ends)):
        shapes[f"transformer.word_emb.emb_layers.{n}.weight"] = (end - begin, 16 >> n)
        shapes[f"transformer.word_emb.emb_projs.{n}"] = (d, 16 >> n)
        shapes[f"crit.out_layers.{n}.bias"] = (end - begin,)
    for n in range(LAYERS):
        attention, mlp = f"transformer.layers.{n}.dec_attn.", f"transformer.layers.{n}.pos_ff."
        shapes |= {attention + f"{name}_net.weight": (rows, d) for name, rows in (("qkv", 60), ("o", d), ("r", 20))}
        shapes |= {attention + name: (2, 10) for name in ("r_w_bias", "r_r_bias")}
        shapes |= {part + f"layer_norm.{name}": (d,) for part in (attention, mlp) for name in ("weight", "bias")}
        shapes |= {mlp + "CoreNet.0.weight": (inner, d), mlp + "CoreNet.0.bias": (inner,)}
        shapes |= {mlp + "CoreNet.3.weight": (d, inner), mlp + "CoreNet.3.bias": (d,)}
    tensors = drawn(shapes)
    for n in range(3):
        tensors[f"crit.out_layers.{n}.weight"] = tensors[f"transformer.word_emb.emb_layers.{n}.weight"]
        if n > 0:
            tensors[f"crit.out_projs.{n}"] = tensors[f"transformer.word_emb.emb_projs.{n}"]
    return tensors, {"transformer.pos_emb.inv_freq": torch.ones(WIDTH // 2)}


def folder_of(path, config, name="pytorch_model.bin", content=None, **how):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if content is not None:
        torch.save(content, path / name, **how)
    return path


def convert(lazy_binary, source, *more):
    command = [lazy_binary, "convert", source, "--from-torch", *more]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LAZY_PYTHON": sys.executable})


def converted(lazy_binary, source, target):
    done = convert(lazy_binary, source, "--output", target)
    assert done.returncode == 0, done.stderr
    return safetensors.load_file(target / "model.safetensors")


def expect_same(written, original):
    assert written.keys() == original.keys()
    for name, tensor in original.items():
        assert written[name].dtype == tensor.dtype and torch.equal(written[name], tensor), name


def read(reader, folder, ids, out):
    subprocess.run([reader, "read", folder, ids, out], check=True, capture_output=True)
    return safetensors.load_file(out)["logits"]


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("config, model", [(GPT2, gpt2), (TRANSFORMER_XL, transformer_xl)])
def test_published_models_are_converted(lazy_binary, built_file, tmp_path, config, model, archive):
    tensors, buffers = model()
    saved = collections.OrderedDict(tensors | buffers)
    source = folder_of(tmp_path / "source", config, content=saved, _use_new_zipfile_serialization=archive)
    for name in ("tokenizer.json", "vocab.txt", "chat_template.jinja", "generation_config.json"):
        (source / name).write_text(f'"{name}"')
    (source / "optimizer.pt").write_text("not copied")
    expect_same(converted(lazy_binary, source, tmp_path / "out"), tensors)
    copied = {"config.json", "tokenizer.json", "vocab.txt", "chat_template.jinja", "generation_config.json"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {*copied, "model.safetensors"}
    assert all((tmp_path / "out" / name).read_text() == (source / name).read_text() for name in copied)
    # The result is the same as for a safetensors file that contains each tied tensor only once.
    once = folder_of(tmp_path / "once", config)
    names = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
    safetensors.save_file({name: tensors[name] for name in names.values()}, once / "model.safetensors")
    ids = tmp_path / "ids.safetensors"
    safetensors.save_file({"ids": torch.arange(12)[None]}, ids)
    reader = built_file("LAZY_TEST_MODELS")
    found, expected = (read(reader, folder, ids, tmp_path / "logits") for folder in (tmp_path / "out", once))
    assert torch.equal(found, expected)


def test_converts_shards_with_views_and_files_with_other_names(lazy_binary, tmp_path):
    tensors = gpt2("transformer.")[0] | {"lm_head.weight": torch.randn(WORDS, WIDTH)}
    tensors = {name: tensor.bfloat16() if "mlp" in name else tensor.half() for name, tensor in tensors.items()}
    views = {  # the same values, stored as transposed views or as parts of a larger storage
        name: tensor.t().contiguous().t() if tensor.dim() == 2 else torch.cat((tensor, tensor))[: len(tensor)]
        for name, tensor in tensors.items()
    }
    config = GPT2 | {"tie_word_embeddings": False}
    source = folder_of(tmp_path / "source", config)
    names, index = sorted(tensors), {}
    for n in range(2):
        file = f"pytorch_model-0000{n + 1}-of-00002.bin"
        torch.save({name: views[name] for name in names[n::2]}, source / file)
        index |= dict.fromkeys(names[n::2], file)
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    expect_same(converted(lazy_binary, source, tmp_path / "out"), tensors)
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    source = folder_of(tmp_path / "other", config, "weights.pt", parameters)
    expect_same(converted(lazy_binary, source / "weights.pt", tmp_path / "out2"), tensors)


class Command:
    """An object that runs a command when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch '{self.file}'",)


def changed(**changes):
    tensors = gpt2()[0]
    return {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}


@pytest.mark.parametrize("archive", [True, False])
def test_code_is_rejected_and_not_executed(lazy_binary, tmp_path, archive):
    content = changed(more=Command(tmp_path / "ran"))
    source = folder_of(tmp_path / "source", GPT2, content=content, _use_new_zipfile_serialization=archive)
    expect_refused(lazy_binary, tmp_path, source, ["pytorch_model.bin", "system", "weights_only"])
    assert not (tmp_path / "ran").exists()


def expect_refused(lazy_binary, tmp_path, source, names):
    done = convert(lazy_binary, source, "--output", tmp_path / "out")
    # all lines except progress messages
    lines = [line for line in done.stderr.splitlines() if not line.startswith("converting ")]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert all(name in lines[0] for name in names), lines
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "content, names",
    [
        (lambda: changed(step=3), ["step", "tensor", "int"]),
        (lambda: {"model": changed()}, ["model", "tensor", "dict"]),
        (lambda: [torch.ones(3)], ["dictionary", "list"]),
        (lambda: changed(more=torch.eye(3).to_sparse()), ["more", "dense"]),
        (lambda: changed(**{"wpe.weight": torch.full((16, WIDTH), torch.nan)}), ["wpe.weight", "320", "finite"]),
        (lambda: changed(**{"wpe.weight": None, "more": torch.ones(3)}), ["config.json", "wpe.weight", "more"]),
        (lambda: torch.nn.Linear(2, 2), ["pytorch_model.bin", "Linear", "weights_only"]),
    ],
)
def test_other_contents_are_rejected(lazy_binary, tmp_path, content, names):
    source = folder_of(tmp_path / "source", GPT2, content=content())
    expect_refused(lazy_binary, tmp_path, source, [str(source), *names])


def test_damaged_files_are_rejected(lazy_binary, tmp_path):
    source = folder_of(tmp_path / "source", GPT2, content=changed())
    file = source / "pytorch_model.bin"
    whole = file.read_bytes()
    for content in (b"", b"hello", whole[:900], whole[:-30], b"PK\x03\x04" + bytes(50)):
        file.write_bytes(content)
        expect_refused(lazy_binary, tmp_path, source, ["pytorch_model.bin", "torch.save"])


def test_missing_files_are_named_in_the_error(lazy_binary, tmp_path):
    source = folder_of(tmp_path / "source", GPT2)
    expect_refused(lazy_binary, tmp_path, source, [str(source), "pytorch_model.bin"])
    expect_refused(lazy_binary, tmp_path, tmp_path / "none", [str(tmp_path / "none")])
    torch.save(changed(), source / "a.bin")
    index = source / "pytorch_model.bin.index.json"
    for map, names in (
        ({"wte.weight": "b.bin"}, ["weight_map", "b.bin"]),
        ({"wte.weight": "../a.bin"}, ["weight_map", "../a.bin"]),
        ({"other": "a.bin"}, ["a.bin", "other"]),
    ):
        index.write_text(json.dumps({"weight_map": map}))
        expect_refused(lazy_binary, tmp_path, source, names)
    (source / "config.json").unlink()
    expect_refused(lazy_binary, tmp_path, source / "a.bin", [str(source), "config.json"])
