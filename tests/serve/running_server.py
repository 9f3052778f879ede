"""A running `lazy serve` for tests."""

import contextlib
import signal
import subprocess


@contextlib.contextmanager
def serving(lazy, *arguments):
    """The address of a server with these models and options; it must end with code 0 on SIGTERM."""
    command = [lazy, "serve", *arguments, "--port", "0", "--cache-gib", "0.05", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("listening at "), line
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, f"exit code {process.returncode}"
    finally:
        process.kill()
