"""Tests of `lazy convert` for GGUF files. The results are compared with the models from which the files were
created."""

import os
import subprocess
import sys

import pytest

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

pytestmark = pytest.mark.slow

SIZES = dict(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope_theta=20000.0,
)
NAMES = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
GEMMAS = ("gemma2", "gemma3")
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
KEEP = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE = {b: chr(b) for b in KEEP}
BYTE |= {b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in BYTE)}


def gguf_name(name, architecture):
    parts = name.split(".")
    names = NAMES | GEMMA_NAMES if architecture in GEMMAS else NAMES
    kind = next(new for old, new in names.items() if old in name)
    layer = f"blk.{parts[2]}." if parts[1] == "layers" else ""
    return f"{layer}{kind}.{parts[-1]}"


def interleaved(weight, heads):
    """Reorders the rows of a query or key projection weight for interleaved RoPE, as llama.cpp does in GGUF files."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(path, architecture, model, change=None):
    """Writes a GGUF file of the model, with a byte-level tokenizer that has the 256 bytes, "ab", <s> and </s>."""
    writer = gguf.GGUFWriter(str(path), architecture)
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if architecture in GEMMAS:
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens = [BYTE[b] for b in range(256)] + ["ab", "<s>", "</s>"]
    types = [1] * 257 + [3, 3]
    while len(tokens) < config.vocab_size:
        tokens.append(f"[unused{len(tokens)}]")
        types.append(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages[0].content }}")
    if change:
        change(writer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            tensor = interleaved(tensor, heads)
        if architecture in GEMMAS and name.endswith("norm.weight"):
            tensor = tensor + 1
        writer.add_tensor(gguf_name(name, architecture), tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(lazy_binary, *arguments, **environment):
    variables = {**os.environ, "LAZY_PYTHON": sys.executable, **environment}
    return subprocess.run([lazy_binary, "convert", *map(str, arguments)], capture_output=True, text=True, env=variables)


def tiny(name, **changes):
    torch.manual_seed(0)
    sizes = {**SIZES, "head_dim": 16, **changes}
    if name.startswith("Gemma"):
        sizes |= {"sliding_window": 9, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}
    config = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
        # Round to multiples of 1/64, so that adding and subtracting 1 (as GGUF files of Gemma require) is exact.
        if parameter.dim() == 1:
            parameter.data = (parameter.data * 64).round() / 64
    return model


@pytest.mark.parametrize(
    "name, architecture, tied",
    [
        ("Llama", "llama", False),
        ("Llama", "llama", True),
        ("Qwen2", "qwen2", False),
        ("Qwen3", "qwen3", True),
        ("Gemma2", "gemma2", True),
        ("Gemma3", "gemma3", True),
    ],
)
def test_gguf_conversion_restores_the_model(lazy_binary, tmp_path, name, architecture, tied):
    model = tiny(name, tie_word_embeddings=tied)
    write_gguf(tmp_path / "m.gguf", architecture, model)
    run = convert(lazy_binary, tmp_path / "m.gguf", tmp_path / "folder")
    assert run.returncode == 0, run.stderr
    written, original = load_file(tmp_path / "folder" / "model.safetensors"), model.state_dict()
    if tied:
        original.pop("lm_head.weight")
    assert written.keys() == original.keys()
    assert all(torch.equal(written[key], original[key]) for key in original)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32)
    ids = torch.arange(40)[None] * 7 % 300
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer("ab1</s>")["input_ids"] == [257, 256, ord("1"), 258]
    assert tokenizer.chat_template == "{{ messages[0].content }}"
    own = subprocess.run(
        [lazy_binary, "tokenize", "--tokenizer", tmp_path / "folder"],
        input="ab1</s>",
        text=True,
        capture_output=True,
        check=True,
    )
    assert own.stdout.split() == ["256", "49", "258"]


def test_bf16_rounds_to_nearest(lazy_binary, tmp_path):
    model = tiny("Llama")
    write_gguf(tmp_path / "m.gguf", "llama", model)
    assert convert(lazy_binary, tmp_path / "m.gguf", tmp_path / "folder", "--dtype", "bf16").returncode == 0
    written = load_file(tmp_path / "folder" / "model.safetensors")
    assert all(torch.equal(written[key], tensor.bfloat16()) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "change, names",
    [
        (lambda w: w.add_sliding_window(64), ["llama.attention.sliding_window", "64"]),
        (lambda w: w.add_expert_count(4), ["llama.expert_count", "4"]),
        (lambda w: w.add_value_length(8), ["llama.attention.value_length", "8"]),
        (lambda w: w.add_rope_dimension_count(8), ["llama.rope.dimension_count", "8"]),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), ["llama.rope.scaling.type", "yarn"]),
        (lambda w: w.add_tensor("rope_freqs.weight", torch.ones(8).numpy()), ["rope_freqs.weight"]),
    ],
)
def test_unsupported_contents_are_rejected(lazy_binary, tmp_path, change, names):
    write_gguf(tmp_path / "m.gguf", "llama", tiny("Llama"), change)
    run = convert(lazy_binary, tmp_path / "m.gguf", tmp_path / "folder")
    assert run.returncode == 2 and len(run.stderr.splitlines()) == 1, run.stderr
    assert all(name in run.stderr for name in ["m.gguf", *names]), run.stderr
    assert not (tmp_path / "folder").exists()


def test_other_files_and_architectures_are_rejected(lazy_binary, tmp_path):
    write_gguf(tmp_path / "m.gguf", "gemma", tiny("Llama"))
    assert "gemma" in convert(lazy_binary, tmp_path / "m.gguf", tmp_path / "folder").stderr
    (tmp_path / "text.gguf").write_text("no GGUF file")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    for name in ("text.gguf", "cut.gguf", "missing.gguf"):
        run = convert(lazy_binary, tmp_path / name, tmp_path / "folder")
        assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and name in run.stderr, run.stderr
    # the file is cut off in the header, in the middle of the tensors, and in the last tensor
    for size in (100, len(whole) // 2, len(whole) - 40):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        words = convert(lazy_binary, tmp_path / "cut.gguf", tmp_path / "folder").stderr.replace(",", " ").split()
        numbers = [int(word) for word in words if word.isdigit()]
        assert numbers[-1] == size, words
        if size > 100:  # the tensor table is intact, so the error also names the size that the file should have
            assert len(whole) - 32 < numbers[-2] <= len(whole), words  # tensors are aligned to 32 bytes
    run = convert(lazy_binary, tmp_path / "m.gguf", tmp_path / "folder", LAZY_PYTHON="/nowhere/python")
    assert run.returncode == 2 and "Python" in run.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
