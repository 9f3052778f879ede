"""Tests of the start, the signals and the shutdown of a `lazy serve` process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import Server, copy_of_model

ENDLESS = {"prompt": "a", "max_tokens": 60000, "stream": True, "ignore_eos": True}


@contextlib.contextmanager
def started(*arguments, **more):
    """Context manager that starts a Server, and kills its process if it still runs when the `with` block ends."""
    server = Server(*arguments, **more)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@contextlib.contextmanager
def stream(server, **body):
    """Context manager that starts a streaming request, and yields its response after the headers have arrived."""
    with contextlib.closing(server.connection()) as connection:
        connection.request("POST", "/v1/completions", json.dumps(ENDLESS | body))
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        yield answer


def events(answer):
    return [json.loads(line[6:]) for line in answer.read().split(b"\n") if line.startswith(b"data: {")]


def wait_until_draining(server):
    """Waits until new requests or connections are refused."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            if server.get("/health")[0] == 503:
                return
        time.sleep(0.05)
    raise AssertionError("the server did not begin to drain")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_second_signal_cancels_running_requests(lazy_binary, model_folder, name):
    number = getattr(signal, name)
    with started(lazy_binary, model_folder) as server, stream(server) as answer:
        server.process.send_signal(number)
        wait_until_draining(server)
        assert server.process.poll() is None
        time.sleep(0.3)  # the server would treat two signals within 0.2 s as one
        server.process.send_signal(number)
        assert events(answer)[-1]["error"]["code"] == "cancelled"
        assert server.process.wait(60) == 128 + number


