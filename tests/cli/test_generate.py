"""`lazy generate`: the fields of its JSON output."""

import json
import subprocess

import pytest


@pytest.fixture
def generate(root, lazy_binary, tmp_path):
    def generate(*options):
        model = root / "tests" / "compatibility" / "v0.1" / "lazy"
        command = [lazy_binary, "generate", model, "--device", "cpu", "--json", tmp_path / "out.json", *options]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads((tmp_path / "out.json").read_text())

    return generate


def test_single_text_json_has_times(generate):
    (text,) = generate("--prompt", "Near a mat", "--no-bos", "--max-tokens", "12", "--ignore-eos")
    assert text["tokens"] == 12 and text["finish_reason"] == "length"
    assert text["prompt_tokens"] > 0
    assert text["first_token_seconds"] > 0 and text["seconds_per_token"] > 0
    (text,) = generate("--prompt", "Near a mat", "--max-tokens", "1", "--ignore-eos")
    assert "first_token_seconds" in text and "seconds_per_token" not in text


def test_several_texts_json_has_no_times(generate):
    texts = generate("--prompt", "Near a mat", "--prompt", "Near", "--max-tokens", "3")
    assert texts[0]["prompt_tokens"] > texts[1]["prompt_tokens"]
    assert not any("seconds_per_token" in text for text in texts)
