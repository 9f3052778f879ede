"""Tests of the option --download with an HTTP server in this process that replaces the Hugging Face Hub."""

import functools
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hub_server import Handler

pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(Handler):
    """HTTP handler for the requests of huggingface_hub's snapshot_download: the list of files, and the files. The files
    of the model "org/tiny" are in `folder`."""

    def __init__(self, folder, asked, *arguments):
        self.folder, self.asked = folder, asked
        super().__init__(*arguments)

    def do_GET(self):
        path = self.path.split("?")[0]
        files = {file.relative_to(self.folder).as_posix(): file for file in self.folder.rglob("*") if file.is_file()}
        resolved = f"/org/tiny/resolve/{COMMIT}/"
        if path.startswith("/api/models/org/tiny/tree/"):
            entries = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": "0" * 40}
                for name, file in files.items()
            ]
            self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")
        elif path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": name} for name in files]
            body = {"_id": "1", "id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings}
            self.answer(200, json.dumps(body).encode(), Content_Type="application/json")
        elif path.startswith(resolved) and path[len(resolved) :] in files:
            name = path[len(resolved) :]
            if self.command == "GET":
                self.asked.append(name)
            body = files[name].read_bytes()
            self.answer(200, body, ETag=f'"{hashlib.sha1(body).hexdigest()}"', X_Repo_Commit=COMMIT)
        else:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub(model_folder, tmp_path):
    """Yields the address of the server and the list of the files that were downloaded from it."""
    folder = tmp_path / "hub"
    (folder / "onnx").mkdir(parents=True)
    for file in Path(model_folder).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name in ("onnx/config.json", "pytorch_model.bin", "consolidated.safetensors", "README.md"):
        (folder / name).write_bytes(b"{}")
    asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, folder, asked))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(lazy_binary, tmp_path):
    """Returns a function that runs `lazy` in an empty folder with an empty cache of the Hub."""
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments, endpoint, **variables):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment |= {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": endpoint, "LAZY_PYTHON": sys.executable}
        environment |= {"no_proxy": "127.0.0.1", **variables}
        return subprocess.run([lazy_binary, *arguments], cwd=work, env=environment, capture_output=True, text=True)

    return run


GENERATE = ["--prompt", "A", "--max-tokens", "4", "--temperature", "0", "--device", "cpu"]


def test_model_is_downloaded_once(run, hub, model_folder):
    endpoint, asked = hub
    expected = run("generate", model_folder, *GENERATE, endpoint=endpoint)
    done = run("generate", "org/tiny", "--download", *GENERATE, endpoint=endpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected.stdout
    assert COMMIT in done.stderr  # the message names the folder in the cache
    wanted = {
        file.name
        for file in Path(model_folder).iterdir()
        if file.suffix in (".json", ".safetensors", ".txt", ".jinja") or file.name == "tokenizer.model"
    }
    assert set(asked) == wanted
    del asked[:]
    for command in (["info", "org/tiny"], ["tokenize", "--tokenizer", "org/tiny"]):
        done = run(*command, "--download", endpoint=endpoint, HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stderr
    done = run("generate", "org/tiny", "--download", *GENERATE, endpoint=endpoint, HF_HUB_OFFLINE="1")
    assert done.stdout == expected.stdout
    assert asked == []


def test_tokenizer_is_downloaded_without_weights(run, hub):
    endpoint, asked = hub
    done = run("tokenize", "--tokenizer", "org/tiny", "--download", endpoint=endpoint)
    assert done.returncode == 0, done.stderr
    assert "config.json" in asked and not [name for name in asked if name.endswith(".safetensors")]


def test_pytorch_checkpoint_is_downloaded_for_conversion(run, hub, tmp_path):
    endpoint, asked = hub
    done = run("convert", "org/tiny", "--from-torch", "--download", "--output", "out", endpoint=endpoint)
    # the test file is not a valid checkpoint, so the conversion fails after the download
    assert done.returncode == 2 and "pytorch_model.bin" in done.stderr, done.stderr
    assert "pytorch_model.bin" in asked and not [name for name in asked if name.endswith(".safetensors")]
    for file in (tmp_path / "hub").glob("*.safetensors"):
        file.unlink()
    empty = str(tmp_path / "empty")  # a new, empty cache, because the first one already contains the list of files
    done = run("generate", "org/tiny", "--download", *GENERATE, endpoint=endpoint, HF_HOME=empty)
    assert done.returncode == 2 and "--from-torch" in done.stderr, done.stderr


def test_errors_are_one_line(run, hub, tmp_path):
    endpoint, asked = hub

    def expect(code, names, *arguments, endpoint=endpoint, **variables):
        done = run(*arguments, endpoint=endpoint, **variables)
        lines = [line for line in done.stderr.splitlines() if line.startswith("lazy: ")]
        assert done.returncode == code and len(lines) == 1, done.stderr
        assert all(name in lines[0] for name in names), lines

    generate = ["generate", "org/tiny", *GENERATE]
    expect(2, ["org/tiny", "--download"], *generate)  # without --download, the model is not downloaded
    expect(2, ["org/other", "Hub"], "generate", "org/other", "--download", *GENERATE)
    expect(2, ["org/tiny", "HF_HUB_OFFLINE"], *generate, "--download", HF_HUB_OFFLINE="1")
    closed = "http://127.0.0.1:1"
    expect(1, ["org/tiny", closed], *generate, "--download", endpoint=closed)
    expect(2, ["./tiny"], "generate", "./tiny", "--download", *GENERATE)  # a path is not treated as a name on the Hub
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "huggingface_hub.py").write_text("raise ImportError('hidden')")
    expect(2, ["org/tiny", "pip install huggingface_hub"], *generate, "--download", PYTHONPATH=str(hidden))
    assert asked == []
