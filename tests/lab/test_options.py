"""Tests of `lazy uptrain`: the checks of its arguments and of its output folder, and the planned steps."""

import errno
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from lazy_lab import uptrain
from lazy_lab.errors import UserError
from lazy_lab.options import check_corpus, check_folder, parse, parse_count, set_defaults
from lazy_lab.plan import Plan, documents_with, micro_batch, shard_ids, toml, training

CORPUS = {
    "tokenizer": {"bos_id": 1, "eos_id": 2},
    "splits": {"train": {"tokens": 10000, "shards": []}, "validation": {"tokens": 2000, "shards": ["shard"]}},
}


def write_shard(path, lengths):
    """Writes a shard with documents of the given lengths, without the checksums, which lazy_lab does not read."""
    starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    size = 2 * starts[-1] + -2 * starts[-1] % 8
    header = bytearray(128)
    struct.pack_into("<I", header, 16, 2)
    struct.pack_into("<QQ", header, 24, starts[-1], len(lengths))
    struct.pack_into("<QQ", header, 72, 128, 128 + size)
    path.write_bytes(bytes(header) + bytes(size) + struct.pack(f"<{len(starts)}Q", *starts))


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "corpus"):
        Path(folder).mkdir()
    Path("model/config.json").write_text("{}")
    Path("book.txt").write_text("A text. " * 10000)
    Path("corpus/corpus.json").write_text(json.dumps(CORPUS))
    write_shard(Path("corpus/shard"), [600, 600, 800])
    program = {"program": "lazy", "line": "lazy uptrain", "threads": 0, "device": "cpu", "dtype": "fp32", "gpus": 1}
    folders = {"model": "model", "output": "out", "report_only": "", "only": [], "dry_run": False}
    data = {"corpus": "corpus", "text": [], "text_bytes": 0, "max_document": 0, "validation": 0.02}
    steps = {"tokens": "10k", "seq_len": 64, "batch_tokens": 512, "batch_size": 0, "lr": 3e-4, "weight_decay": 0.0}
    models = {"control": True, "seeds": 1, "seed": [], "window": 16, "to": -1.0, "anneal": 0.35}
    sizes = {"tasks": [], "data": "", "lengths": ["1k"], "heldout_tokens": "", "limit": 0, "samples": 0}
    return program | folders | data | steps | models | sizes


def checked(arguments, gpu=False, **change):
    """Returns the options for a model with 256 positions."""
    options = parse(arguments | change)
    set_defaults(options, gpu, {"max_position_embeddings": 256})
    return options


@pytest.mark.parametrize(
    ("text", "base", "number"),
    [("30M", 1000, 30_000_000), ("1.5b", 1000, 1_500_000_000), ("17", 1000, 17), ("32k", 1024, 32768), ("9", 1024, 9)],
)
def test_numbers_are_parsed(text, base, number):
    assert parse_count(text, "--tokens", base) == number


@pytest.mark.parametrize("text", ["", "M", "0", "-1", "1.5", "3 M M", "1e6", "nan", "9" * 400])
def test_invalid_numbers_are_rejected(text):
    with pytest.raises(UserError, match="--tokens"):
        parse_count(text, "--tokens")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": ""}, "model"),
        ({"output": ""}, "--output"),
        ({"tokens": ""}, "--tokens"),
        ({"tokens": "many"}, "--tokens"),
        ({"tokens": "511"}, "--tokens"),
        ({"corpus": ""}, "--text"),
        ({"text": ["book.txt"]}, "--corpus"),
        ({"corpus": "model"}, "corpus.json"),
        ({"tasks": ["piqa"]}, "--data"),
        ({"tasks": ["piqa"], "data": "none"}, "--data"),
        ({"batch_tokens": 500}, "--batch-tokens"),
        ({"batch_size": 3}, "--batch-size"),
        ({"gpus": 3}, "--batch-size"),
        ({"seed": [2, 2]}, "--seed"),
        ({"lengths": ["long"]}, "--lengths"),
        ({"to": None}, "--to"),
        ({"lr": math.inf}, "--lr"),
        ({"weight_decay": None}, "--weight-decay"),
        ({"heldout_tokens": "63"}, "--heldout-tokens"),
        ({"heldout_tokens": "all"}, "--heldout-tokens"),
        ({"corpus": "", "text": ["book.txt"], "text_bytes": 2559, "tokens": "10240"}, "--tokens"),
    ],
)
def test_wrong_arguments_are_named_in_the_error(arguments, change, named):
    with pytest.raises(UserError) as error:
        parse(arguments | change)
    assert named in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{"text_bytes": 2560, "tokens": "10240"}, {"text_bytes": 0, "tokens": "1g"}])
