"""Runs one file of tests: run.py TEST.py [pytest options]. Exit code 77, with the reasons, when nothing could run."""

import importlib.util
import sys

missing = [name for name in ("torch", "numpy", "pytest") if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {sys.executable} cannot import {', '.join(missing)}")
    sys.exit(77)

import pytest  # noqa: E402


class Outcomes:
    """Counts what ran, and says aloud what did not."""

    def __init__(self):
        self.ran, self.skipped = 0, []

    def _skip(self, report):
        self.skipped.append(report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr))

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self._skip(report)
        elif report.when == "call":
            self.ran += 1

    def pytest_collectreport(self, report):
        if report.skipped:
            self._skip(report)


outcomes = Outcomes()
status = pytest.main(["-q", "-p", "no:cacheprovider", "--durations=3", *sys.argv[1:]], plugins=[outcomes])
for reason in sorted(set(outcomes.skipped)):
    print(f"skipped: {reason}")
nothing = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and outcomes.ran == 0 and outcomes.skipped
sys.exit(77 if nothing else int(status))
