"""Tests python -m lazy_attention.download with a local HTTP server in this process."""

import hashlib
import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import Handler
from naming import naming

PATH = Path(__file__).parents[2] / "python" / "lazy_attention" / "download.py"
spec = importlib.util.spec_from_file_location("download", PATH)
download = importlib.util.module_from_spec(spec)
spec.loader.exec_module(download)

SMALL, LARGE = b"a small file\n" * 7, bytes(range(256)) * 5000


class Hub(Handler):
    """HTTP handler that imitates the parts of the Hugging Face Hub that lazy_attention.download uses: lists of files in
    several pages, and redirected downloads of byte ranges."""

    def do_HEAD(self):  # huggingface_hub first sends a HEAD request for the checksum of a file
        parts = [urllib.parse.unquote(part) for part in urllib.parse.urlparse(self.path).path.split("/")[1:]]
        self.server.log.append((self.path, dict(self.headers)))
        files = self.server.sets["/".join(parts[1:3])]
        entry = self.server.entry("/".join(parts[5:]), files)
        self.send_response(200)
        self.send_header("ETag", f'"{entry.get("lfs", entry)["oid"]}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("Content-Length", str(entry["size"]))
        self.end_headers()

    def do_GET(self):
        hub = self.server
        url = urllib.parse.urlparse(self.path)
        parts = [urllib.parse.unquote(part) for part in url.path.split("/")[1:]]
        hub.log.append((self.path, dict(self.headers)))
        if hub.failures:
            return self.answer(hub.failures.pop(0))
        if parts[:2] == ["api", "datasets"]:
            files = hub.sets.get("/".join(parts[2:4]))
            if files is None:
                return self.answer(404)
            page = int(urllib.parse.parse_qs(url.query).get("page", ["0"])[0])
            names = sorted(files)
            more = (
                {}
                if page + 1 >= len(names)
                else {"Link": f'<{hub.root}{url.path}?recursive=true&page={page + 1}>; rel="next"'}
            )
            return self.answer(
                200,
                json.dumps(
                    [{"type": "directory", "path": "x", "size": 0, "oid": ""}, hub.entry(names[page], files)]
                ).encode(),
                **more,
            )
        if parts[0] == "datasets":
            return self.answer(302, Location=hub.root + "/storage/" + "/".join([*parts[1:3], *parts[5:]]))
        content = hub.sets.get("/".join(parts[1:3]), {}).get("/".join(parts[3:]))
        if content is None:
            return self.answer(404)
        if hub.corrupt:
            hub.corrupt -= 1
            content = bytes(len(content))
        start = 0
        if "Range" in self.headers:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        cut = hub.cuts.pop(0) if hub.cuts else None
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:] if cut is None else content[start:][:cut])
        self.close_connection = cut is not None


