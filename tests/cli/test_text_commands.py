"""Tests of commands that read a text: files that are not text, signals during long computations, and texts that are
longer than the training sequences."""

import json
import os
import signal
import subprocess
import time

import pytest

COMMANDS = {
    "sinks": ["sinks", "MODEL", "--text", "TEXT"],
    "probe": ["probe", "MODEL", "--text", "TEXT"],
    "eval": ["eval", "MODEL", "--text", "TEXT"],
    "eval --lengths": ["eval", "MODEL", "--lengths", "8,16,32", "--text", "TEXT"],
    "generate": ["generate", "MODEL", "--prompt-file", "TEXT"],
}
TEXT = "Near a mat sat the cat, under the tree.\n" * 100


@pytest.fixture
def command(lazy_binary, root):
    """Returns a function that fills in the arguments of one of COMMANDS."""
    model = root / "tests/compatibility/v0.1/lazy/model"

    def filled(name, text, *more):
        places = {"MODEL": model, "TEXT": text}
        return [str(word) for word in [lazy_binary, *(places.get(word, word) for word in COMMANDS[name]), *more]]

    return filled


@pytest.mark.parametrize("name", COMMANDS)
def test_binary_files_are_rejected_with_the_position(command, tmp_path, name):
    file = tmp_path / "file"
    for content, parts in [(b"some\0text", ["NUL", "4"]), ("caf\u00e9".encode("latin-1"), ["UTF-8", "3"])]:
        file.write_bytes(content)
        done = subprocess.run(command(name, file), capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        [line] = done.stderr.strip().splitlines()
        assert all(part in line.replace(",", " ").split() for part in parts) and str(file) in line, line


@pytest.mark.parametrize("name", ["sinks", "probe"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_command_that_is_blocked(command, tmp_path, name, number):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(command(name, pipe), stderr=subprocess.PIPE, text=True) as process:
        with open(pipe, "w") as writer:  # open() returns when the command has opened the pipe
            writer.write("a text")
            writer.flush()
            process.send_signal(number)
            # The writer is still open, so the program would wait for input forever without the signal.
            _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number, error
    line = error.strip().splitlines()[-1]
    assert name in line and number.name in line, line


def test_finished_lengths_survive_an_interruption(command, tmp_path):
    (tmp_path / "text").write_text(TEXT * 6)
    output, partial = tmp_path / "lengths.json", tmp_path / "lengths.partial.json"
    arguments = command("eval --lengths", tmp_path / "text", "--output", output)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not partial.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, error
    assert str(partial) in error.strip().splitlines()[-1] and not output.exists(), error
    results = json.loads(partial.read_text())
    assert results["unfinished"] is True and "|8 " in out
    finished = [row["length"] for row in results["results"]["heldout"]["models"][0]["lengths"]]
    assert finished in ([8], [8, 16]), finished
    (tmp_path / "short").write_text(TEXT[:200])
    complete = subprocess.run(
        command("eval --lengths", tmp_path / "short", "--output", output), capture_output=True, text=True
    )
    assert complete.returncode == 0 and str(output) in complete.stderr, complete.stderr
    assert "unfinished" not in json.loads(output.read_text()) and not partial.exists()


@pytest.mark.parametrize(
    ("name", "beyond", "within"),
    [
        ("sinks", ["--length", "64"], ["--length", "32"]),
        ("probe", ["--length", "64"], ["--length", "32"]),
        ("eval", ["--max-length", "64"], []),
        ("eval --lengths", ["--lengths", "16,64,128"], ["--lengths", "16,32"]),
    ],
)
def test_lengths_beyond_training_get_one_warning(command, tmp_path, name, beyond, within):
    (tmp_path / "text").write_text(TEXT)

    def warnings(more):
        arguments = command(name, tmp_path / "text")
        if "--lengths" in more:
            at = arguments.index("--lengths")
            arguments[at : at + 2] = []
        done = subprocess.run([*arguments, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stderr.splitlines() if "max_position_embeddings" in line]

    [line] = warnings(beyond)
    assert beyond[-1].split(",")[-1] in line and "32" in line, line
    assert warnings(within) == []


def test_text_limit_reduces_the_scored_tokens(command, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    file = tmp_path / "results.json"
    done = subprocess.run(command("eval", tmp_path / "text", "--limit", "2", "--output", file), capture_output=True)
    assert done.returncode == 0 and str(file).encode() in done.stderr, done.stderr
    assert json.loads(file.read_text())["configs"]["heldout"]["tokens"] == 64
