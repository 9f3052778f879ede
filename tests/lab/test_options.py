"""Tests of `lazy uptrain`: the checks of its arguments and of its output folder, and the configuration of a
training."""

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
from lazy_lab.options import (
    check_corpus,
    check_folder,
    forget_training_settings,
    parse,
    parse_count,
    set_measurement_sizes,
)
from lazy_lab.plan import Plan, documents_with, micro_batch, shard_ids, toml, training

CORPUS = {
    "tokenizer": {"bos_id": 1, "eos_id": 2},
    "splits": {"train": {"tokens": 10000, "shards": []}, "validation": {"tokens": 2000, "shards": []}},
}


@pytest.fixture
def arguments(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "book.txt").write_text("a text")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "corpus.json").write_text(json.dumps(CORPUS))
    return {
        "program": "lazy",
        "line": "lazy uptrain",
        "threads": 0,
        "model": str(tmp_path / "model"),
        "text": [],
        "corpus": str(tmp_path / "corpus"),
        "text_bytes": 0,
        "max_document": 0,
        "validation": 0.02,
        "tokens": "10k",
        "output": str(tmp_path / "out"),
        "control": True,
        "seeds": 1,
        "seed": [],
        "window": 16,
        "to": -1.0,
        "anneal": 0.35,
        "seq_len": 64,
        "batch_tokens": 512,
        "batch_size": 0,
        "lr": 3e-4,
        "weight_decay": 0.0,
        "tasks": [],
        "data": "",
        "lengths": ["1k"],
        "device": "cpu",
        "dtype": "fp32",
        "gpus": 1,
        "only": [],
        "heldout_tokens": "",
        "limit": 0,
        "samples": 0,
        "dry_run": False,
    }


@pytest.mark.parametrize(
    ("text", "number"), [("30M", 30_000_000), ("1.5b", 1_500_000_000), ("500k", 500_000), ("17", 17), ("2G", 2 * 10**9)]
)
def test_token_counts_are_parsed(text, number):
    assert parse_count(text, "--tokens") == number


def test_lengths_count_in_powers_of_two():
    assert [parse_count(text, "--lengths", True) for text in ("1k", "32k", "1000")] == [1024, 32768, 1000]


@pytest.mark.parametrize("text", ["", "M", "0", "-1", "1.5", "3 M M", "1e6", "nan"])
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
        ({"corpus": ""}, "--text"),
        ({"text": ["book.txt"]}, "--corpus"),
        ({"corpus": "", "text": ["none.txt"]}, "none.txt"),
        ({"corpus": "model"}, "corpus.json"),
        ({"tasks": ["piqa"]}, "--data"),
        ({"tasks": ["piqa"], "data": "none"}, "--data"),
        ({"batch_tokens": 500}, "--batch-tokens"),
        ({"batch_size": 3}, "--batch-size"),
        ({"gpus": 3}, "--batch-size"),
        ({"seed": [2, 2]}, "--seed"),
        ({"lengths": ["long"]}, "--lengths"),
        ({"tokens": "511"}, "--tokens"),
        ({"tokens": "9" * 400}, "--tokens"),
        ({"to": None}, "--to"),
        ({"lr": math.inf}, "--lr"),
        ({"weight_decay": None}, "--weight-decay"),
        ({"heldout_tokens": "63"}, "--heldout-tokens"),
        ({"heldout_tokens": "all"}, "--heldout-tokens"),
    ],
)
def test_wrong_arguments_are_named_in_the_error(arguments, tmp_path, change, named, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        parse(arguments | change)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_tokens_beyond_the_bytes_of_the_text_are_rejected_at_once(arguments, tmp_path):
    text = {"corpus": "", "text": [str(tmp_path / "book.txt")]}
    with pytest.raises(UserError, match="--tokens"):
        parse(arguments | text | {"text_bytes": 2559, "tokens": "10240"})
    parse(arguments | text | {"text_bytes": 2560, "tokens": "10240"})
    parse(arguments | text | {"text_bytes": 0, "tokens": "1g"})  # the size of compressed text is unknown


def test_number_of_epochs_is_checked(arguments):
    assert check_corpus(parse(arguments))[0] == pytest.approx(20 * 512 / 10000)
    with pytest.raises(UserError, match="--tokens"):
        check_corpus(parse(arguments | {"tokens": "50k"}))
    with pytest.raises(UserError, match="validation"):
        check_corpus(parse(arguments | {"seq_len": 4096, "batch_tokens": 4096}))


@pytest.mark.parametrize(
    ("change", "option"),
    [({"lr": 1e-3}, "--lr"), ({"tokens": "11k"}, "--tokens"), ({"window": 8}, "--window"), ({"to": -0.5}, "--to")],
)
def test_folder_rejects_other_training_arguments(arguments, change, option):
    check_folder(parse(arguments))
    check_folder(parse(arguments | {"seeds": 3, "control": False, "lengths": ["2k"]}))
    with pytest.raises(UserError, match=option):
        check_folder(parse(arguments | change))


def test_rejected_settings_can_be_changed_until_a_training_starts(arguments, tmp_path):
    check_folder(parse(arguments | {"tokens": "50k"}))
    forget_training_settings(parse(arguments))
    with pytest.raises(UserError, match="--window"):
        check_folder(parse(arguments | {"window": 8}))
    check_folder(parse(arguments | {"seq_len": 32}))
    with pytest.raises(UserError, match="--seq-len"):
        check_folder(parse(arguments))
    (tmp_path / "out" / "runs").mkdir()
    forget_training_settings(parse(arguments))
    with pytest.raises(UserError, match="--seq-len"):
        check_folder(parse(arguments))


def test_folder_rejects_another_model_or_corpus(arguments, tmp_path):
    check_folder(parse(arguments))
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(UserError, match="model"):
        check_folder(parse(arguments))
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="--corpus|--text"):
        check_folder(parse(arguments | {"corpus": "", "text": [str(tmp_path / "book.txt")]}))