class Server(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Hub)
        self.root = f"http://127.0.0.1:{self.server_port}"
        self.log, self.failures, self.cuts, self.corrupt = [], [], [], 0
        shard = "sample/10BT/{:03}_00000.parquet"
        self.sets = {
            "baber/piqa": {
                "default/validation/0000.parquet": SMALL,
                "default/train/0000.parquet": b"train",
                "default/test/0000.parquet": b"test",
            },
            "allenai/ai2_arc": {"ARC-Easy/test/0000.parquet": b"easy", "ARC-Challenge/test/0000.parquet": b"challenge"},
            "HuggingFaceFW/fineweb-edu": {
                **{shard.format(i): LARGE + bytes([i]) for i in range(3)},
                "sample/100BT/000_00000.parquet": b"100",
                "README.md": b"",
            },
        }

    def entry(self, name, files):
        content = files[name]
        entry = {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
        }
        if len(content) > 10000:
            entry |= {"oid": "0" * 40, "lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}}
        return entry


@pytest.fixture
def server(monkeypatch):
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.root)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    # Do not wait between attempts. Replace the module's reference to `time`, because patching time.sleep would affect
    # the whole process.
    monkeypatch.setattr(download, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def run(server, tmp_path, capsys):
    """Returns a function that runs the program and returns its exit code and standard error."""

    def run(*words):
        status = download.main(["--data", str(tmp_path), "--plain", *words])
        return status, capsys.readouterr().err

    return run


@pytest.fixture
def files(tmp_path):
    """Returns a function that returns the downloaded files as {name: content}."""
    return lambda: {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def expect_error(result, *named, status=1):
    """Asserts that the program fails with a one-line message that contains the values."""
    assert result[0] == status and result[1].count("\n") == 1
    assert re.search(naming(*named), result[1]), result[1]


def test_files_are_stored_where_lazy_eval_looks_for_them(run, files, server):
    assert run("piqa", "arc_easy")[0] == 0
    assert files() == {
        "baber/piqa/default/validation/0000.parquet": SMALL,
        "allenai/ai2_arc/ARC-Easy/test/0000.parquet": b"easy",
    }
    requests = len(server.log)
    assert run("piqa", "--train")[0] == 0
    assert files()["baber/piqa/default/train/0000.parquet"] == b"train"
    # the validation file is not downloaded again
    assert not [path for path, _ in server.log[requests:] if "validation" in path]
    # The token is sent to the Hub, but not to the storage server of the redirect.
    for path, headers in server.log:
        assert ("Authorization" in headers) == (not path.startswith("/storage")), path


def test_selected_shards_of_a_corpus_are_downloaded(run, files):
    assert run("fineweb-edu-10BT", "--shards", "0,2")[0] == 0
    folder = "HuggingFaceFW/fineweb-edu/sample/10BT/"
    assert files() == {folder + "000_00000.parquet": LARGE + b"\0", folder + "002_00000.parquet": LARGE + b"\2"}
    expect_error(run("fineweb-edu-10BT", "--shards", "3"), "fineweb-edu-10BT", "--shards", 0, 2, 3)


def test_broken_connection_is_resumed(run, files, server):
    server.cuts = [300000, 500000]
    assert run("fineweb-edu-10BT", "--shards", "1")[0] == 0
    assert list(files().values()) == [LARGE + b"\1"]
    ranges = [headers.get("Range") for path, headers in server.log if path.startswith("/storage")]
    assert ranges == [None, "bytes=300000-", "bytes=800000-"]


def test_next_run_continues_an_interrupted_run(run, files, server):
    server.cuts = [300000]
    expect_error(run("fineweb-edu-10BT", "--shards", "1", "--retries", "0"), "300000", "1280001")
    assert [Path(name).suffix for name in files()] == [".partial"]
    assert run("fineweb-edu-10BT", "--shards", "1")[0] == 0
    assert server.log[-1][1].get("Range") == "bytes=300000-"
    assert list(files().values()) == [LARGE + b"\1"]


def test_partial_file_of_another_version_is_downloaded_again(run, files, tmp_path):
    target = tmp_path / "baber/piqa/default/validation/0000.parquet.partial"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"something else")
    assert run("piqa")[0] == 0
    assert files() == {"baber/piqa/default/validation/0000.parquet": SMALL}


def test_file_with_a_wrong_checksum_is_removed(run, files, server):
    server.corrupt = 9
    for name in (["piqa"], ["fineweb-edu-10BT", "--shards", "0"]):
        expect_error(run(*name), "checksum")
    assert files() == {}


def test_http_errors_are_reported_or_retried(run, server):
    expect_error(run("boolq"), "aps/super_glue", "404", server.root + "/api/")
    assert len(server.log) == 1  # the download was not tried a second time
    server.failures = [503, 500]
    assert run("piqa")[0] == 0  # temporary errors are retried
    server.failures = [503] * 3
    status, err = run("piqa", "--retries", "2")
    assert status == 1 and "503" in err


@pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is None, reason="huggingface_hub is not installed")
def test_download_with_huggingface_hub(files, server, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    command = [sys.executable, "-I", str(PATH), "--data", str(tmp_path)]
    environment = os.environ | {"HF_HOME": str(tmp_path.parent / "unused")}
    done = subprocess.run(
        [*command, "piqa", "fineweb-edu-10BT", "--shards", "1"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert files() == {
        "baber/piqa/default/validation/0000.parquet": SMALL,
        "HuggingFaceFW/fineweb-edu/sample/10BT/001_00000.parquet": LARGE + b"\1",
    }
    agents = {value for _, headers in server.log for name, value in headers.items() if name.lower() == "user-agent"}
    assert [agent for agent in agents if "hf_hub" in agent], agents
    server.corrupt = 9
    done = subprocess.run([*command, "arc_easy"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "checksum" in done.stderr


def test_unreachable_server_is_reported(run, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    status, err = run("piqa", "--retries", "1")
    assert status == 1 and "baber/piqa" in err


def test_unknown_sets_and_shards_are_rejected(run):
    expect_error(run("piqua"), "piqua", "'piqa'", status=2)
    assert download.shard_list("7,0-2") == [0, 1, 2, 7]
    with pytest.raises(SystemExit):
        download.main(["fineweb-edu-10BT", "--shards", "1-x"])
