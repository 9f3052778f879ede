"""Tests of resumable steps. The steps run a small program that appends its arguments to a file and writes an output
file."""

import fcntl
import json
import os
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
def work(tmp_path):
    class Work:
        calls = tmp_path / "calls"
        program = tmp_path / "program"

        def step(self, name, what="done", needs=(), **fields):
            output = tmp_path / name
            fields = {"inputs": {"what": what}, **fields}
            return Step(
                name,
                f"compute {name}",
                "all",
                outputs=[output],
                command=[name, str(output), what],
                needs=list(needs),
                **fields,
            )

        def run(self, *steps, selected=None):
            return Runner(tmp_path, str(self.program)).run(steps, selected or {step.name for step in steps})

        def called(self):
            calls = self.calls.read_text().split() if self.calls.exists() else []
            self.calls.write_text("")
            return calls

    work = Work()
    work.program.write_text(PROGRAM.format(python=sys.executable, calls=str(work.calls)))
    work.program.chmod(0o755)
    return work


def test_a_finished_step_is_not_computed_again(work):
    work.run(work.step("a"), work.step("b", needs=["a"]))
    assert work.called() == ["a", "b"]
    work.run(work.step("a"), work.step("b", needs=["a"]))
    assert work.called() == []


def test_changed_inputs_recompute_a_step_and_dependent_steps(work):
    work.run(work.step("a"), work.step("b", needs=["a"]), work.step("c"))
    work.called()
    work.run(work.step("a", what="other"), work.step("b", needs=["a"]), work.step("c"))
    assert work.called() == ["a", "b"]


def test_missing_output_is_computed_again(work, tmp_path):
    work.run(work.step("a"))
    (tmp_path / "a").unlink()
    work.run(work.step("a"))
    assert work.called() == ["a", "a"]


def test_failed_step_stops_the_run_and_is_repeated(work):
    with pytest.raises(RunError) as error:
        work.run(work.step("a", what="fail"), work.step("b"))
    assert error.value.exit_code == 3 and "compute a" in str(error.value)
    work.run(work.step("a", inputs={"what": "fail"}, what="done"), work.step("b"))
    assert work.called() == ["a", "a", "b"]


def test_signal_is_forwarded_to_the_command_and_stops_the_run(work):
    with pytest.raises(Stopped) as stopped:
        work.run(work.step("a", what="stop"), work.step("b"))
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert work.called() == ["a"]
    work.run(work.step("a"), work.step("b"))
    assert work.called() == ["a", "b"]


def test_steps_with_missing_prerequisites_are_skipped(work):
    steps = work.step("a"), work.step("b", needs=["a"]), work.step("c"), work.step("d", needs=["b"])
    assert work.run(*steps, selected={"b", "c", "d"}) == ["b", "d"]
    assert work.called() == ["c"]
    work.run(*steps, selected={"a"})
    assert work.run(*steps, selected={"b", "c", "d"}) == []


def test_two_processes_share_the_steps(work, tmp_path):
    """If another process has locked the first step, the second step is computed in the meantime."""
    (tmp_path / "steps").mkdir()
    with open(tmp_path / "steps" / "a.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(0.7, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        release.start()
        work.run(work.step("a"), work.step("b"))
    assert work.called() == ["b", "a"]


def test_step_redirects_standard_input_and_output(work, tmp_path):
    out = tmp_path / "out"
    work.run(work.step("a", stdin=lambda: b"some text", stdout=out))
    assert out.read_text() == "printed some text\n"
    record = json.loads((tmp_path / "steps" / "a.json").read_text())
    assert record["command"][0] == str(work.program) and record["seconds"] > 0
    assert os.listdir(tmp_path / "steps").count("a.json") == 1
