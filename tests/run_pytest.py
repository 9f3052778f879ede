"""Runs pytest in the source tree, and reports to ctest if no test could run: run_pytest.py [pytest options].

    .venv/bin/python tests/run_pytest.py -m unit                     the tests with one label
    .venv/bin/python tests/run_pytest.py tests/serve -m slow         the slow tests of one directory
    .venv/bin/python tests/run_pytest.py tests/python/test_layer.py -k cache

Build results are taken from LAZY_BUILD_DIR, default `build` in the source tree. The exit code is 77, which ctest
reports as skipped, if the interpreter lacks torch, numpy or pytest, or if no selected test could run.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = 77

missing = [name for name in ("torch", "numpy", "pytest") if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {sys.executable} cannot import {', '.join(missing)}")
    sys.exit(SKIPPED)

import pytest  # noqa: E402


class Outcomes:
    """Counts the tests that ran, and the skipped tests by reason."""

    def __init__(self):
        self.ran, self.skipped = 0, {}

    def _skip(self, report):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self._skip(report)
        elif report.when == "call":
            self.ran += 1

    def pytest_collectreport(self, report):
        if report.skipped:
            self._skip(report)


def main(arguments):
    if (ROOT / "build").is_dir():
        os.environ.setdefault("LAZY_BUILD_DIR", str(ROOT / "build"))
    outcomes = Outcomes()
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-q", "--durations=10"]
    status = pytest.main([*options, *arguments], plugins=[outcomes])
    for reason, count in sorted(outcomes.skipped.items()):
        print(f"skipped ({count}): {reason.removeprefix('Skipped: ')}")
    if outcomes.ran == 0 and status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print("skipped: no test was selected" if not outcomes.skipped else "skipped: no selected test could run")
        return SKIPPED
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
