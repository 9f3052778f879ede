"""Tests of faults while `lazy serve` runs: a damaged model folder, kill -9, and requests larger than the KV cache."""

import contextlib
import json
import os
import subprocess
import threading

import pytest
from serving import Server, copy_of_model, file_limit, serving

pytestmark = pytest.mark.slow
GREEDY = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "echo": True, "logprobs": 2}


def choices(server):
    return server.complete(**GREEDY)["choices"]


# Each of the following functions damages a model folder. DAMAGES lists each function with the words that the error
# message of a restarted server must contain.
def truncate(folder):
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size // 2)


def overwrite(folder):
    with open(folder / "model.safetensors", "r+b") as file:
        file.write(b"\xff" * 64)


def remove_weights(folder):
    (folder / "model.safetensors").unlink()


def cut_config(folder):
    os.truncate(folder / "config.json", 100)


def replace_config(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))


def cut_tokenizer(folder):
    (folder / "tokenizer.model").unlink()
    os.truncate(folder / "tokenizer.json", 1000)


def remove_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer.model"):
        (folder / name).unlink()


def remove_all(folder):
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


DAMAGES = [
    (truncate, "model.safetensors"),
    (overwrite, "model.safetensors"),
    (remove_weights, "model.safetensors"),
    (cut_config, "config.json"),
    (replace_config, "layers.2"),
    (cut_tokenizer, "tokenizer.json"),
    (remove_tokenizer, "tokenizer"),
    (remove_all, ""),
]


@pytest.mark.parametrize("damage, named", DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_damaged_model_folder_does_not_affect_running_server(lazy_binary, model_folder, tmp_path, damage, named):
    """Damages a model folder while a server uses it. The running server must not be affected. A new server must fail
    with one line that names the problem."""
    model = tmp_path / "model"
    copy_of_model(model_folder, model)
    with serving(lazy_binary, model, "--cache-gib", "0.01") as server:
        expected = choices(server)
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "temperature": 0}
        status, said = server.post("/v1/chat/completions", chat)
        assert status == 200, said
        damage(model)
        assert choices(server) == expected
        assert server.post("/v1/chat/completions", chat)[1]["choices"] == said["choices"]
        assert server.post("/tokenize", {"prompt": "a b"})[0] == 200
        assert server.get("/tokenizer_info")[0] == 200
    command = [lazy_binary, "serve", model, "--port", "0", "--device", "cpu"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # The log line "loading ..." comes first.
    lines = [line for line in again.stderr.strip().splitlines() if " info " not in line]
    assert again.returncode in (1, 2) and again.stdout == "", (again.returncode, again.stdout)
    assert len(lines) == 1 and str(model) in lines[0] and named in lines[0], lines


def test_restart_after_sigkill_on_same_port(lazy_binary, model_folder):
    """Ends a server by kill -9 while it has open streams and idle connections. A new server must be able to start
    immediately on the same port."""
    port = 0
    for _ in range(4):
        server = Server(lazy_binary, model_folder, "--cache-gib", "0.01", port=port)
        try:
            assert port in (0, server.port)
            port = server.port
            expected = choices(server)
            streams = []
            for n in range(20):
                connection = server.connection()
                body = {"prompt": "a", "max_tokens": 4000, "stream": True, "seed": n, "ignore_eos": True}
                if n % 2 == 0:
                    connection.request("POST", "/v1/completions", json.dumps(body))
                    assert connection.getresponse().readline().startswith(b"data: ")
                else:
                    connection.request("GET", "/health")
                    connection.getresponse().read()
                streams.append(connection)
        finally:
            server.process.kill()
        # The new server must not be blocked by connections of the killed server.
        with serving(lazy_binary, model_folder, "--cache-gib", "0.01", port=port) as server:
            assert choices(server) == expected
        for connection in streams:
            connection.close()


def test_requests_larger_than_the_cache_are_refused(lazy_binary, model_folder, freed_memory_returns):
    """Requests larger than the KV cache must be refused. Requests that fill the cache must wait for each other. Memory
    must not grow."""
    with serving(
        lazy_binary, model_folder, "--cache-gib", "0.001", "--max-body-mb", "64", "--max-waiting", "300"
    ) as server:
        most = json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"]
        choices(server)
        server.complete(prompt=[5] * (most - 20), max_tokens=1)  # touches every page of the cache
        before = server.resident_mib()
        for body in (
            {"prompt": "a", "max_tokens": most},
            {"prompt": "a", "max_tokens": 2**62},
            {"prompt": [5] * (most + 1), "max_tokens": 0},
            {"prompt": [5] * (8 * most), "max_tokens": 1, "echo": True, "logprobs": 20},
            {"prompt": "a b " * 5_000_000, "max_tokens": 1},
            {"prompt": ["a", "a b " * (2 * most)], "max_tokens": 1, "n": 100},
        ):
            status, answer = server.post("/v1/completions", body)
            assert status == 400 and answer["error"]["code"] == "context_length_exceeded", (status, answer)
        status, answer = server.post("/v1/completions", {"prompt": "a", "n": 1000})
        assert status == 400, (status, answer)
        # Each request needs half of the cache, so that two requests run at the same time.
        found = []

        def half(n):
            answer = server.complete(prompt=[n + 3] * (most // 2 - 60), max_tokens=40, ignore_eos=True, temperature=0)
            found.append(answer["usage"]["completion_tokens"])

        threads = [threading.Thread(target=half, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [40] * 8, found
        # Each of the 128 texts may generate a quarter of the maximum length but ends after one token, so the request
        # must succeed.
        many = server.complete(prompt="a", n=128, max_tokens=most // 4, logit_bias={"9": 100}, stop_token_ids=[9])
        assert {choice["finish_reason"] for choice in many["choices"]} == {"stop"}, many["choices"]
        metrics = server.idle_metrics()
        assert metrics["lazy_cache_pages_free"] + metrics["lazy_cache_pages_shared"] == metrics["lazy_cache_pages"]
        assert server.resident_mib() < before + 256


def test_two_thousand_connections(lazy_binary, model_folder):
    """Opens two thousand connections and sends one request on each of them."""
    with contextlib.ExitStack() as stack:
        if not stack.enter_context(file_limit(4200)):
            pytest.skip("fewer than 4200 open files are allowed")
        server = stack.enter_context(serving(lazy_binary, model_folder, "--cache-gib", "0.05", "--max-waiting", "2000"))
        connections = [stack.enter_context(contextlib.closing(server.connection())) for _ in range(2000)]
        body = json.dumps({"prompt": "a", "max_tokens": 3, "temperature": 0, "ignore_eos": True})
        for connection in connections:
            connection.request("POST", "/v1/completions", body)
        texts = set()
        for connection in connections:
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            texts.add(json.loads(answer.read())["choices"][0]["text"])
        assert len(texts) == 1
        assert server.metrics()["lazy_http_connections"] >= 2000
