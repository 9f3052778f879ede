"""Tests that `lazy export` preserves the files and the keys of config.json that concern the tokenizer, chats and
generation."""

import json
import shutil
import subprocess

import pytest


@pytest.fixture
def model(root, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(root / "tests/compatibility/v0.1/lazy/model", folder)
    return folder


def export(lazy_binary, model):
    target = model.parent / "exported"
    subprocess.run([lazy_binary, "export", model, target], check=True, capture_output=True)
    return target


def read(path):
    return json.loads(path.read_text())


def test_metadata_is_copied(lazy_binary, model):
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tools.jinja").write_text("x")
    (model / "generation_config.json").write_text('{"eos_token_id": [2, 5], "temperature": 0.6, "do_sample": true}')
    (model / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    config = {**read(model / "config.json"), "eos_token_id": [2, 5], "pad_token_id": 0}
    (model / "config.json").write_text(json.dumps(config))
    exported = export(lazy_binary, model)
    names = ["chat_template.jinja", "additional_chat_templates/tools.jinja", "generation_config.json"]
    for name in [*names, "special_tokens_map.json", "tokenizer_config.json"]:
        assert (exported / name).read_text() == (model / name).read_text(), name
    assert read(exported / "config.json")["eos_token_id"] == [2, 5]
    assert read(exported / "config.json")["pad_token_id"] == 0


def test_unknown_keys_are_preserved(lazy_binary, model):
    others = {
        "task_specific_params": {"text-generation": {"max_length": 50}},
        "id2label": {"0": "no", "1": "yes"},
        "use_cache": False,
        "a_number_of_python": float("inf"),
    }
    dropped = {"dtype": "float64", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}, "rms_norm_eps": None}
    source = read(model / "config.json")
    (model / "config.json").write_text(json.dumps({**source, **others, **dropped, "num_heads": 2}))
    exported = read(export(lazy_binary, model) / "config.json")
    # `lazy export` writes infinity in transformers' form, because JSON cannot represent it
    others["a_number_of_python"] = {"__float__": "Infinity"}
    assert {key: exported.get(key) for key in others} == others
    assert "dtype" not in exported and "auto_map" not in exported
    assert source.items() <= {**exported, "torch_dtype": source["torch_dtype"]}.items()


def test_missing_token_ids_are_read_from_the_tokenizer(lazy_binary, model):
    (model / "generation_config.json").unlink()
    config = {key: value for key, value in read(model / "config.json").items() if not key.endswith("_token_id")}
    (model / "config.json").write_text(json.dumps(config))
    exported = export(lazy_binary, model)
    for name in ("config.json", "generation_config.json"):
        ids = read(exported / name)
        assert (ids["bos_token_id"], ids["eos_token_id"]) == (1, 2), name
