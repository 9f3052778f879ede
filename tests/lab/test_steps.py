"""Tests of resumable steps. The steps run a small program that appends its arguments to a file and writes an output
file."""

import fcntl
import json
import signal
import sys
import threading

import pytest
from lazy_lab.errors import RunError, Stopped
from lazy_lab.steps import Runner, Step

PROGRAM = """#!{python}
import os, signal, sys, time
name, output, what = sys.argv[1:4]
open({calls!r}, "a").write(name + "\\n")
if what == "fail":
    sys.exit(3)
if what == "stop":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
print("printed", sys.stdin.read())
open(output, "w").write(what)
"""


@pytest.fixture
def step(tmp_path):
    """Returns a function that creates a step. The program does `what`: done, fail or stop."""

    def create(name, what="done", needs=(), **fields):
        output = tmp_path / name
        fields = {"inputs": {"what": what}, "needs": list(needs)} | fields
        return Step(name, f"compute {name}", "all", outputs=[output], command=[name, output, what], **fields)

    return create


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs steps. It returns the names of the steps that the program computed."""
    calls, program = tmp_path / "calls", tmp_path / "program"
    program.write_text(PROGRAM.format(python=sys.executable, calls=str(calls)))
    program.chmod(0o755)

    def run_steps(*steps, selected=None, blocked=(), raises=None):
        calls.write_text("")
        selected = selected or {step.name for step in steps}
        if raises:
            with pytest.raises(raises[0]) as error:
                Runner(tmp_path, program).run(steps, selected)
            assert error.value.exit_code == raises[1]
        else:
            assert Runner(tmp_path, program).run(steps, selected) == list(blocked)
        return calls.read_text().split()

    return run_steps


def test_a_finished_step_is_computed_again_only_if_its_output_is_missing(step, run, tmp_path):
    steps = step("a"), step("b", needs=["a"])
    assert run(*steps) == ["a", "b"]
    assert run(*steps) == []
    (tmp_path / "b").unlink()
    assert run(*steps) == ["b"]


def test_changed_inputs_recompute_a_step_and_dependent_steps(step, run):
    run(step("a"), step("b", needs=["a"]), step("c"))
    assert run(step("a", what="other"), step("b", needs=["a"]), step("c")) == ["a", "b"]


@pytest.mark.parametrize(
    ("what", "error"), [("fail", (RunError, 3)), ("stop", (Stopped, 128 + signal.SIGTERM))], ids=["fail", "stop"]
)
def test_failed_or_stopped_step_stops_the_run_and_is_repeated(step, run, what, error):
    assert run(step("a", what=what), step("b"), raises=error) == ["a"]
    assert run(step("a", inputs={"what": what}), step("b")) == ["a", "b"]


def test_steps_with_missing_prerequisites_are_skipped(step, run):
    steps = step("a"), step("b", needs=["a"]), step("c"), step("d", needs=["b"])
    assert run(*steps, selected={"b", "c", "d"}, blocked=["b", "d"]) == ["c"]
    run(*steps, selected={"a"})
    assert run(*steps, selected={"b", "c", "d"}) == ["b", "d"]


def test_two_processes_share_the_steps(step, run, tmp_path):
    """If another process has locked the first step, the second step is computed in the meantime."""
    (tmp_path / "steps").mkdir()
    with open(tmp_path / "steps" / "a.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(0.7, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        release.start()
        assert run(step("a"), step("b")) == ["b", "a"]


def test_step_writes_files_and_redirects_standard_input_and_output(step, run, tmp_path):
    out, config = tmp_path / "out", tmp_path / "folder" / "config"
    run(step("a", stdin=lambda: b"some text", stdout=out, files={config: "configuration"}))
    assert out.read_text() == "printed some text\n" and config.read_text() == "configuration"
    record = json.loads((tmp_path / "steps" / "a.json").read_text())
    assert record["command"] == [str(tmp_path / "program"), "a", str(tmp_path / "a"), "done"]
    assert record["seconds"] > 0
