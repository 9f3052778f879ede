#!/usr/bin/env bash
# Prints statistics of the source tree: number of files and lines, words of documentation, CPU time of a build.
# Usage: scripts/house.sh [BUILD_FOLDER]
# The core-seconds are the sum of the command durations in BUILD_FOLDER/.ninja_log. They are the cost of a full build
# only if the folder contains a fresh build of the targets `lazy` and `lazy_ops` without hits in a compiler cache.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}

python3 - "$build" <<'PY'
import pathlib, re, statistics, subprocess, sys

def tracked(*patterns):
    command = ["git", "ls-files", "-z", "--", *patterns]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [pathlib.Path(name) for name in names.split("\0") if name and pathlib.Path(name).is_file()]

def lines(path):
    return path.read_text(encoding="utf-8", errors="replace").count("\n")

native = {".h", ".cc", ".cu", ".cuh"}
rooms = [path for path in tracked("src", "apps", "include") if path.suffix in native]
sizes = {path: lines(path) for path in rooms}
longest = max(sizes, key=sizes.get)
tests = [path for path in tracked("tests") if path.suffix in native]
# Pages that lazy_lab generates are counted separately from the documentation.
made = [path for path in tracked(*(f"docs/results/{page}.md" for page in ("README", "table1", "rivals", "figures", "details")))]
documents = [path for path in tracked("docs/*.md", "docs/**/*.md") if path not in made]
wide = 0
for path in rooms + tests + [path for path in tracked("*.py") if path.suffix == ".py"]:
    wide += sum(len(line) > 120 for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
words = lambda paths: sum(len(path.read_text(encoding="utf-8").split()) for path in paths)
rows = [
    ("native files in src, apps, include", len(rooms)),
    ("median lines of a file", int(statistics.median(sizes.values()))),
    ("longest file", f"{sizes[longest]} ({longest})"),
    ("files above 600 lines", sum(size > 600 for size in sizes.values())),
    ("files below 40 lines", sum(size < 40 for size in sizes.values())),
    ("native lines", sum(sizes.values())),
    ("native test files", len(tests)),
    ("native lines of tests", sum(map(lines, tests))),
    ("lines above 120 columns", wide),
    ("words in docs/", words(documents)),
    ("words in pages made by lazy_lab", words(made)),
    ("words in README.md", words([pathlib.Path("README.md")])),
]

log = pathlib.Path(sys.argv[1]) / ".ninja_log"
if log.is_file():
    # Columns: start, end (ms), mtime, output, hash of the command. Outputs of the same command have the same hash. If a
    # command occurs several times, its last entry counts.
    commands = {}
    for line in log.read_text().splitlines()[1:]:
        start, end, _, output, digest = line.split("\t")
        commands[digest] = (int(end) - int(start), output)
    seconds = {}
    for duration, output in commands.values():
        if re.search(r"(^|/)(tests|gtest)/|_cuda|_hopper|lazy_nccl", output):
            continue
        room = re.match(r"(?:src|apps)/(\w+)", output)
        room = "SentencePiece" if "sentencepiece" in output and ".deps" in output else room[1] if room else "other"
        if output.endswith(".gch"):
            room = "precompiled header"
        seconds[room] = seconds.get(room, 0) + duration / 1000
    rows.append((f"core-seconds of lazy and lazy_ops in {sys.argv[1]}", round(sum(seconds.values()))))
    rows += [(f"  {room}", round(value)) for room, value in sorted(seconds.items(), key=lambda item: -item[1])]
width = max(len(name) for name, _ in rows)
for name, value in rows:
    print(f"{name:<{width}}  {value}")
PY
