"""Installs the wheels of dist/ into fresh environments, one per PyTorch version, and tests them without a compiler.

Usage: test_wheels.py [--torch 2.11,2.13,2.15] [--python INTERPRETER] [--only operator|cli]
`make test-wheels` runs this script with the Python of .deps/wheels, which has uv and packaging. uv caches packages, so
only the first run downloads them. The environments are build-wheels/test/torch-VERSION and build-wheels/test/cli.

Prints a table and writes it to build-wheels/test/results.json. The exit code is 1 if a test fails, if the metadata of
the operator wheel excludes one of the PyTorch versions, or if importing lazy_attention takes more than 0.3 s in
addition to importing torch.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as tree
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build-wheels" / "test"
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
# Default of --torch: the oldest supported version, one version in between, and the newest one.
TORCH = "2.11,2.13,2.15"
# Maximum import time of lazy_attention, without the import time of torch.
IMPORT_SECONDS = 0.3
# The only system programs on the PATH during the tests. They simulate a machine without compilers.
PROGRAMS = "sh bash env uname cat ls cp mv rm mkdir ldconfig ldd grep sed".split()


@dataclass
class Row:
    wheel: str
    torch: str
    tests: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    install_s: float = 0
    wheel_mb: float = 0
    installed_mb: float = 0
    import_s: float | None = None


class Wheel:
    def __init__(self, project: str):
        found = sorted((ROOT / "dist").glob(f"{project}-*.whl"))
        if len(found) != 1:
            sys.exit(f"test_wheels: expected one dist/{project}-*.whl, found {len(found)}: run `make wheels`")
        self.path = found[0]
        with zipfile.ZipFile(self.path) as archive:
            names = archive.namelist()
            self.unpacked = sum(entry.file_size for entry in archive.infolist())
            self.metadata = email.message_from_bytes(archive.read(next(n for n in names if n.endswith("/METADATA"))))

        requirements = [Requirement(text) for text in self.metadata.get_all("Requires-Dist", [])]
        self.torch = next(requirement.specifier for requirement in requirements if requirement.name == "torch")

    def admits(self, torch: str) -> bool:
        return self.torch.contains(Version(torch + ".0"))

    def row(self, name: str, torch: str) -> Row:
        return Row(name, torch, wheel_mb=self.path.stat().st_size / 1e6, installed_mb=self.unpacked / 1e6)


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


def without_compilers(environment: Path) -> dict[str, str]:
    """Returns the environment variables for running programs of `environment` as on a machine without compilers."""
    programs = WORK / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        where = shutil.which(name, path=os.defpath + ":/usr/sbin:/sbin")
        if where and not (programs / name).exists():
            (programs / name).symlink_to(where)
    kept = {name: value for name, value in os.environ.items() if not re.match(r"(LAZY|PYTHON|CUDA|CXX|CC)", name)}
    return kept | {
        "PATH": f"{environment / 'bin'}:{programs}",
        "VIRTUAL_ENV": str(environment),
        "TORCHINDUCTOR_CACHE_DIR": str(environment / "inductor"),  # do not reuse code compiled by earlier runs
        "OMP_NUM_THREADS": "1",
    }


def new_environment(name: str, python: str) -> Path:
    environment = WORK / name
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", python, str(environment)], check=True)
    return environment


def install(environment: Path, *packages: str) -> float:
    start = time.monotonic()
    command = [UV, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), *packages]
    subprocess.run(command, check=True, env=without_compilers(environment))
    return time.monotonic() - start


def test_packages() -> list[str]:
    """Returns the packages of scripts/requirements-test.txt, which the Python tests need, without PyTorch."""
    lines = (ROOT / "scripts" / "requirements-test.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "torch=="))]


def run_pytest(environment: Path, variables: dict[str, str], row: Row, *arguments: str) -> None:
    report = environment / "tests.xml"
    report.unlink(missing_ok=True)
    python = str(environment / "bin" / "python")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    variables = variables | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=variables, cwd=WORK, capture_output=True, text=True)
    if not report.exists():
        print(done.stdout[-3000:] + done.stderr[-3000:], file=sys.stderr)
        row.failed.append("pytest did not run")
        return
    for case in tree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        if case.find("skipped") is not None:
            row.skipped += 1
            continue
        row.tests += 1
        if case.find("failure") is not None or case.find("error") is not None:
            row.failed.append(name)
    if row.failed:
        print(done.stdout[-6000:], file=sys.stderr)


def import_seconds(environment: Path) -> float:
    code = "import time, torch; t = time.perf_counter(); import lazy_attention; print(time.perf_counter() - t)"
    command = [str(environment / "bin" / "python"), "-c", code]
    variables = without_compilers(environment)
    run = lambda: float(subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout)
    run()  # fill the file cache before the timed runs

    # The minimum is least affected by other processes.
    return min(run() for _ in range(5))


def test_operator(wheel: Wheel, torch: str, python: str, lazy: Path | None) -> Row:
    row = wheel.row("lazy-attention", torch)
    if not wheel.admits(torch):
        row.failed.append(f"the wheel's metadata does not allow PyTorch {torch}")
        return row
    say(f"lazy-attention on PyTorch {torch}")
    environment = new_environment(f"torch-{torch}", python)
    row.install_s = install(environment, str(wheel.path), f"torch=={torch}.*")
    row.import_s = import_seconds(environment)
    if row.import_s > IMPORT_SECONDS:
        row.failed.append(
            f"importing lazy_attention after torch takes {row.import_s:.2f} s, expected at most {IMPORT_SECONDS}"
        )
    install(environment, *test_packages(), f"torch=={torch}.*")
    variables = without_compilers(environment)
    if lazy:
        variables["LAZY_BINARY"] = str(lazy)
    run_pytest(environment, variables, row, str(ROOT / "tests" / "python"))
    # PyTorch's inductor needs a C++ compiler. If this machine has one, run the tests that use inductor again with the
    # full PATH.
    if shutil.which("g++"):
        run_pytest(
            environment,
            variables | {"PATH": f"{variables['PATH']}:{os.environ['PATH']}"},
            row,
            str(ROOT / "tests" / "python"),
            "-k",
            "inductor or tour",
        )
    return row


# Commands of a complete workflow, from the corpus to the report. Each line is one test. {docs} is replaced by the path
# of a folder with text files.
JOURNEY = """
lazy --version
lazy help
lazy help training
lazy completion bash
lazy completion zsh
lazy doctor
lazy info
lazy lab --help
lazy eval --list-tasks
lazy data prepare {docs} --output corpus --train-tokenizer 400 --max-document 8kb
lazy data inspect corpus
lazy train tiny.toml --dry-run
lazy train tiny.toml
torchrun --no-python --nproc-per-node 2 lazy train tiny.toml --set training.output=runs/two
lazy tokenize --tokenizer runs/tiny/model --count {docs}/guides/data.md
lazy eval runs/tiny/model --tasks heldout --corpus corpus --output runs/tiny/eval.json
lazy sinks runs/tiny/model --corpus corpus --json runs/tiny/sinks.json
lazy generate runs/tiny/model --prompt The --max-tokens 8 --json runs/tiny/samples.json
lazy probe runs/tiny/model --text {docs}/guides/data.md --length 32
lazy report runs/tiny --output report.html
lazy export runs/tiny exported
lazy bench attention --device cpu --length 128
lazy init {docs} --output mine.toml --minutes 0.1
"""
TINY = """[model]
hidden_size = 32
num_hidden_layers = 2
num_heads = 4
intermediate_size = 64
distance_bias_window = 16
[data]
corpus = "corpus"
[training]
seq_len = 32
batch_size = 2
steps = 4
output = "runs/tiny"
"""


def check(row: Row, name: str, right: bool, output: str) -> None:
    row.tests += 1
    if not right:
        row.failed.append(name)
        print(f"{name}\n{output[-2000:]}", file=sys.stderr)


def serve_once(row: Row, variables: dict[str, str], folder: Path) -> None:
    """Tests `lazy serve` with one completion request over HTTP."""
    command = ["lazy", "serve", "tiny=runs/tiny/model", "--port", "0"]
    with (folder / "serve.log").open("w") as log:
        server = subprocess.Popen(command, env=variables, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    answer = ""
    try:
        address = None
        deadline = time.monotonic() + 60
        while not address and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            address = re.search(r"http://[\d.]+:\d+", (folder / "serve.log").read_text())
        if address:
            body = json.dumps({"model": "tiny", "prompt": "The", "max_tokens": 4}).encode()
            request = urllib.request.Request(f"{address[0]}/v1/completions", body, {"Content-Type": "application/json"})
            answer = urllib.request.urlopen(request, timeout=60).read().decode()
    except OSError as error:
        answer = str(error)
    finally:
        server.terminate()
        server.wait(30)
    check(row, "lazy serve", '"choices"' in answer, answer + (folder / "serve.log").read_text())


def test_cli(wheel: Wheel, python: str) -> tuple[Row, Path]:
    say(f"lazy-attention-cli, which requires PyTorch {wheel.torch}")
    row = wheel.row("lazy-attention-cli", str(wheel.torch).removeprefix("=="))
    environment = new_environment("cli", python)
    row.install_s = install(environment, str(wheel.path))
    variables = without_compilers(environment)
    folder = environment / "journey"
    folder.mkdir()
    (folder / "tiny.toml").write_text(TINY)
    run = lambda command: subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True)

    usage = run(["lazy", "--help"])
    commands = re.findall(r"^  ([a-z]+) {2,}(?=\S)", usage.stdout, re.M)
    check(row, "lazy --help", usage.returncode == 0 and len(commands) > 10, usage.stdout + usage.stderr)
    for command in commands:
        done = run(["lazy", command, "--help"])
        check(row, f"lazy {command} --help", done.returncode == 0, done.stdout + done.stderr)
    for line in JOURNEY.strip().splitlines():
        done = run(line.format(docs=ROOT / "docs").split())
        check(row, line, done.returncode == 0, done.stdout + done.stderr)
    serve_once(row, variables, folder)
    found = json.loads(run(["lazy", "doctor", "--json"]).stdout)["checks"]
    templates = next(entry for entry in found if entry["subject"] == "chat templates")
    check(row, "chat templates are rendered by the environment's Python", templates["state"] == "ok", str(templates))
    done = run(["lazy", "train", "--model", "lazy-340m", "--recipe", "15b", "--dry-run"])
    check(row, "lazy train finds the installed models and recipes", done.returncode == 0, done.stdout + done.stderr)
    done = run(["lazy", "train", "configs/sink-55m.toml+lazy"])
    check(
        row,
        "the error for a missing configuration names the installed configs",
        re.search(r"cp -r (\S+/configs) ", done.stderr) is not None,
        done.stderr,
    )
    return row, environment / "bin" / "lazy"


def table(rows: list[Row]) -> str:
    head = ["wheel", "PyTorch", "tests", "failed", "skipped", "install s", "wheel MB", "unpacked MB", "import adds s"]
    cells = [head]
    for row in rows:
        seconds = "" if row.import_s is None else f"{row.import_s:.2f}"
        sizes = [f"{row.wheel_mb:.1f}", f"{row.installed_mb:.1f}"]
        counts = [str(row.tests), str(len(row.failed)), str(row.skipped)]
        cells.append([row.wheel, row.torch, *counts, f"{row.install_s:.0f}", *sizes, seconds])
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", default=os.environ.get("LAZY_WHEEL_TORCH") or TORCH, help=f"versions ({TORCH})")
    parser.add_argument("--python", default=os.environ.get("LAZY_WHEEL_PYTHON") or sys.executable, help="interpreter")
    parser.add_argument("--only", choices=["operator", "cli"], help="one wheel")
    a = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    rows, lazy = [], None
    if a.only == "operator":  # use the program `lazy` of an earlier run, if it exists
        lazy = next(WORK.glob("cli/bin/lazy"), None)
    else:
        row, lazy = test_cli(Wheel("lazy_attention_cli"), a.python)
        rows.append(row)
    if a.only != "cli":
        wheel = Wheel("lazy_attention")
        rows += [test_operator(wheel, torch, a.python, lazy) for torch in re.split(r"[ ,]+", a.torch.strip())]
    (WORK / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    print(table(rows))
    for row in rows:
        for name in row.failed:
            print(f"failed: {row.wheel} on PyTorch {row.torch}: {name}")
    sys.exit(any(row.failed for row in rows))


if __name__ == "__main__":
    main()
