"""The report of `lazy uptrain`, tested with a small results.json."""

import json
import re

import pytest
from uptrain_results import results

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest.importorskip("scipy")

from lazy_lab.errors import UserError
from lazy_lab.report import table, write_report


def write(folder, content):
    (folder / "results.json").write_text(json.dumps(content))
    return [page.read_text(encoding="utf-8") for page in write_report(folder)]


def row(content, title):
    return next(cells for cells in table(content) if cells[0].startswith(title))


def test_a_report_has_the_table_and_five_figures(tmp_path):
    page, text = write(tmp_path, results())
    assert page.count("<svg") == page.count("</svg>") == 5
    assert "a &lt;model&gt;" in page and "<model>" not in page
    for cells in table(results()):
        assert all(cell in text for cell in cells)


def test_first_line_mentions_single_trainings(tmp_path):
    page, text = write(tmp_path, results())
    for found in (page[page.index("<body>") :], text):
        assert "trained once" in re.sub("<[^>]*>", "", found).strip().splitlines()[0 if found is not text else 2]
    assert row(results(), "held-out loss, nats")[1:] == ["3.000", "3.600", "2.000", "2.100", "+0.100"]


def test_several_seeds_give_a_paired_interval(tmp_path):
    stats = pytest.importorskip("scipy.stats")
    softmax, lazy = [2.0, 2.2, 2.1], [2.05, 2.22, 2.19]
    interval = stats.ttest_rel(lazy, softmax).confidence_interval(0.95)
    cells = row(results(softmax, lazy), "held-out loss, nats")
    assert cells[5] == f"+0.053 [{interval.low:+.3f}, {interval.high:+.3f}]"
    assert "One training" not in write(tmp_path, results(softmax, lazy))[1]


def test_missing_measurements_are_omitted(tmp_path):
    content = results(softmax=())
    for model in content["models"]:
        for part in ("tasks", "positions", "speed", "attention"):
            model.pop(part, None)
    page, _ = write(tmp_path, content)
    assert page.count("<svg") == 1
    assert [cells[0] for cells in table(content)] == ["held-out loss, nats per token", "held-out loss, bits per byte"]


def test_unfinished_steps_are_named(tmp_path):
    steps = ["train the Lazy model", "held-out loss: lazy-seed1", "benchmarks: lazy-seed1", "loss by position: lazy"]
    for page in write(tmp_path, results() | {"unfinished": steps}):
        assert "4 steps" in page and steps[0] in page
    for page in write(tmp_path, results() | {"unfinished": []}):
        assert "incomplete" not in page


def test_equal_results_give_equal_pages(tmp_path):
    assert write(tmp_path, results()) == write(tmp_path, results())


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "lazy-uptrain/0"}', None])
def test_other_files_are_rejected(tmp_path, content):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(UserError, match="results.json"):
        write_report(tmp_path)


def test_folder_without_measurements_says_how_to_continue(tmp_path):
    (tmp_path / "uptrain.json").write_text("{}")
    with pytest.raises(UserError, match="again"):
        write_report(tmp_path)
