"""Tests that the pages of docs/results are up to date with the records, and that their numbers are equal to values that
the tests compute separately."""

import math
import re
import shutil
from pathlib import Path

import pytest

for package in ("jinja2", "matplotlib", "pandas", "pyarrow", "scipy", "statsmodels"):
    pytest.importorskip(package, reason=f"the package {package} is not installed")

from lazy_lab import records
from lazy_lab.errors import UserError
from lazy_lab.report import write_report
from lazy_lab.results import __main__ as command
from lazy_lab.results import data, details, overview, table1, text
from lazy_lab.statistics import Interval, detectable

PAGES = Path(__file__).parents[2] / "docs/results"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    command.write_pages(folder)
    return folder


def test_pages_and_pictures_match_the_records(made):
    files = sorted(path.name for path in made.iterdir())
    assert [name for name in files if (made / name).read_bytes() != (PAGES / name).read_bytes()] == []
    pages = {path.name: path.read_text() for path in made.glob("*.md")}
    assert sorted(pages) == ["README.md", "details.md", "figures.md", "rivals.md", "table1.md"]
    shown = {name for page in pages.values() for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)}
    assert shown == {name for name in files if name.endswith(".svg")}
    for name, page in pages.items():
        assert "nan" not in page.lower().split(), name


@pytest.mark.parametrize("folder", sorted((PAGES / "uptraining").iterdir()), ids=lambda folder: folder.name)
def test_uptraining_report_matches_its_results(folder, tmp_path):
    shutil.copy(folder / "results.json", tmp_path)
    write_report(tmp_path)
    assert (tmp_path / "report.md").read_text() == (folder / "report.md").read_text()


def evidence(block, cell, path):
    """Returns {seed: value} of a model, read from the records without lazy_lab.results."""
    found = {}
    for record in records.find(records.read("evidence"), block=block, cell=cell):
        value = record["measures"]
        for key in path.split("/"):
            value = value[key]
        found[record["seed"]] = value
    return found


def test_main_effect_matches_a_direct_computation():
    pairs = (("softmax", "elastic"), ("softmax-bias", "elastic-bias"), ("softmax-base150k", "elastic-base150k"))
    path = "lambada/bos_every_window/last_word_accuracy"
    columns = [[evidence("B", cell, path) for cell in pair] for pair in (*pairs, ("softmax-bias-base150k", "lazy"))]
    differences = [100 * sum(lazy[seed] - softmax[seed] for softmax, lazy in columns) / 4 for seed in (1, 2, 3)]
    mean = sum(differences) / 3
    error = math.sqrt(sum((value - mean) ** 2 for value in differences) / 2 / 3)
    half = 4.302652729911275 * error  # 97.5 % quantile of Student's t with two degrees of freedom
    expected = f"+{mean:.1f} [+{mean - half:.1f}, +{mean + half:.1f}]"
    assert text.level(data.LAMBADA, data.NORMALIZER) == expected == "+3.2 [+2.8, +3.6]"


def test_interaction_is_half_of_the_difference_of_two_effects():
    def effect_of_elastic(seed, *names):
        losses = [evidence("B", name, "heldout/loss")[seed] for name in names]
        return (losses[2] + losses[3] - losses[0] - losses[1]) / 2

    biased = ("softmax-bias", "softmax-bias-base150k", "elastic-bias", "lazy")
    plain = ("softmax", "softmax-base150k", "elastic", "elastic-base150k")
    values = [(effect_of_elastic(seed, *biased) - effect_of_elastic(seed, *plain)) / 2 for seed in (1, 2, 3)]
    header, _, row, *_ = (line.split(" | ") for line in details.effects().splitlines())
    assert row[header.index("Elastic-Softmax x bias")].split()[0] == f"{sum(values) / 3:+.3f}"


def test_steps_of_recipes_are_means_over_their_texts():
    losses = records.find(records.read("steps"), step="gated.seed2.heldout")[0]["values"]["loss"]
    assert data.LOSS.of("gated@200")[2] == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert list(data.LOSS.of("gated@200").index) == [1, 2, 3]
    assert list(data.LOSS.of("softmax@100").index) == [1, 2]  # seeds of 200M-token models are not mixed in


