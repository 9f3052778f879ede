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
EVIDENCE_KEYS = {
    "format": str,
    "protocol": dict,
    "block": str,
    "cell": str,
    "seed": int,
    "exploratory": bool,
    "overrides": list,
    "configuration": dict,
    "model": dict,
    "parameters": int,
    "tokens": int,
    "tokens_per_step": int,
    "steps": int,
    "corpus": dict,
    "tokenizer": dict,
    "device": str,
    "dtype": str,
    "date": str,
    "version": str,
    "tokens_per_second": float,
    "training": dict,
    "measures": dict,
    "snapshots": list,
    "seconds": dict,
    "file": str,
}
STEP_KEYS = {
    "step": str,
    "kind": str,
    "model": str,
    "settings": dict,
    "inputs": dict,
    "device": str,
    "finished": str,
    "seconds": float,
    "values": dict,
    "file": str,
}
KINDS = {"train", "heldout", "lengths", "sinks", "learned", "tasks", "study", "latency"}


@pytest.fixture(scope="module")
def evidence():
    return records.read("evidence")


@pytest.fixture(scope="module")
def steps():
    return records.read("steps")


def schema_errors(record, keys):
    """Returns the keys of a record that are missing, unexpected, or of another type than in `keys`."""
    wrong = [key for key in keys.keys() ^ record.keys() if (key, record.get("snapshots")) != ("snapshots", None)]
    return wrong + [key for key in keys.keys() & record.keys() if type(record[key]) is not keys[key]]


def numbers(value):
    """Yields every number of a JSON value."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, (int, float)):
        yield value


def test_files_are_small():
    assert sum(records.path_of(study).stat().st_size for study in records.STUDIES) < 3_000_000


@pytest.mark.parametrize(("study", "keys"), [("evidence", EVIDENCE_KEYS), ("steps", STEP_KEYS)])
def test_records_have_the_keys_of_their_study(study, keys, request):
    found = request.getfixturevalue(study)
    assert {record["file"]: wrong for record in found if (wrong := schema_errors(record, keys))} == {}
    assert len({record["file"] for record in found}) == len(found)
    for record in found:
        assert all(map(math.isfinite, numbers(record))), record["file"]


def test_the_schema_finds_wrong_records(evidence):
    record = evidence[0]
    assert schema_errors(record | {"seed": "1"}, EVIDENCE_KEYS) == ["seed"]
    assert schema_errors({key: record[key] for key in record if key != "measures"}, EVIDENCE_KEYS) == ["measures"]
    assert schema_errors(record | {"note": ""}, EVIDENCE_KEYS) == ["note"]


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


def test_find_selects_by_nested_values(evidence):
    lazy = records.find(evidence, block="E", cell="lazy")
    assert [record["seed"] for record in lazy] == [1, 2]
    assert records.find(evidence, block=["B", "E"], cell="lazy", measures__heldout__whole_split=True, seed=1) != []
    assert records.find(evidence, measures__no_such_key=1) == []


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
