"""Resumable steps. Every step runs a command and then records the inputs from which its output was computed.

A step is skipped if its record has the same inputs. Several processes can work in the same folder: a step is locked
while it is computed, and other processes compute other steps in the meantime.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .errors import RunError, Stopped, UserError

POLL_SECONDS = 2


def write_atomic(path, text):
    """Writes a file atomically: under a temporary name that is renamed when the file is complete."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:  # for example, the disk is full
        temporary.unlink(missing_ok=True)
        raise


def read_object(path, *keys):
    """Reads a JSON object from a file. Raises UserError if it is not an object or lacks one of `keys`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: expected a JSON object, found {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(found).__name__}")
    for key in keys:
        if key not in found:
            raise UserError(f"{path}: the JSON object has no key {key}")
    return found


def say(text, command="uptrain"):
    print(f"lazy {command}: {text}", file=sys.stderr, flush=True)


@dataclass
class Step:
    """One command. Its output must depend only on `inputs` (a JSON object) and on the outputs of the steps in
    `needs`."""

    name: str
    title: str
    group: str
    inputs: dict
    outputs: list[Path]
    command: list = field(default_factory=list)  # arguments of `lazy`: strings, paths and numbers
    needs: list[str] = field(default_factory=list)
    launcher: list = field(default_factory=list)  # command prefix that starts `lazy`, such as torchrun
    files: dict[Path, str] = field(default_factory=dict)  # files to write before the command starts
    stdin: Callable[[], bytes] | None = None
    # File for the standard output of the command. Incomplete UTF-8 characters are removed. Default: the log.
    stdout: Path | None = None
    continues: bool = False  # the command can resume from partial output, which is kept
    # The following fields are for estimates of the time (estimates.py).
    kind: str = ""  # steps of the same kind take time in proportion to their work
    work: float = 0  # work of the step (without its fixed time), in tokens of a forward pass that take the same time
    fixed_seconds: float = 1  # time to start the command, to load the model and to write results


class Runner:
    """Runs steps. Records, locks and logs are stored in `folder`/steps."""

    def __init__(self, folder, program, threads=0, command="uptrain"):
        self.name = command  # name of the `lazy` command, for messages
        self.folder = folder / "steps"
        self.program = [program, *(["--threads", threads] if threads else [])]
        self.stopped = 0  # number of the signal that stopped the command
        self.child = None
        self.after = lambda step: None  # function that run() calls after each step that it has computed
        # Names of the steps in all calls of run() together, so that messages can show "step n of m". If empty, only the
        # steps of the current call are counted.
        self.planned = []

    def key(self, step, steps):
        """Returns a digest of the inputs of the step and, recursively, of the steps that it needs."""
        inputs = [step.inputs, [self.key(steps[name], steps) for name in step.needs]]
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]

    def record(self, step, steps):
        """Returns the record of a step, or None if the step is not finished or its inputs have changed."""
        try:
            record = json.loads((self.folder / f"{step.name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        current = record.get("key") == self.key(step, steps)
        return record if current and all(output.exists() for output in step.outputs) else None

    def stop(self, number, _frame):
        """Signal handler. Forwards SIGTERM to the child process. SIGINT is not forwarded, because the terminal sends it
        to the child as well. `lazy train` saves a checkpoint when it receives a signal."""
        self.stopped = number
        if number != signal.SIGINT and self.child:
            self.child.send_signal(number)

    def check_stopped(self):
        if self.stopped:
            raise Stopped(self.stopped)

    @contextlib.contextmanager
    def lock(self, step):
        """Tries to lock the step. Yields True if this process has the lock, or False if another process has it."""
        with open(self.folder / f"{step.name}.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield True
            except BlockingIOError:
                yield False

    def run(self, steps, selected):
        """Computes the selected steps. Returns the names of the selected steps that could not run because a
        prerequisite is neither selected nor finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        previous = {number: signal.signal(number, self.stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._run({step.name: step for step in steps}, selected)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _run(self, steps, selected):
        pending = [name for name in steps if name in selected]
        numbers = {name: number for number, name in enumerate(self.planned or pending, 1)}
        waiting, blocked = False, []
        while pending:
            progressed = False
            for step in [steps[name] for name in pending]:
                missing = [need for need in step.needs if not self.record(steps[need], steps)]
                if any(need in blocked or need not in selected for need in missing):
                    pending.remove(step.name)
                    blocked.append(step.name)
                if missing:
                    continue
                with self.lock(step) as locked:
                    if not locked:
                        continue
                    if not self.record(step, steps):
                        say(f"step {numbers[step.name]} of {len(numbers)}: {step.title}", self.name)
                        self.compute(step, steps)
                        self.after(step)
                    pending.remove(step.name)
                    progressed, waiting = True, False
            if pending and not progressed:
                if not waiting:
                    say(f"waiting for another process: {steps[pending[0]].title}", self.name)
                waiting = True
                time.sleep(POLL_SECONDS)
                self.check_stopped()
        return blocked

    def compute(self, step, steps):
        for output in step.outputs if not step.continues else ():
            shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)
        for file in (*step.outputs, *step.files):
            file.parent.mkdir(parents=True, exist_ok=True)
        for file, text in step.files.items():
            write_atomic(file, text)
        command = [str(word) for word in (*step.launcher, *self.program, *step.command)]
        start = time.monotonic()
        with open(step.stdout or self.folder / f"{step.name}.log", "wb") as out:
            try:
                self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out)
            except OSError as error:
                raise RunError(f"{step.title}: cannot start {command[0]}: {error.strerror}") from error
            # communicate() ignores that the child exits before it has read all input. Its exit code is checked below.
            self.child.communicate(step.stdin() if step.stdin else None)
            code = self.child.returncode
            self.child = None
        self.check_stopped()
        if code != 0:
            exit_code = code if 0 < code < 128 else 1
            raise RunError(f"{step.title}: `{' '.join(command[:8])} ...` ended with exit code {code}", exit_code)
        if step.stdout:
            step.stdout.write_bytes(step.stdout.read_bytes().decode(errors="ignore").replace("\0", "").encode())
        seconds = time.monotonic() - start
        record = {"key": self.key(step, steps), "inputs": step.inputs, "command": command, "seconds": round(seconds, 3)}
        write_atomic(self.folder / f"{step.name}.json", json.dumps(record, indent=2) + "\n")
