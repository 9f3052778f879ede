"""Tests of `lazy generate`: the source of the prompt, limits, an interrupt, and the fields of the JSON output."""

import json
import os
import pty
import signal
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


@pytest.fixture
def run(root, lazy_binary):
    """Returns the finished process of `lazy generate` with `input` on a pipe."""
    model = root / "tests" / "compatibility" / "v0.1" / "lazy"

    def run(*options, **arguments):
        command = [lazy_binary, "generate", model, "--device", "cpu", "--temperature", "0", "--ignore-eos", *options]
        return subprocess.run(command, capture_output=True, timeout=120, **arguments)

    return run


def test_prompt_from_a_pipe(run):
    few = ["--max-tokens", "8"]
    expected = run("--prompt", "Near a mat", *few).stdout
    assert expected.startswith(b"Near a mat")
    for text in (b"Near a mat", b"Near a mat\n"):
        assert run(*few, input=text).stdout == expected
    # Standard input is not read if the command line has a prompt, and only one newline at the end is removed.
    assert run("--prompt", "Near a mat", *few, input=b"other").stdout == expected
    assert run(*few, input=b"a\n\n").stdout.startswith(b"a\n")


def test_missing_prompt_is_refused(run):
    terminal, other = pty.openpty()
    try:
        for given in ({"stdin": other}, {"input": b""}, {"input": b"\n"}):
            done = run(**given)
            assert done.returncode == 2 and done.stdout == b"" and done.stderr.count(b"\n") == 1
            assert b"--prompt" in done.stderr and b"standard input" in done.stderr
    finally:
        os.close(terminal)
        os.close(other)
    # With an explicit empty prompt, the model gets only the BOS token.
    done = run("--prompt", "", "--special-tokens", "--max-tokens", "4")
    assert done.returncode == 0 and len(done.stdout) > 1


def test_context_length_is_exceeded_with_a_warning(root, run):
    context = json.loads((root / "tests/compatibility/v0.1/lazy/model/config.json").read_text())[
        "max_position_embeddings"
    ]
    few = ["--prompt", "Near", "--no-bos", "--prompt", "Near", "--max-tokens", str(context)]
    done = run(*few)
    warnings = done.stderr.decode().splitlines()
    assert done.returncode == 0 and len(warnings) == 1 and f" {context}," in warnings[0]
    assert run(*few[:-1], "4").stderr == b""


def test_limit_of_the_cache_is_named(run):
    done = run("--prompt", "Near", "--max-tokens", "1000000", "--cache-gib", "0.002")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"--cache-gib" in done.stderr and b"2.0 MiB" in done.stderr


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_the_text_so_far(root, lazy_binary, tmp_path, stop):
    model = root / "tests" / "compatibility" / "v0.1" / "lazy"
    command = [lazy_binary, "generate", model, "--device", "cpu", "--prompt", "Near", "--ignore-eos"]
    command += ["--max-tokens", "1000000", "--json", tmp_path / "out.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        begin = os.read(process.stdout.fileno(), 64)
        process.send_signal(stop)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + stop
    assert (begin + rest).startswith(b"Near") and (begin + rest).endswith(b"\n")
    assert stop.name.encode() in errors.splitlines()[-1] and b"out.json" in errors.splitlines()[-1]
    assert not (tmp_path / "out.json").exists()