def test_four_passes_and_texts_of_unknown_size_are_accepted(arguments, change):
    parse(arguments | {"corpus": "", "text": ["book.txt"]} | change)


def test_number_of_epochs_is_checked(arguments):
    assert check_corpus(parse(arguments))[0] == pytest.approx(20 * 512 / 10000)
    with pytest.raises(UserError, match="--tokens"):
        check_corpus(parse(arguments | {"tokens": "50k"}))
    with pytest.raises(UserError, match="validation"):
        check_corpus(parse(arguments | {"seq_len": 4096, "batch_tokens": 4096}))


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"lr": 1e-3}, "--lr"),
        ({"tokens": "11k"}, "--tokens"),
        ({"window": 8}, "--window"),
        ({"corpus": "", "text": ["book.txt"]}, "--corpus"),
        ({"model": "corpus"}, "model"),
    ],
)
def test_folder_rejects_other_arguments(arguments, change, option):
    Path("corpus/config.json").write_text('{"hidden_size": 8}')
    check_folder(parse(arguments), corpus_checked=True)
    check_folder(parse(arguments | {"seeds": 3, "control": False, "lengths": ["2k"]}), corpus_checked=True)
    with pytest.raises(UserError, match=f"{option}: expected"):
        check_folder(parse(arguments | change), corpus_checked=False)


def test_training_settings_can_be_changed_until_the_corpus_is_large_enough(arguments):
    check_folder(parse(arguments | {"tokens": "50k"}), corpus_checked=False)
    with pytest.raises(UserError, match="--window"):
        check_folder(parse(arguments | {"window": 8}), corpus_checked=False)
    check_folder(parse(arguments | {"seq_len": 32}), corpus_checked=True)
    with pytest.raises(UserError, match="--seq-len"):
        check_folder(parse(arguments), corpus_checked=False)


def test_two_processes_can_create_a_folder_concurrently(arguments, monkeypatch):
    options, listed = parse(arguments), Path.iterdir

    def other_process_first(folder):
        if folder == options.output and not (folder / "uptrain.json").exists():
            monkeypatch.setattr(Path, "iterdir", listed)
            check_folder(options, corpus_checked=True)
            (folder / "steps").mkdir()
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", other_process_first)
    check_folder(options, corpus_checked=False)
    with pytest.raises(UserError, match="--lr"):
        check_folder(parse(arguments | {"lr": 1e-3}), corpus_checked=False)


