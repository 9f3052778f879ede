"""Tests of `lazy train`: errors in the configuration, a run folder in place of a configuration file, and the GPU that
the printed plan assumes."""

import subprocess

import pytest

SHAPE = "[model]\nkind = 'transformer'\nhidden_size = 16\nnum_hidden_layers = 1\nnum_heads = 1\nvocab_size = 64\n"


@pytest.fixture
def train(lazy_binary, tmp_path):
    def train(text, *options):
        (tmp_path / "a.toml").write_text(text)
        return subprocess.run(
            [lazy_binary, "train", "a.toml", *options], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    return train


@pytest.mark.parametrize(
    "text, names",
    [
        ("[trainings]\nsteps = 3\n", ["a.toml:2", "[trainings]", "[training]"]),
        ("[training]\nstep = 3\n", ["a.toml:2", "'step'", "'steps'"]),
        ("[lr_scheduler]\nwarmup_steps = 2\n", ["[training]", "'steps'"]),
        ("[training]\nsteps = 3\n", ["[data]", "'corpus'"]),
        ("[training]\nsteps = 3\n[data]\ncorpus = 'none'\n", ["none", "lazy data prepare"]),
        ("[training]\nsteps = 'x'\n", ["a.toml:2", "training.steps", "'x'"]),
    ],
)
def test_error_names_the_key(train, text, names):
    done = train(text)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert all(name in done.stderr for name in names), done.stderr


def test_output_that_is_a_file_is_refused(train, root, tmp_path):
    (tmp_path / "file").write_text("text")
    corpus = root / "tests/compatibility/v0.1/corpus"
    shape = SHAPE.replace("vocab_size = 64\n", "")
    done = train(shape + f"[training]\nsteps = 3\noutput = 'file'\n[data]\ncorpus = '{corpus}'\n")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "training.output" in done.stderr and str(tmp_path / "file") in done.stderr


def test_plan_names_the_assumed_gpu(train):
    text = SHAPE + "[training]\nsteps = 3\ndevice = 'cpu'\n"
    done = train(text, "--dry-run")
    assert done.returncode == 0 and done.stderr.count("\n") == 1 and "--gpu" in done.stderr, done.stderr
    assert train(text, "--dry-run", "--gpu", "H200").stderr == ""


def test_folder_of_a_run_is_a_configuration(train, lazy_binary, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(SHAPE + "[training]\nsteps = 3\nname = 'given'\n")
    command = [lazy_binary, "train", folder, "--dry-run", "--gpu", "H200"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("given: ")