def test_measures_by_hand():
    long, short = (evidence("E", "lazy", f"lengths/bos_every_window/{n}/loss") for n in (2048, 512))
    assert dict(overview.RISES[2048].of("E.lazy")) == {seed: long[seed] - short[seed] for seed in long}
    ratios = evidence("B", "lazy", "sinks/512/bos/by_head/sink_ratio")[1]
    expected = 100 * sum(sum(layer) / len(layer) for layer in ratios[9:12]) / 3
    assert overview.LATE.of("B.lazy")[1] == pytest.approx(expected, rel=1e-12)
    first, others = (evidence("B", "lazy", f"sinks/512/bos/{name}") for name in ("sink_ratio", "density"))
    expected = {seed: 100 * first[seed] / (first[seed] + others[seed]) for seed in first}
    assert dict(overview.FIRST_SHARE.of("B.lazy")) == pytest.approx(expected, rel=1e-12)


def test_times_by_hand():
    found = records.find(records.read("steps"), step="lazy.model_latency")[0]["values"]
    lazy, softmax = (found[name]["32768"]["prefill_ms"] for name in ("as trained", "softmax-rope150k"))
    speed = overview.speed()
    assert speed["ratios"]["prefill"] == pytest.approx(lazy["median"] / softmax["median"], rel=1e-12)
    low, high = lazy["quartiles"]
    assert f"| {lazy['median']:.2f} [{low:.2f}, {high:.2f}] |" in speed["table"].splitlines()[-1]


def test_sentences_without_figures_agree_with_the_intervals():
    contains_zero = lambda interval: interval.low <= 0 <= interval.high
    for models in (data.LAZY, data.LONG):  # statement of the page: "no difference is detectable"
        assert all(contains_zero(rise.interval(models)) for rise in overview.RISES.values())
    for measure in (overview.FIRST_SHARE, overview.LATE):
        assert contains_zero(measure.interval(data.NORMALIZER))
    for model in ("off-by-one@200", "learned-sink@200"):
        assert contains_zero(data.LOSS.interval([model, "B.softmax"]))
    for measure in (data.LOSS, data.EXCESS, overview.RISES[2048]):  # statement: "smaller than what three seeds detect"
        assert abs(measure.interval(data.NORMALIZER).mean) < detectable(measure.interval(data.NORMALIZER))
    lowest = sorted(data.COMPARED, key=lambda model: data.LOSS.of(model).mean())[:2]
    assert lowest == ["gated@200", overview.HALF[0]]  # statement: "two other models have the lowest losses"
    for measure in (overview.EARLY, overview.NINTH):  # statement: "in layers 1 to 9 the weight falls"
        assert measure.interval(data.NORMALIZER).high < 0


def test_order_of_table1_counts_pairs():
    assert table1.same_order({"lazy": (1.0,), "softmax": (2.0,)}) == (1, 1)  # both rank Lazy first
    assert table1.same_order({"lazy": (2.0,), "softmax": (1.0,)}) == (0, 1)


def test_claims_have_one_holm_family():
    rows = [line.strip("| ").split(" | ") for line in overview.claims().splitlines()[2:]]
    assert len(rows) == 6
    assert {row[3] for row in rows if float(row[2]) >= 0.05} == {"open"}
    assert [row[3] for row in rows if float(row[2]) < 0.05] == ["refuted", "reproduced"]


def test_estimates_as_text():
    assert text.estimate(Interval(0.12345, 3, 0.1, 0.2)) == "0.123 [0.100, 0.200]"
    assert text.estimate(Interval(0.5, 1), signed=True) == "+0.500 (1)"
    assert text.estimate(Interval(-0.00001, 2, -0.1, 0.0)) == "0.000 [-0.100, 0.000]"
    assert text.estimate(None) == ""


def test_check_names_pages_that_differ_or_are_unknown(made, tmp_path, capsys):
    (tmp_path / "details.md").write_text("old")
    assert command.main(["--check", "--output", str(tmp_path), "details"]) == 1
    assert f"{tmp_path / 'details.md'}: differs" in capsys.readouterr().err
    (tmp_path / "details.md").write_bytes((made / "details.md").read_bytes())
    assert command.main(["--check", "--output", str(tmp_path), "details"]) == 0
    with pytest.raises(UserError, match="README.*found table9"):
        command.main(["--output", str(tmp_path), "table9"])
