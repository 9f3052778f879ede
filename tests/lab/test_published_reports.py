"""Each report in docs/results/uptraining equals the output of `lazy uptrain --report-only` for its results.json."""

import shutil
from pathlib import Path

import pytest

for package in ("jinja2", "matplotlib", "scipy"):
    pytest.importorskip(package, reason=f"the package {package} is not installed")

from lazy_lab.report import write_report  # noqa: E402

FOLDERS = sorted((Path(__file__).parents[2] / "docs/results/uptraining").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_report_matches_the_results(folder, tmp_path):
    shutil.copy(folder / "results.json", tmp_path)
    write_report(tmp_path)
    assert (tmp_path / "report.md").read_text() == (folder / "report.md").read_text()