@pytest.mark.parametrize("output", [".", "book.txt"])
def test_unrelated_folders_are_not_changed(arguments, output):
    with pytest.raises(UserError, match="--output"):
        check_folder(parse(arguments | {"output": output}), corpus_checked=False)
    assert not Path("uptrain.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"splits": {}}'])
def test_damaged_files_are_named_in_the_error(arguments, text):
    options = parse(arguments)
    Path("corpus/corpus.json").write_text(text)
    with pytest.raises(UserError, match="corpus.json"):
        check_corpus(options)
    check_folder(options, corpus_checked=False)
    Path("out/uptrain.json").write_text(text)
    with pytest.raises(UserError, match="out"):
        check_folder(options, corpus_checked=False)


def test_full_disk_gives_a_one_line_error(arguments, monkeypatch, capsys):
    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(uptrain, "program_json", lambda *_: {"config": {}})
    monkeypatch.setattr(Path, "write_text", full)
    assert uptrain.main(arguments) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "uptrain.json" in errors
    assert list(Path("out").iterdir()) == []


GIVEN = {"heldout_tokens": "2k", "limit": 3, "samples": 5, "lengths": ["2k"]}


@pytest.mark.parametrize(
    ("gpu", "change", "sizes"),
    [
        (True, {"lengths": []}, [0, 0, 64, [1024, 8192, 32768]]),
        (False, {"lengths": []}, [4096, 100, 8, [256, 1024]]),
        (False, {"tokens": "1M"}, [100_000, 100, 8, [1024]]),
        (True, GIVEN, [2000, 3, 5, [2048]]),
        (False, GIVEN, [2000, 3, 5, [2048]]),
    ],
)
def test_measurements_are_small_on_a_cpu(arguments, gpu, change, sizes):
    options = checked(arguments, gpu, **change)
    assert [options.heldout_tokens, options.limit, options.samples, options.lengths] == sizes


def test_documents_are_counted_until_they_have_enough_tokens(arguments):
    splits = {"validation": {"shards": ["a", "b"]}}
    Path("corpus/corpus.json").write_text(json.dumps({"splits": splits}))
    write_shard(Path("corpus/a"), [5, 3])
    write_shard(Path("corpus/b"), [4, 1, 7])
    found = [documents_with(Path("corpus"), "validation", tokens) for tokens in (1, 5, 6, 8, 9, 12, 13, 14, 20, 100)]
    assert found == [1, 1, 2, 2, 3, 3, 4, 5, 5, 5]


def test_limits_reach_the_commands_and_the_records(arguments):
    small = {"heldout_tokens": "640", "limit": 7, "samples": 3, "tasks": ["piqa"], "data": "corpus"}
    steps = {step.kind: step for step in Plan(checked(arguments, **small)).steps()}
    # 640 tokens are 10 sequences of 64 tokens, and the first two documents have 1200 tokens.
    for kind, option, number in (("heldout", "limit", 10), ("positions", "limit", 2), ("tasks", "limit", 7)):
        command = steps[kind].command
        assert command[command.index(f"--{option}") + 1] == steps[kind].inputs[option] == number, kind
    assert steps["sinks"].inputs["samples"] == 3
    # If the whole split is measured, the records are the same as without the option.
    steps = {step.kind: step for step in Plan(checked(arguments, gpu=True, heldout_tokens="2000")).steps()}
    assert "limit" not in steps["heldout"].inputs and "--limit" not in steps["positions"].command


def test_training_errors_are_found_before_the_measurements(arguments):
    first = next(step for step in Plan(checked(arguments)).steps() if step.group != "prepare")
    assert first.command[0] == "train"


def test_both_trainings_differ_only_in_model_and_folder(arguments):
    lazy, softmax = (training(checked(arguments), kind, 3, False, CORPUS["tokenizer"]) for kind in ("lazy", "softmax"))
    assert tomllib.loads(toml(lazy))["model"]["offset_schedule"] == {"from": 0.0, "to": -1.0, "steps": 0.35}
    assert lazy.pop("model") != softmax.pop("model")
    assert lazy["training"].pop("output") != softmax["training"].pop("output")
    assert lazy == softmax and lazy["training"]["steps"] == 20 and lazy["training"]["seed"] == 3


@pytest.mark.parametrize(
    ("tokenizer", "data"),
    [
        ({"bos_id": 1, "eos_id": 2}, {}),
        ({"bos_id": -1, "eos_id": 2}, {"bos_per_document": False, "eos_per_document": True}),
        ({"bos_id": -1, "eos_id": -1}, {"bos_per_document": False, "eos_per_document": False}),
    ],
)
def test_document_separators_depend_on_the_tokenizer(arguments, tokenizer, data):
    found = training(checked(arguments), "lazy", 1, False, tokenizer)["data"]
    assert found == {"corpus": Path("corpus")} | data


@pytest.mark.parametrize(
    ("gpu", "change", "size"),
    [
        (True, {"seq_len": 2048, "batch_tokens": 131072, "tokens": "1M"}, 16),
        (False, {"seq_len": 2048, "batch_tokens": 131072, "tokens": "1M"}, 2),
        (True, {"seq_len": 512, "batch_tokens": 512 * 7}, 7),
        (True, {"batch_size": 4}, 4),
    ],
)
def test_micro_batches_divide_a_step(arguments, gpu, change, size):
    assert micro_batch(checked(arguments, gpu, **change)) == size


def test_prompts_match_the_ids_of_the_shards(lazy_binary, tmp_path):
    text = "The cat sat near the mat. " * 40
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text)
    command = [lazy_binary, "data", "prepare", "a.txt", "b.txt", "--output", "corpus", "--tokenizer", "bytes"]
    command += ["--validation", "0.001", "--seed", "1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert bytes(shard_ids(tmp_path / "corpus", "train", 3000)) == (text * 4).encode()[:3000]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("uptrain none --text book.txt --tokens 200k --output out", "none"),
        ("uptrain model --text none.txt --tokens 200k --output out", "none.txt"),
        ("uptrain model --text book.txt --output out", "--tokens"),
        ("uptrain {lazy} --text book.txt --tokens 200k --output out", "elastic"),
        ("uptrain --report-only model", "results.json"),
        ("uptrain model --device tpu", "tpu"),
    ],
)
def test_program_gives_a_one_line_error_and_writes_nothing(arguments, root, lazy_binary, line, named):
    command = [lazy_binary, *line.format(lazy=root / "tests/compatibility/v0.1/lazy/model").split()]
    environment = os.environ | {"LAZY_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and not Path("out").exists()
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("lazy") and named in lines[0]
    assert len(lines) == 1 or lines[1].startswith("Run `lazy")
