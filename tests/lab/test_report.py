"""The report of `lazy uptrain`, tested with the published results of one model, which were measured with three
seeds."""

import json
import statistics
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
stats = pytest.importorskip("scipy.stats")

from lazy_lab.errors import UserError
from lazy_lab.report import table, write_report

PUBLISHED = Path(__file__).parents[2] / "docs/results/uptraining/smollm2-135m/results.json"
DRAWN = ("attention", "positions", "speed", "training")  # most figures show these measurements


def results(seeds=(1, 2, 3), omitted=(), **changes):
    """Returns the published results of some seeds, without the measurements `omitted`."""
    content = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    models = [model for model in content["models"] if model["seed"] in (None, *seeds)]
    models = [{key: value for key, value in model.items() if key not in omitted} for model in models]
    return content | {"name": "a <model>", "models": models} | changes


def write(folder, content):
    (folder / "results.json").write_text(json.dumps(content))
    return [page.read_text(encoding="utf-8") for page in write_report(folder)]


def losses(kind):
    return [model["heldout"]["loss"] for model in results()["models"] if model["model"] == kind]


def test_a_report_has_the_table_and_five_figures(tmp_path):
    page, text = write(tmp_path, results())
    assert page.count("<svg") == page.count("</svg>") == 5
    assert "a &lt;model&gt;" in page and "a <model>" in text and "<model>" not in page
    assert all(cell in text for cells in table(results()) for cell in cells)
    assert [page, text] == write(tmp_path, results()), "equal results give equal pages"


def test_several_seeds_give_means_and_a_paired_interval():
    softmax, lazy = losses("softmax"), losses("lazy")
    low, high = stats.ttest_rel(lazy, softmax).confidence_interval(0.95)
    means = [statistics.fmean(losses(kind)) for kind in ("before", "untrained", "softmax", "lazy")]
    difference = f"{means[3] - means[2]:+.3f} [{low:+.3f}, {high:+.3f}]"
    assert table(results())[0][1:] == [*(f"{mean:.3f}" for mean in means), difference]


def test_single_trainings_give_no_interval(tmp_path):
    content = results(seeds=[2], omitted=DRAWN)
    assert table(content)[0][5] == f"{losses('lazy')[1] - losses('softmax')[1]:+.3f}"
    for found in write(tmp_path, content):
        assert "trained once" in found
    assert "trained once" not in write(tmp_path, results(omitted=DRAWN))[1]


def test_missing_measurements_are_omitted(tmp_path):
    content = results(seeds=[], omitted=("tasks", "positions", "speed", "attention"))
    assert write(tmp_path, content)[0].count("<svg") == 0
    assert [cells[0] for cells in table(content)] == ["held-out loss, nats per token", "held-out loss, bits per byte"]


def test_unfinished_steps_are_named(tmp_path):
    steps = ["train the Lazy model", "held-out loss: lazy-seed1", "benchmarks: lazy-seed1", "loss by position: lazy"]
    for page in write(tmp_path, results(omitted=DRAWN, unfinished=steps)):
        assert "4 steps" in page and steps[0] in page
    assert "incomplete" not in "".join(write(tmp_path, results(omitted=DRAWN, unfinished=[])))


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
