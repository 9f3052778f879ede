"""Tests of the commands that HTML pages show. Running such a command again must write the same page."""

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def work(root, tmp_path):
    """A folder with two runs and a text file. Their names contain spaces and special characters, so that commands only
    work if they quote the names for the shell."""
    folder = tmp_path / "it's work"
    folder.mkdir()
    for name in ("lazy", "delta"):
        shutil.copytree(root / "tests/compatibility/v0.1" / name, folder / f"{name} $HOME")
    (folder / "a text.txt").write_text("Near a mat sat the cat, under the tree.\n" * 400)
    return folder


@pytest.fixture
def run(lazy_binary, work):
    def run(command):
        """Runs a shell command in `work`; `lazy` is the program under test."""
        environment = os.environ | {"PATH": f"{Path(lazy_binary).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(command, shell=True, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def printed_commands(page, name):
    return [html.unescape(text) for text in re.findall(r"<code>(.*?)</code>", page) if text.startswith(f"lazy {name} ")]


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--samples 3 --length 24 --maps 1:0,0:1 --map-tokens 9 --map-text \"it's a 'mat'\" --measures weights,massive",
        "--add 'layers.1.residual[0]=0.5*embedding[1]' --set-zero 'layers.0.attention.weights[:,:,0]' "
        "--add 'layers.1.residual[1]=embedding[0]' --no-bos",
    ],
)
def test_command_shown_on_sinks_page_reproduces_it(run, work, options):
    run(f"lazy sinks 'lazy $HOME' --text 'a text.txt' --report page.html {options}")
    page = (work / "page.html").read_text()
    commands = set(printed_commands(page, "sinks"))
    assert len(commands) == 1
    (work / "page.html").unlink()
    run(commands.pop())
    assert (work / "page.html").read_text() == page


def test_sinks_page_of_one_model_does_not_mention_the_best_loss(run, work):
    run("lazy sinks 'lazy $HOME' --text 'a text.txt' --report page.html --samples 2 --length 16")
    assert "best loss" not in (work / "page.html").read_text().lower()


def test_command_shown_on_report_page_reproduces_it(run, work):
    run("lazy report 'lazy $HOME' 'delta $HOME' --output 'a page.html'")
    page = (work / "a page.html").read_text()
    (command,) = printed_commands(page, "report")
    (work / "a page.html").unlink()
    run(command)
    assert (work / "a page.html").read_text() == page


def test_maps_accepts_heads_of_another_json_file(run, work):
    model = "'lazy $HOME' --text 'a text.txt' --samples 2"
    run(f"lazy sinks {model} --maps 0:1,1:0 --json first.json")
    run(f"lazy sinks {model} --maps first.json --json second.json")
    first, second = ((work / name).read_text().split('"attention_maps":')[1] for name in ("first.json", "second.json"))
    assert first.split('"command"')[0] == second.split('"command"')[0]
