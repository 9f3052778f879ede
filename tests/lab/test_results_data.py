"""The tables of the records, compared with numbers that are read from the records directly."""

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from lazy_lab import records  # noqa: E402
from lazy_lab.errors import UserError  # noqa: E402
from lazy_lab.results_data import by_seed, frame, rows  # noqa: E402


@pytest.fixture(scope="module")
def evidence():
    return frame("evidence")


@pytest.fixture(scope="module")
def steps():
    return frame("steps")


def only(table, **conditions):
    """Returns the value of the only row with these columns."""
    for column, value in conditions.items():
        table = table[table[column] == value]
    assert len(table) == 1, table
    return table["value"].iloc[0]


def test_rows_of_a_small_record_by_hand():
    record = {
        "heldout": {"loss": 3.0, "by_group": [2.0, 4.0], "whole_split": True},
        "sinks": {"64": {"no_bos": {"sink_ratio": 0.1, "by_head": {"sink_ratio": [[0.0, 0.2], [0.1, 0.3]]}}}},
        "lengths": {"bos_every_window": {"8": {"positions": [1, 2, 9], "by_position": [5.0, 4.0]}}},
        "training": {"tokens": [10, 20], "loss": [9.0, 8.0]},
        "post_hoc": {"collapse": {"cosine": [0.1, 0.2]}},
        "activations": {"post_hoc": {"residual": {"first_position": {"rms": [0.5]}}}},
        "texts": {"loss": [1.0, 2.0]},
        "study": {"loss": [1.0, 2.0]},
    }
    assert list(rows(record, {})) == [
        {"measure": "heldout.loss", "value": 3.0},
        {"length": 64, "bos": "no_bos", "measure": "sinks.sink_ratio", "value": 0.1},
        {"length": 64, "bos": "no_bos", "layer": 0, "measure": "sinks.sink_ratio", "value": 0.1},
        {"length": 64, "bos": "no_bos", "layer": 1, "measure": "sinks.sink_ratio", "value": 0.2},
        {"bos": "bos", "length": 8, "position": 1, "measure": "lengths.by_position", "value": 5.0},
        {"bos": "bos", "length": 8, "position": 2, "measure": "lengths.by_position", "value": 4.0},
        {"trained": 10, "measure": "training.loss", "value": 9.0},
        {"trained": 20, "measure": "training.loss", "value": 8.0},
        {"variant": "post_hoc", "layer": 0, "measure": "collapse.cosine", "value": 0.1},
        {"variant": "post_hoc", "layer": 1, "measure": "collapse.cosine", "value": 0.2},
        {"variant": "post_hoc.first_position", "layer": 0, "measure": "activations.residual.rms", "value": 0.5},
        {"measure": "study.loss", "value": 1.5},
    ]


def test_values_of_a_training(evidence):
    record = records.find(records.read("evidence"), block="E", cell="lazy", seed=2)[0]
    table = evidence[evidence["file"] == record["file"]]
    final = table[table["trained"] == record["tokens"]]
    measures = record["measures"]
    assert only(final, measure="heldout.loss", variant="") == measures["heldout"]["loss"]
    word = only(table, measure="lambada.last_word_accuracy", bos="no_bos")
    assert word == measures["lambada"]["no_bos"]["last_word_accuracy"]
    heads = measures["sinks"]["512"]["bos"]["by_head"]["sink_ratio"][7]
    layer = only(final, measure="sinks.sink_ratio", bos="bos", length=512, layer=7)
    assert layer == pytest.approx(sum(heads) / len(heads))
    snapshot = record["snapshots"][3]
    excess = only(table, measure="snapshots.sinks.excess", bos="bos", length=64, trained=snapshot["tokens"])
    assert excess == snapshot["sinks"]["64"]["bos"]["excess"]
    curve = table[table["measure"] == "training.validation.loss"]
    assert curve["value"].tolist() == record["training"]["validation"]["loss"]


def test_values_of_steps(steps):
    found = records.read("steps")
    record = records.find(found, step="gated.seed2.heldout")[0]
    loss = by_seed(steps, model="gated", tokens=200_015_872, measure="heldout.loss")[2]
    assert loss == pytest.approx(sum(record["values"]["loss"]) / len(record["values"]["loss"]), rel=1e-12)
    record = records.find(found, step="deltanet.seed2.tasks-piqa")[0]
    accuracy = by_seed(steps, model="deltanet", measure="tasks.piqa.acc.value")
    assert accuracy[2] == record["values"]["piqa"]["acc"]["value"]
    assert set(by_seed(steps, model="lazy", tokens=100_007_936, measure="lengths.heldout", length=8192)) == {1, 2}


def test_means_by_seed(evidence):
    pair = [by_seed(evidence, block="B", model=model, measure="heldout.loss") for model in ("lazy", "elastic")]
    both = by_seed(evidence, block="B", model=["lazy", "elastic"], measure="heldout.loss")
    assert both == {seed: pytest.approx((pair[0][seed] + pair[1][seed]) / 2) for seed in (1, 2, 3)}
    assert by_seed(evidence, block="B", model="lazy", measure="sinks.excess", bos="bos") == {}


def test_every_record_has_rows(evidence, steps):
    for study, table in (("evidence", evidence), ("steps", steps)):
        with_numbers = {record["file"] for record in records.read(study) if record.get("kind") != "learned"}
        assert with_numbers <= set(table["file"])
    with pytest.raises(UserError, match="evidence or steps"):
        frame("tables")