def test_two_simultaneous_signals_count_as_one(lazy_binary, model_folder):
    """The program `timeout` sends its signal twice: to the process and then to its process group. The server must treat
    both as one request to stop."""
    with started(lazy_binary, model_folder) as server, stream(server, max_tokens=2000) as answer:
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert events(answer)[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0


def test_sighup_reopens_the_access_log(lazy_binary, model_folder, tmp_path):
    log, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    with started(lazy_binary, model_folder, "--access-log", str(log)) as server:
        server.get("/health")
        log.rename(rotated)
        server.process.send_signal(signal.SIGHUP)
        for _ in range(200):
            if log.exists():
                break
            time.sleep(0.05)
        server.get("/version")
        server.stop()
    assert "/health" in rotated.read_text() and "/version" not in rotated.read_text()
    assert "/version" in log.read_text()


def test_sighup_without_access_log_drains(lazy_binary, model_folder):
    with started(lazy_binary, model_folder) as server, stream(server, max_tokens=500) as answer:
        server.process.send_signal(signal.SIGHUP)
        assert events(answer)[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0


def test_nohup_is_respected(lazy_binary, model_folder):
    # the server inherits the ignored SIGHUP, as with the command `nohup`
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with started(lazy_binary, model_folder) as server:
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert server.get("/health")[0] == 200
            server.stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_drain_says_what_it_waits_for(lazy_binary, model_folder, tmp_path):
    with open(tmp_path / "log", "w") as file, started(lazy_binary, model_folder, log=file) as server:
        with stream(server, max_tokens=500) as answer:
            server.process.send_signal(signal.SIGTERM)
            assert events(answer)[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0
    [begin, end] = [line for line in (tmp_path / "log").read_text().splitlines() if "drain" in line]
    assert "SIGTERM" in begin and "1 request" in begin and "all requests" in end


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_while_loading_ends_the_server_at_once(lazy_binary, model_folder, tmp_path, name):
    """Sends a signal while the model is loaded. Loading takes more than 60 s, because the mock interpreter for the chat
    template never answers."""
    copy_of_model(model_folder, tmp_path / "model")
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec cat > /dev/null\n")
    silent.chmod(0o755)
    command = [lazy_binary, "serve", str(tmp_path / "model"), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "LAZY_PYTHON": str(silent)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        line = process.stderr.readline()
        assert "loading" in line and "GiB" in line, line
        begin = time.monotonic()
        process.send_signal(getattr(signal, name))
        messages = process.stderr.read()
        assert process.wait(60) == 0
        assert time.monotonic() - begin < 20
        assert name in messages.splitlines()[-1], messages


def test_model_names_and_folders_are_checked_before_loading(lazy_binary, model_folder):
    for models, names in (
        ([f"a={model_folder}", "a=missing"], ["two models", "name a"]),
        ([model_folder, model_folder + "/"], ["two models", model_folder]),
        ([model_folder, "missing"], ["missing"]),
    ):
        command = [lazy_binary, "serve", *models, "--port", "0", "--device", "cpu"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        [line] = done.stderr.strip().splitlines()
        assert all(name in line for name in names), line


@pytest.mark.parametrize("origin", ["https://example.org/", "example.org", "https://example.org/page"])
def test_invalid_origins_are_refused(lazy_binary, model_folder, origin):
    command = [lazy_binary, "serve", model_folder, "--port", "0", "--allowed-origins", origin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert "--allowed-origins" in line and f"'{origin}'" in line and "https://example.org" in line


def messages_of(lazy_binary, folder, log, *options, env=None):
    """Runs a server, sends a chat request and stops the server. Returns its standard error and its response."""
    before = dict(os.environ)
    os.environ.update(env or {})
    try:
        with open(log, "w") as file, started(lazy_binary, folder, *options, log=file) as server:
            said = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
            server.stop()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return log.read_text(), said


def test_server_without_keys_on_public_address_warns(lazy_binary, model_folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    log = tmp_path / "log"
    for options, warned in (
        (["--host", "0.0.0.0"], True),
        (["--host", "localhost"], False),
        (["--host", "0.0.0.0", "--api-key-file", str(keys)], False),
    ):
        text, _ = messages_of(lazy_binary, model_folder, log, *options)
        assert ("--api-key-file" in text) == warned, text


def test_start_message_names_precision_and_cache(lazy_binary, model_folder, tmp_path):
    options = ("--dtype", "fp32", "--weights", "int8", "--cache-gib", "0.25", "--max-model-len", "999")
    text, _ = messages_of(lazy_binary, model_folder, tmp_path / "log", *options)
    [loaded] = [line for line in text.splitlines() if "fp32" in line]
    assert "int8" in loaded and "cpu" in loaded, loaded
    [line] = [line for line in text.splitlines() if "tokens per request" in line]
    for part in ("context length 32", "0.25 GiB", "999 tokens per request", "no chat template"):
        assert part in line, line
    # --max-model-len 999 exceeds the number of tokens on which the model was trained.
    [warning] = [line for line in text.splitlines() if "warning" in line]
    assert "--max-model-len 999" in warning and "32" in warning


def test_cache_is_compared_with_the_memory_and_the_context(lazy_binary, model_folder, tmp_path):
    for options, names in (
        (["--cache-gib", "500000"], ["--cache-gib", "memory", "488.3 TiB"]),
        (["--weights", "int4"], ["--weights", "int4", "int8"]),
        (["--quantize", "w3"], ["--quantize", "w3"]),
    ):
        command = [lazy_binary, "serve", model_folder, "--port", "0", "--device", "cpu", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert all(name in done.stderr for name in names), done.stderr
        assert "loading" not in done.stderr, done.stderr
    text, _ = messages_of(lazy_binary, model_folder, tmp_path / "log", "--cache-gib", "0.001")
    [warning] = [line for line in text.splitlines() if "warning" in line and "--cache-gib" in line]
    assert "65536" in warning and "max_model_len" in warning, warning


def test_context_of_learned_positions_cannot_be_exceeded(lazy_binary, model_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    vocabulary = json.loads((Path(model_folder) / "config.json").read_text())["vocab_size"]
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=32, vocab_size=vocabulary)
    folder = tmp_path / "model"
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    for file in Path(model_folder).glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    command = [lazy_binary, "serve", str(folder), "--port", "0", "--device", "cpu", "--max-model-len", "33"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "--max-model-len" in last and "32" in last and "33" in last, last


def test_start_message_names_the_chat_template(lazy_binary, model_folder, tmp_path):
    pytest.importorskip("jinja2")
    copy_of_model(model_folder, tmp_path / "model")
    env = {"LAZY_PYTHON": sys.executable}
    text, (status, _) = messages_of(lazy_binary, tmp_path / "model", tmp_path / "log", env=env)
    assert status == 200
    assert ", chat template" in text and "no chat template" not in text


def test_wrong_interpreter_gives_status_500(lazy_binary, model_folder, tmp_path):
    """If the Python interpreter for chat templates is missing, the server reports this when it starts. Chat requests
    get status 500, and the log contains the reason."""
    model = tmp_path / "model"
    copy_of_model(model_folder, model)
    text, (status, answer) = messages_of(lazy_binary, model, tmp_path / "log", env={"LAZY_PYTHON": "/missing/python"})
    assert status == 500 and answer["error"]["type"] == "server_error", answer
    # the log names the interpreter twice: when the server starts, and for the request
    assert text.count("/missing/python") == 2, text


def test_vanished_interpreter_gives_status_500(lazy_binary, model_folder, tmp_path):
    pytest.importorskip("jinja2")
    model, python = tmp_path / "model", tmp_path / "python"
    copy_of_model(model_folder, model)
    python.symlink_to(sys.executable)
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    before = dict(os.environ)
    os.environ.update(LAZY_PYTHON=str(python), PYTHONPATH=os.pathsep.join(sys.path))
    try:
        with started(lazy_binary, model) as server:
            assert server.post("/v1/chat/completions", body)[0] == 200
            python.unlink()
            pid = server.process.pid
            [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            os.kill(int(child), signal.SIGKILL)
            for _ in range(100):  # wait until the server has noticed the end of the process
                status, answer = server.post("/v1/chat/completions", body)
                if status != 200:
                    break
                time.sleep(0.05)
            assert status == 500 and answer["error"]["type"] == "server_error", (status, answer)
            server.stop()
    finally:
        os.environ.clear()
        os.environ.update(before)
