"""Downloads the nine benchmarks and FineWeb-Edu from the Hugging Face Hub.

    python -m lazy_attention.download --data data                     the nine benchmarks, for `lazy eval --data data`
    python -m lazy_attention.download --data data piqa boolq --train  two of them, with examples for --num-fewshot
    python -m lazy_attention.download --data data fineweb-edu-10BT --shards 0-3
        then: lazy data prepare data/HuggingFaceFW/fineweb-edu/sample/10BT --output corpus --tokenizer tokenizer.model

The files are stored in DIR/OWNER/NAME under the same relative paths as on the Hub. Each file is written under a
temporary name, compared with the size and checksum that the Hub reports, and then renamed. An interrupted run continues
where it stopped. The environment variable HF_ENDPOINT selects another server, and HF_TOKEN sets the access token. The
script uses huggingface_hub if it is installed, unless --plain is given. The script can also run without PyTorch and
without the operator library: python -I python/lazy_attention/download.py --data data.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

CONVERTED = "refs/convert/parquet"  # the branch where the Hub keeps every data set as CONFIG/SPLIT/0000.parquet

# Benchmark -> (data set on the Hub, configuration or None if the data set has only one, split that is evaluated)
BENCHMARKS = {
    "wikitext": ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test"),
    "lambada_openai": ("EleutherAI/lambada_openai", "default", "test"),
    "piqa": ("baber/piqa", None, "validation"),
    "hellaswag": ("Rowan/hellaswag", None, "validation"),
    "winogrande": ("allenai/winogrande", "winogrande_xl", "validation"),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test"),
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge", "test"),
    "social_iqa": ("lighteval/siqa", None, "validation"),
    "boolq": ("aps/super_glue", "boolq", "validation"),
}
CORPORA = {f"fineweb-edu-{size}": ("HuggingFaceFW/fineweb-edu", f"sample/{size}/") for size in ("10BT", "100BT")}


class DownloadError(Exception):
    """An error whose message is printed to the user as one line."""


def endpoint():
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def open_url(url, first_byte=0):
    request = urllib.request.Request(url, headers={"User-Agent": "lazy-attention"})
    if first_byte:
        request.add_header("Range", f"bytes={first_byte}-")
    if os.environ.get("HF_TOKEN"):  # urllib does not send this header to the storage server after a redirect
        request.add_unredirected_header("Authorization", "Bearer " + os.environ["HF_TOKEN"])
    return urllib.request.urlopen(request, timeout=60)


def patiently(action, what, retries):
    """Runs `action` and retries it after network errors and temporary HTTP errors, waiting 1, 2, 4, ... (at most 30)
    seconds. Other HTTP errors, such as 401 and 404, are not retried."""
    for attempt in range(retries + 1):
        try:
            return action()
        except urllib.error.HTTPError as error:
            if attempt == retries or error.code not in (408, 429, 500, 502, 503, 504):
                raise DownloadError(f"{what}: HTTP {error.code} {error.reason} from {error.url}") from error
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            if attempt == retries:
                raise DownloadError(f"{what}: {getattr(error, 'reason', error)}") from error
        time.sleep(min(30, 2**attempt))


def list_files(repository, revision, retries):
    """Returns the files of a data set as [{"path", "size", "oid", "lfs": {"oid"}}, ...]. The Hub returns the list in
    several pages."""
    url = f"{endpoint()}/api/datasets/{repository}/tree/{urllib.parse.quote(revision, safe='')}?recursive=true"
    files = []
    while url:

        def page(url=url):
            with open_url(url) as answer:
                return json.load(answer), answer.headers.get("Link", "")

        entries, link = patiently(page, repository, retries)
        files += [entry for entry in entries if entry["type"] == "file"]
        following = re.search(r'<([^>]+)>;\s*rel="next"', link)
        url = following and following.group(1)
    return files


def wanted_files(name, arguments):
    """Returns (data set, revision, files) for a benchmark or a corpus."""
    if name in CORPORA:
        repository, prefix = CORPORA[name]
        files = [
            f
            for f in list_files(repository, "main", arguments.retries)
            if f["path"].startswith(prefix) and f["path"].endswith(".parquet")
        ]
        files.sort(key=lambda f: f["path"])
        if arguments.shards is not None:
            outside = [i for i in arguments.shards if i >= len(files)]
            if outside:
                raise DownloadError(f"{name}: --shards: expected 0 to {len(files) - 1}, found {outside[0]}")
            files = [files[i] for i in arguments.shards]
        revision = "main"
    else:
        repository, config, split = BENCHMARKS[name]
        splits = {split, "train"} if arguments.train else {split}
        files = []
        for f in list_files(repository, CONVERTED, arguments.retries):
            parts = f["path"].split("/")
            if (
                len(parts) == 3
                and (config is None or parts[0] == config)
                and parts[1] in splits
                and parts[2].endswith(".parquet")
            ):
                files.append(f)
        revision = CONVERTED
    if not files:
        raise DownloadError(f"{name}: expected .parquet files in {repository} ({revision}), found none")
    return repository, revision, files


def checksum_error(path, file):
    """Compares a downloaded file with the size and checksum that the Hub reports (SHA-256 for LFS files, git's SHA-1
    for the others). Returns None if they match, otherwise an error message."""
    size = path.stat().st_size
    if size != file["size"]:
        return f"expected {file['size']} bytes, found {size}"
    large = file.get("lfs")
    digest = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % size)
    with open(path, "rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    expected = large["oid"] if large else file["oid"]
    return None if digest.hexdigest() == expected else f"expected checksum {expected}, found {digest.hexdigest()}"


class Progress:
    """Progress display of one file: a continuously updated line on a terminal, otherwise one line per finished file."""

    def __init__(self, title, total):
        self.title, self.total, self.begin, self.shown, self.done = title, total, time.monotonic(), 0.0, 0

    def add(self, count):
        self.done += count
        now = time.monotonic()
        if sys.stderr.isatty() and now - self.shown > 0.2:
            self.shown = now
            rate = self.done / max(1e-9, now - self.begin)
            print(
                f"\r\x1b[K{self.title}  {self.done / 1e6:.1f} of {self.total / 1e6:.1f} MB  {rate / 1e6:.1f} MB/s",
                end="",
                file=sys.stderr,
            )

    def finish(self):
        seconds = time.monotonic() - self.begin
        print(
            ("\r\x1b[K" if sys.stderr.isatty() else "") + f"{self.title}  {self.total / 1e6:.1f} MB in {seconds:.0f} s",
            file=sys.stderr,
        )


def fetch_plain(url, partial, file, retries, progress):
    """Downloads `url` into the file `partial`, and resumes the download if the file already has a part of the data."""

    def attempt():
        have = partial.stat().st_size if partial.exists() else 0
        if have > file["size"]:
            partial.unlink()
            have = 0
        if have == file["size"]:
            return
        with open_url(url, have) as answer, open(partial, "ab" if answer.status == 206 else "wb") as out:
            while block := answer.read(1 << 20):
                out.write(block)
                progress.add(len(block))
        size = partial.stat().st_size
        if size < file["size"]:  # read() also returns b"" if the connection breaks
            raise ConnectionError(f"the connection ended after {size} of {file['size']} bytes")

    patiently(attempt, url, retries)


def fetch_by_hub(hub, repository, revision, file, partial):
    with tempfile.TemporaryDirectory(dir=partial.parent, prefix=".hub-") as folder:
        path = hub.hf_hub_download(repository, file["path"], repo_type="dataset", revision=revision, local_dir=folder)
        os.replace(path, partial)


def fetch(repository, revision, file, target, arguments, hub):
    partial = target.with_name(target.name + ".partial")  # `lazy data prepare` ignores this suffix
    target.parent.mkdir(parents=True, exist_ok=True)
    place = f"{urllib.parse.quote(revision, safe='')}/{urllib.parse.quote(file['path'])}"
    url = f"{endpoint()}/datasets/{repository}/resolve/{place}"
    for last in (False, True):
        continued = partial.exists()
        progress = Progress(str(target), file["size"])
        if hub and not continued:
            try:
                fetch_by_hub(hub, repository, revision, file, partial)
            except Exception as error:  # the exception types of huggingface_hub differ between versions
                raise DownloadError(f"{url}: {' '.join(str(error).split())}") from error
        else:
            fetch_plain(url, partial, file, arguments.retries, progress)
        wrong = checksum_error(partial, file)
        if not wrong:
            break
        partial.unlink()
        if last or not continued:  # otherwise the file was resumed, possibly from an older version: download all of it
            raise DownloadError(f"{url}: {wrong}")
    with open(partial, "rb") as content:
        os.fsync(content.fileno())
    os.replace(partial, target)
    progress.finish()


def download(names, arguments):
    hub = None
    if not arguments.plain:
        try:
            import huggingface_hub as hub
        except ImportError:
            pass
    plan = []
    for name in names:
        repository, revision, files = wanted_files(name, arguments)
        plan += [(repository, revision, f, Path(arguments.data) / repository / f["path"]) for f in files]
    missing = [entry for entry in plan if not (entry[3].exists() and entry[3].stat().st_size == entry[2]["size"])]
    needed = sum(entry[2]["size"] for entry in missing)
    Path(arguments.data).mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(arguments.data).free
    if needed > free:
        raise DownloadError(f"{arguments.data}: {needed / 1e9:.1f} GB to fetch, {free / 1e9:.1f} GB free")
    for entry in missing:
        fetch(*entry, arguments, hub)
    print(
        f"{len(missing)} files downloaded, {len(plan) - len(missing)} already present, in {arguments.data}",
        file=sys.stderr,
    )


def shard_list(text):
    """Parses a list of shard numbers and ranges: "0-3,7" gives [0, 1, 2, 3, 7]."""
    shards = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise argparse.ArgumentTypeError(f"expected numbers and ranges such as 0-3,7, found '{text}'")
        first, last = int(match[1]), int(match[2] or match[1])
        shards += range(first, last + 1)
    return sorted(set(shards))


def main(words=None):
    known = [*BENCHMARKS, *CORPORA]
    parser = argparse.ArgumentParser(
        prog="python -m lazy_attention.download",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"{', '.join(known)} (default: the nine benchmarks)")
    parser.add_argument("--data", default="data", metavar="DIR", help="target folder (default: %(default)s)")
    parser.add_argument(
        "--train", action="store_true", help="also download the benchmarks' training splits, for few-shot prompts"
    )
    parser.add_argument(
        "--shards", type=shard_list, help="numbers of the corpus files to download, such as 0-3,7 (default: all)"
    )
    parser.add_argument(
        "--retries", type=int, default=5, help="number of retries after network errors (default: %(default)s)"
    )
    parser.add_argument("--plain", action="store_true", help="do not use huggingface_hub")
    arguments = parser.parse_args(words)
    for name in arguments.sets:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            print(
                f"download: set '{name}': expected one of {', '.join(known)}"
                + (f"; did you mean '{close[0]}'?" if close else ""),
                file=sys.stderr,
            )
            return 2
    try:
        download(arguments.sets or list(BENCHMARKS), arguments)
    except (DownloadError, OSError) as error:
        print(f"download: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("download: stopped; run the same command again to continue", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
