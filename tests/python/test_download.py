"""python -m lazy_attention.download against a server of this process: standard library only, so it runs everywhere."""

import contextlib
import hashlib
import http.server
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse
from pathlib import Path

PATH = Path(__file__).parents[2] / "python" / "lazy_attention" / "download.py"
spec = importlib.util.spec_from_file_location("download", PATH)
download = importlib.util.module_from_spec(spec)
spec.loader.exec_module(download)

SMALL, LARGE = b"a small file\n" * 7, bytes(range(256)) * 5000


class Hub(http.server.BaseHTTPRequestHandler):
    """What of the Hub's interface is used: the list of files by pages, and files behind a redirect, with ranges."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):  # huggingface_hub asks for a file's checksum first
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


class Download(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.folder = tempfile.TemporaryDirectory()
        self.data = Path(self.folder.name)
        os.environ["HF_ENDPOINT"] = self.server.root
        os.environ["HF_TOKEN"] = "hf_test"
        download.time.sleep = lambda _: None

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()
        del os.environ["HF_ENDPOINT"], os.environ["HF_TOKEN"]

    def run_main(self, *words):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            status = download.main(["--data", str(self.data), "--plain", *words])
        return status, err.getvalue()

    def files(self):
        return {str(p.relative_to(self.data)): p.read_bytes() for p in self.data.rglob("*") if p.is_file()}

    def test_lays_files_where_they_are_looked_for(self):
        status, err = self.run_main("piqa", "arc_easy")
        self.assertEqual(status, 0, err)
        self.assertEqual(
            self.files(),
            {
                "baber/piqa/default/validation/0000.parquet": SMALL,
                "allenai/ai2_arc/ARC-Easy/test/0000.parquet": b"easy",
            },
        )
        asked = len(self.server.log)
        status, err = self.run_main("piqa", "--train")
        self.assertEqual(status, 0, err)
        self.assertIn("1 files fetched, 1 there already", err)
        self.assertEqual(self.files()["baber/piqa/default/train/0000.parquet"], b"train")
        self.assertFalse([p for p, _ in self.server.log[asked:] if "validation" in p])
        # The token goes to the Hub, not to the storage behind it.
        for path, headers in self.server.log:
            self.assertEqual("Authorization" in headers, not path.startswith("/storage"), path)

    def test_corpus_by_shards(self):
        status, err = self.run_main("fineweb-edu-10BT", "--shards", "0,2")
        self.assertEqual(status, 0, err)
        folder = "HuggingFaceFW/fineweb-edu/sample/10BT/"
        self.assertEqual(
            self.files(), {folder + "000_00000.parquet": LARGE + b"\0", folder + "002_00000.parquet": LARGE + b"\2"}
        )
        status, err = self.run_main("fineweb-edu-10BT", "--shards", "3")
        self.assertEqual((status, err), (1, "download: fineweb-edu-10BT: --shards: expected 0 to 2, found 3\n"))

    def test_a_cut_connection_is_resumed_where_it_ended(self):
        self.server.cuts = [300000, 500000]
        status, err = self.run_main("fineweb-edu-10BT", "--shards", "1")
        self.assertEqual(status, 0, err)
        self.assertEqual(list(self.files().values()), [LARGE + b"\1"])
        ranges = [headers.get("Range") for path, headers in self.server.log if path.startswith("/storage")]
        self.assertEqual(ranges, [None, "bytes=300000-", "bytes=800000-"])

    def test_a_stopped_run_is_continued_by_the_next(self):
        self.server.cuts = [300000]
        status, err = self.run_main("fineweb-edu-10BT", "--shards", "1", "--retries", "0")
        self.assertEqual(status, 1)
        self.assertIn("the connection ended after 300000 of 1280001 bytes", err)
        self.assertEqual(err.count("\n"), 1)
        self.assertEqual([Path(name).suffix for name in self.files()], [".partial"])
        self.assertEqual(self.run_main("fineweb-edu-10BT", "--shards", "1")[0], 0)
        self.assertEqual(self.server.log[-1][1].get("Range"), "bytes=300000-")
        self.assertEqual(list(self.files().values()), [LARGE + b"\1"])

    def test_a_partial_file_of_another_version_is_fetched_anew(self):
        target = self.data / "baber/piqa/default/validation/0000.parquet.partial"
        target.parent.mkdir(parents=True)
        target.write_bytes(b"something else")
        self.assertEqual(self.run_main("piqa")[0], 0)
        self.assertEqual(self.files(), {"baber/piqa/default/validation/0000.parquet": SMALL})

    def test_a_wrong_checksum_leaves_nothing(self):
        self.server.corrupt = 9
        for name in (["piqa"], ["fineweb-edu-10BT", "--shards", "0"]):
            status, err = self.run_main(*name)
            self.assertEqual(status, 1)
            self.assertIn("expected checksum", err)
            self.assertEqual(err.count("\n"), 1)
        self.assertEqual(self.files(), {})

    def test_answers_of_the_server(self):
        status, err = self.run_main("boolq")
        self.assertEqual(status, 1)
        self.assertRegex(err, r"^download: aps/super_glue: HTTP 404 Not Found from http://127\.0\.0\.1:\d+/api/\S+\n$")
        self.assertEqual(len(self.server.log), 1)  # asked once
        self.server.failures = [503, 500]
        self.assertEqual(self.run_main("piqa")[0], 0)  # passing trouble is waited for
        self.server.failures = [503] * 3
        status, err = self.run_main("piqa", "--retries", "2")
        self.assertEqual(status, 1)
        self.assertIn("HTTP 503", err)

    @unittest.skipIf(importlib.util.find_spec("huggingface_hub") is None, "huggingface_hub is not installed")
    def test_by_huggingface_hub(self):
        command = [
            sys.executable,
            "-I",
            str(PATH),
            "--data",
            str(self.data),
            "piqa",
            "fineweb-edu-10BT",
            "--shards",
            "1",
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"HF_HOME": str(self.data.parent / "unused")}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            self.files(),
            {
                "baber/piqa/default/validation/0000.parquet": SMALL,
                "HuggingFaceFW/fineweb-edu/sample/10BT/001_00000.parquet": LARGE + b"\1",
            },
        )
        agents = {
            value for _, headers in self.server.log for name, value in headers.items() if name.lower() == "user-agent"
        }
        self.assertTrue([agent for agent in agents if "hf_hub" in agent], agents)
        self.server.corrupt = 9
        done = subprocess.run([*command[:5], "arc_easy"], capture_output=True, text=True, env=os.environ)
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected checksum", done.stderr)

    def test_no_server(self):
        os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
        status, err = self.run_main("piqa", "--retries", "1")
        self.assertEqual(status, 1)
        self.assertRegex(err, r"^download: baber/piqa: .*refused\n$")

    def test_unknown_sets_and_shards(self):
        status, err = self.run_main("piqua")
        self.assertEqual(status, 2)
        self.assertIn("did you mean 'piqa'?", err)
        self.assertEqual(download.shard_list("7,0-2"), [0, 1, 2, 7])
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            download.main(["fineweb-edu-10BT", "--shards", "1-x"])


if __name__ == "__main__":
    unittest.main()
