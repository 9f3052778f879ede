"""Tests that the current program reads the files of earlier versions and computes the same results with them.

Losses are compared with a tolerance of 1e-4, because the order of summation depends on the processor.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

VERSIONS = sorted(folder for folder in Path(__file__).parent.glob("v*") if folder.is_dir())
MODELS = ["lazy", "delta"]

pytestmark = pytest.mark.parametrize("old", VERSIONS, ids=lambda folder: folder.name)


@pytest.fixture
def files(old, tmp_path):
    """Returns a writable copy of the files of an earlier version."""
    return shutil.copytree(old, tmp_path / "files")


@pytest.fixture
def run(lazy_binary, files):
    def run(*arguments):
        done = subprocess.run([lazy_binary, *arguments], cwd=files, capture_output=True, text=True)
        assert done.returncode == 0, f"lazy {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def losses(log):
    """Returns {step: loss}. If a step has several entries, the last one is used."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return {e["step"]: e["loss_metrics/global_avg_loss"] for e in entries if "loss_metrics/global_avg_loss" in e}


def test_old_corpus_can_be_read(run):
    run("data", "inspect", "corpus")


@pytest.mark.parametrize("model", MODELS)
def test_old_model_has_the_same_held_out_loss(run, files, model):
    run("eval", f"{model}/model", "--corpus", "corpus", "--bos", "--output", "new.json")
    new, before = (json.loads((files / name).read_text()) for name in ("new.json", f"{model}/eval.json"))
    expected = {key: value for key, value in before["results"]["heldout"].items() if key.startswith("loss,")}
    assert expected
    assert {key: new["results"]["heldout"][key] for key in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_old_checkpoint_resumes_with_the_same_losses(run, files, old, model):
    """Resumes a training from an old checkpoint after step 3. The losses of steps 4 to 6 must equal the old losses."""
    expected = losses(old / model / "log.jsonl")
    (files / model / "log.jsonl").write_text("")
    shutil.rmtree(files / model / "model")
    run("train", f"{model}/config.toml", "--resume")
    found = losses(files / model / "log.jsonl")
    assert sorted(found) == [4, 5, 6]
    assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-4)
    run("report", model, "--output", "page.html")


def test_old_files_of_sinks_count_layers_from_1(run, files):
    run("report", MODELS[0], "--output", "page.html")
    maps = json.loads((files / MODELS[0] / "sinks.json").read_text())["attention_maps"]
    page = (files / "page.html").read_text()
    assert maps[0]["layer"] == 1
    for map in maps:
        assert f"Layer {map['layer'] - 1}, head {map['head'] - 1}" in page


def test_report_can_be_written_from_old_runs(run, files):
    run("report", *MODELS, "--output", "page.html")
    assert (files / "page.html").is_file()
