"""The files of docs/results/records: schema, agreement with the protocol, and reading and writing."""

import itertools
import json
import math
import random
from pathlib import Path

import pytest
import tomllib

pyarrow = pytest.importorskip("pyarrow")

from lazy_lab import records  # noqa: E402
from lazy_lab.errors import UserError  # noqa: E402

PROTOCOL = tomllib.loads((Path(__file__).parents[2] / "configs/evidence.toml").read_text())
KEYS = {  # study -> {type: keys of a record}; only block E also has the key snapshots
    "evidence": {
        str: "format block cell device dtype date version file",
        int: "seed parameters tokens tokens_per_step steps",
        float: "tokens_per_second",
        bool: "exploratory",
        list: "overrides",
        dict: "protocol configuration model corpus tokenizer training measures seconds",
    },
    "steps": {str: "step kind model device finished file", float: "seconds", dict: "settings inputs values"},
}
KINDS = {"train", "heldout", "lengths", "sinks", "learned", "tasks", "study", "latency"}


@pytest.fixture(scope="module")
def evidence():
    return records.read("evidence")


@pytest.fixture(scope="module")
def steps():
    return records.read("steps")


def test_files_are_small():
    assert sum(path.stat().st_size for path in records.STUDIES.values()) < 3_000_000


@pytest.mark.parametrize("study", records.STUDIES)
def test_records_have_the_keys_of_their_study(study, request):
    expected = {key: kind for kind, keys in KEYS[study].items() for key in keys.split()}
    found = request.getfixturevalue(study)
    assert len({record["file"] for record in found}) == len(found)
    for record in found:
        snapshots = {"snapshots": list} if record.get("block") == "E" else {}
        assert {key: type(value) for key, value in record.items()} == expected | snapshots, record["file"]
        json.dumps(record, allow_nan=False)  # raises an exception for a number that is not finite


def test_evidence_agrees_with_the_protocol(evidence):
    planned = {
        (block, cell, seed)
        for block in PROTOCOL["protocol"]["blocks"]
        for cell, seed in itertools.product(PROTOCOL[block]["cells"], PROTOCOL[block]["seeds"])
    }
    found = [(record["block"], record["cell"], record["seed"]) for record in evidence]
    assert set(found) <= planned
    assert len(set(found)) == len(found)
    for record in evidence:
        block = PROTOCOL[record["block"]]
        overrides = PROTOCOL["protocol"]["overrides"] + block.get("overrides", []) + PROTOCOL["cells"][record["cell"]]
        name = "{block}.{cell}.seed{seed}".format(**record)
        assert record["file"] == f"evidence/{name}.json"
        assert record["protocol"]["version"] == PROTOCOL["protocol"]["version"]
        assert record["exploratory"] == (record["cell"] in block.get("exploratory", [])), name
        assert set(record["overrides"]) >= set(overrides), name
        assert record["configuration"]["training.seed"] == 41 + record["seed"], name
        assert 0 <= record["tokens"] - block["tokens"] < record["tokens_per_step"], name
        assert bool(record.get("snapshots")) == ("snapshot_every" in block), name
        assert set(record["measures"]["sinks"]) == {str(length) for length in PROTOCOL["measures"]["sink_lengths"]}
        lengths = record["measures"]["lengths"]["bos_every_window"]
        assert set(lengths) == {str(length) for length in PROTOCOL["measures"]["lengths"]}


def test_steps_have_a_known_kind_and_the_corpus_of_the_evidence(evidence, steps):
    assert {record["kind"] for record in steps} == KINDS
    corpora = {record["corpus"]["fingerprint"] for record in evidence}
    assert {record["inputs"]["corpus"] for record in steps} == corpora
    for record in steps:
        assert record["file"].startswith(f"evidence/steps/{record['step']}-")
        assert record["values"] and record["seconds"] >= 0


def test_fractions_are_between_zero_and_one(evidence):
    for record in evidence:
        for sinks in (way for length in record["measures"]["sinks"].values() for way in length.values()):
            for name in ("sink_ratio", "sink_1", "alive_fraction"):
                assert 0 <= sinks[name] <= 1, (record["file"], name)
            released = sinks["density"] + sinks["sink_ratio"] + sinks["released_mass"]
            assert released == pytest.approx(1, abs=1e-4), record["file"]
        accuracies = [way["last_word_accuracy"] for way in record["measures"]["lambada"].values()]
        assert all(0 < accuracy < 1 for accuracy in accuracies), record["file"]


def test_writing_is_deterministic_and_exact(tmp_path):
    few = [{"file": f"{n}.json", "x": 0.1 + 0.2, "n": n, "text": "\u00e4", "list": [1 / 3] * 64} for n in range(20)]
    first, second = tmp_path / "first.zst", tmp_path / "second.zst"
    records.write(first, few)
    records.write(second, random.Random(1).sample(few, len(few)))
    assert first.read_bytes() == second.read_bytes()
    assert records.read(first) == sorted(few, key=lambda record: record["file"])
    records.write(first, few, digits=3)
    assert records.read(first)[0] == few[0] | {"list": [0.333] * 64}
    with pytest.raises(UserError, match="several of 3.json"):
        records.write(first, [*few, few[3]])
    with pytest.raises(ValueError):
        records.write(first, [{"file": "x", "loss": math.nan}])


def test_wrong_files_are_reported(tmp_path):
    with pytest.raises(UserError, match="evidence, steps"):
        records.read("evidenc")
    path = tmp_path / "wrong.zst"
    path.write_bytes(b"not zstd")
    with pytest.raises(UserError, match="zstd"):
        records.read(path)
    for line in ("[1]", '{"seed": 1}', "{"):
        path.write_bytes(pyarrow.Codec("zstd").compress(f"{json.dumps({'file': 'a'})}\n{line}\n".encode()))
        with pytest.raises(UserError, match="line 2"):
            records.read(path)