def test_two_processes_can_create_a_folder_concurrently(arguments, tmp_path, monkeypatch):
    options, record = parse(arguments), tmp_path / "out" / "uptrain.json"
    listed = Path.iterdir

    def other_process_first(folder):
        if folder == options.output and not record.exists():
            monkeypatch.setattr(Path, "iterdir", listed)
            check_folder(options)
            (options.output / "steps").mkdir()
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", other_process_first)
    check_folder(options)
    with pytest.raises(UserError, match="--lr"):
        check_folder(parse(arguments | {"lr": 1e-3}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"a"', "{}", '{"splits": {}}'])
def test_damaged_files_are_named_in_the_error(arguments, tmp_path, text):
    options = parse(arguments)
    (tmp_path / "corpus" / "corpus.json").write_text(text)
    with pytest.raises(UserError, match="corpus.json"):
        check_corpus(options)
    check_folder(options)
    (options.output / "uptrain.json").write_text(text)
    with pytest.raises(UserError, match="out"):
        check_folder(options)


def test_full_disk_gives_a_one_line_error(arguments, monkeypatch, capsys, tmp_path):
    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(uptrain, "program_json", lambda *_: {"config": {}})
    monkeypatch.setattr(Path, "write_text", full)
    assert uptrain.main(arguments | {"report_only": ""}) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "uptrain.json" in errors
    assert list((tmp_path / "out").iterdir()) == []


def test_training_errors_are_found_before_the_measurements(arguments):
    options = parse(arguments)
    (options.output / "steps").mkdir(parents=True)
    (options.output / "steps" / "bos-ids.json").write_text('{"ids": [1]}')
    set_measurement_sizes(options, gpu=False)
    steps = Plan(options, False, 256, CORPUS["splits"]).steps()
    assert steps[0].command[0] == "train"


def test_measurements_are_small_on_a_cpu(arguments):
    sizes = ("heldout_tokens", "limit", "samples", "lengths")

    def found(gpu, **change):
        options = parse(arguments | change)
        set_measurement_sizes(options, gpu)
        return [getattr(options, name) for name in sizes]

    assert found(True, lengths=[]) == [0, 0, 64, [1024, 8192, 32768]]
    assert found(False, lengths=[]) == [4096, 100, 8, [256, 1024]]
    assert found(False, tokens="1M")[0] == 100_000
    given = {"heldout_tokens": "2k", "limit": 3, "samples": 5, "lengths": ["2k"]}
    assert found(False, **given) == found(True, **given) == [2000, 3, 5, [2048]]


def write_shard(path, lengths):
    """Writes a shard with documents of the given lengths, without the checksums, which lazy_lab does not read."""
    starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    size = 2 * starts[-1] + -2 * starts[-1] % 8
    header = bytearray(128)
    struct.pack_into("<I", header, 16, 2)
    struct.pack_into("<QQ", header, 24, starts[-1], len(lengths))
    struct.pack_into("<QQ", header, 72, 128, 128 + size)
    path.write_bytes(bytes(header) + bytes(size) + struct.pack(f"<{len(starts)}Q", *starts))


def test_documents_are_counted_until_they_have_enough_tokens(arguments, tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "corpus.json").write_text(json.dumps({"splits": {"validation": {"shards": ["a", "b"]}}}))
    write_shard(corpus / "a", [5, 3])
    write_shard(corpus / "b", [4, 1, 7])
    found = [documents_with(corpus, "validation", tokens) for tokens in (1, 5, 6, 8, 9, 12, 13, 14, 20, 100)]
    assert found == [1, 1, 2, 2, 3, 3, 4, 5, 5, 5]


def test_limits_reach_the_commands_and_the_records(arguments, tmp_path):
    write_shard(tmp_path / "corpus" / "shard", [600, 600, 800])
    corpus = CORPUS | {"splits": CORPUS["splits"] | {"validation": {"tokens": 2000, "shards": ["shard"]}}}
    (tmp_path / "corpus" / "corpus.json").write_text(json.dumps(corpus))
    small = {"heldout_tokens": "640", "limit": 7, "samples": 3, "tasks": ["piqa"], "data": str(tmp_path)}
    options = parse(arguments | small)
    (options.output / "steps").mkdir(parents=True)
    (options.output / "steps" / "bos-ids.json").write_text('{"ids": [1]}')
    set_measurement_sizes(options, gpu=False)
    steps = {step.kind: step for step in Plan(options, False, 256, corpus["splits"]).steps()}
    expected = {
        "heldout": ("--limit", 10),
        "positions": ("--limit", 2),
        "tasks": ("--limit", 7),
        "sinks": ("--samples", 3),
    }
    for kind, (option, number) in expected.items():
        command = steps[kind].command
        assert command[command.index(option) + 1] == str(number), kind
        assert steps[kind].inputs[option.removeprefix("--")] == number, kind
    # If the whole split is measured, the records are the same as without the option.
    options = parse(arguments | {"heldout_tokens": "2000"})
    set_measurement_sizes(options, gpu=True)
    steps = {step.kind: step for step in Plan(options, True, 256, corpus["splits"]).steps()}
    assert "limit" not in steps["heldout"].inputs and "--limit" not in steps["positions"].command


def test_unrelated_folders_are_not_changed(arguments, tmp_path):
    with pytest.raises(UserError, match="--output"):
        check_folder(parse(arguments | {"output": str(tmp_path)}))
    with pytest.raises(UserError, match="--output"):
        check_folder(parse(arguments | {"output": str(tmp_path / "book.txt")}))


def test_both_trainings_differ_only_in_model_and_folder(arguments):
    options = parse(arguments)
    lazy, softmax = (training(options, kind, 3, False, False, CORPUS["tokenizer"]) for kind in ("lazy", "softmax"))
    assert tomllib.loads(toml(lazy))["model"]["offset_schedule"] == {"from": 0.0, "to": -1.0, "steps": 0.35}
    assert lazy["model"] != softmax["model"] and lazy["training"].pop("output") != softmax["training"].pop("output")
    assert {key: value for key, value in lazy.items() if key != "model"} == {
        key: value for key, value in softmax.items() if key != "model"
    }
    assert lazy["training"]["steps"] == 20 and lazy["training"]["seed"] == 3


@pytest.mark.parametrize(
    ("tokenizer", "data"),
    [
        ({"bos_id": 1, "eos_id": 2}, {}),
        ({"bos_id": -1, "eos_id": 2}, {"bos_per_document": False, "eos_per_document": True}),
        ({"bos_id": -1, "eos_id": -1}, {"bos_per_document": False, "eos_per_document": False}),
    ],
)
def test_document_separators_depend_on_the_tokenizer(arguments, tokenizer, data):
    found = training(parse(arguments), "lazy", 1, False, False, tokenizer)["data"]
    assert {key: value for key, value in found.items() if key != "corpus"} == data


def test_micro_batches_divide_a_step(arguments):
    options = parse(arguments | {"seq_len": 2048, "batch_tokens": 131072, "tokens": "1M"})
    assert (micro_batch(options, True), micro_batch(options, False)) == (16, 2)
    assert micro_batch(parse(arguments | {"seq_len": 512, "batch_tokens": 512 * 7}), True) == 7
    assert micro_batch(parse(arguments | {"batch_size": 4}), True) == 4


def test_prompts_match_the_ids_of_the_shards(lazy_binary, tmp_path):
    text = "The cat sat near the mat. " * 40
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text(text)
    corpus = tmp_path / "corpus"
    command = [lazy_binary, "data", "prepare", tmp_path / "a.txt", tmp_path / "b.txt", "--output", corpus]
    subprocess.run(
        [*command, "--tokenizer", "bytes", "--validation", "0.001", "--seed", "1"], check=True, capture_output=True
    )
    ids = shard_ids(corpus, "train", 3000)
    assert bytes(ids) == ((text * 2).encode() * 2)[:3000]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("uptrain none --text book.txt --tokens 1k --output out", 2),
        ("uptrain model --text book.txt --output out", 2),
        ("uptrain --report-only model", 2),
        ("uptrain model --device tpu", 2),
    ],
)
def test_program_gives_a_one_line_error(arguments, lazy_binary, tmp_path, line, code):
    environment = os.environ | {"LAZY_PYTHON": sys.executable}
    done = subprocess.run([lazy_binary, *line.split()], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == code
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("lazy") and (len(lines) == 1 or lines[1].startswith("Run `lazy"))
