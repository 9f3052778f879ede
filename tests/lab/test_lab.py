"""Tests of `lazy lab` with a stub in place of the program `lazy`: the steps of a recipe, resumption after an
interruption, and the page."""

import json
import math
import subprocess
import sys
import textwrap

import pytest

for package in ("pandas", "scipy", "matplotlib", "pyarrow"):
    pytest.importorskip(package, reason=f"the package {package} is not installed")

from lazy_lab import lab, records  # noqa: E402
from lazy_lab.lab_steps import demo_text  # noqa: E402
from lazy_lab.recipes import recipes  # noqa: E402
from lazy_lab.recipes.scales import SCALES, configurations  # noqa: E402

# The stub writes the same files as the commands of `lazy`. It reports the loss 3 for softmax and 2.5 for other
# normalizers, plus seed / 100. It logs its calls in calls.txt. It fails if the file `broken` contains a word of its
# command line.
STUB = """
    import json, pathlib, sys, tomllib
    here = pathlib.Path(__file__).parent
    words = sys.argv[1:]
    with open(here / "calls.txt", "a") as log:
        log.write(" ".join(words) + "\\n")
    broken = here / "broken"
    if broken.exists() and any(broken.read_text() in word for word in words):
        sys.exit(1)
    if words[:2] == ["data", "prepare"]:
        corpus = pathlib.Path(words[words.index("--output") + 1])
        corpus.mkdir(parents=True)
        (corpus / "corpus.json").write_text("{}")
    elif words[0] == "train":
        config = tomllib.loads(pathlib.Path(words[1]).read_text())
        model = pathlib.Path(config["training"]["output"]) / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(config))
    else:
        config = json.loads((pathlib.Path(words[2]) / "config.json").read_text())
        softmax = config["model"].get("normalizer", "softmax") == "softmax"
        loss = (3 if softmax else 2.5) + 0.01 * config["training"]["seed"]
        sink = {"density": 0.9, "sink_ratio": 0.05, "excess_at_offsets": 0.04 if softmax else 0.01}
        sinks = {"64": {"bos": {"density": 0}}, "256": {"bos": sink}}
        values = {"heldout": {"loss": loss}, "sinks": sinks}
        pathlib.Path(words[words.index("--json") + 1]).write_text(json.dumps({"values": values}))
"""


@pytest.fixture
def call(tmp_path):
    """Returns a function that runs `lazy lab` with the stub and returns the exit code."""
    stub = tmp_path / "lazy.py"
    stub.write_text(f"#!{sys.executable}\n" + textwrap.dedent(STUB))
    stub.chmod(0o755)
    (tmp_path / "text.txt").write_text("A text.")
    defaults = {"program": str(stub), "line": "lazy lab", "threads": 0, "recipe": "parity", "scale": "tiny"}
    defaults |= {"corpus": "", "text": [str(tmp_path / "text.txt")], "data": "", "domain": [], "model": [], "seeds": 1}
    defaults |= {"only": [], "device": "cpu", "output": str(tmp_path / "out")}
    defaults |= dict.fromkeys(("dry_run", "report", "no_records", "json"), False)

    def run(**arguments):
        return lab.main(defaults | arguments)

    run.folder = tmp_path
    return run


def commands(call):
    """Returns the first word of each command line that the stub received."""
    path = call.folder / "calls.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_page_has_means_intervals_and_paired_differences(call, capsys):
    assert call(seeds=3, json=True) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["model"]: row for row in found["rows"]}
    # Seeds 42, 43, 44: the mean is 3.43, and the half width of the interval is t(0.975, 2) * 0.01 / sqrt(3).
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert rows["softmax"]["held-out loss"] == f"3.430 [{3.43 - half:.3f}, {3.43 + half:.3f}]"
    assert rows["lazy"]["held-out loss"].startswith("2.930 [")
    assert rows["softmax"]["excess sink, points"].startswith("4.00 [")
    [difference] = found["differences"]
    assert difference["difference"] == "lazy - softmax-base150k" and difference["seeds"] == 3
    assert difference["mean and 95 % interval"].startswith("-0.500 [-0.500, -0.500]")
    assert "| lazy | 2.930 [" in (call.folder / "out/tiny/parity.md").read_text()
    written = records.read(call.folder / "out/tiny/parity.jsonl.zst")
    assert [record["file"] for record in written][:3] == ["lazy.seed1", "lazy.seed2", "lazy.seed3"]


def test_repeated_and_interrupted_calls_run_each_step_once(call, capsys):
    assert call(dry_run=True) == 0
    assert commands(call) == []
    assert capsys.readouterr().out.count("to do") == 1 + 3 + 3
    (call.folder / "broken").write_text("softmax-base150k")  # the second training fails
    assert call() == 1
    assert commands(call) == ["data", "train", "train"]
    (call.folder / "broken").unlink()
    assert call() == 0
    everything = ["data", "train", "train", "train", "train", "measure", "measure", "measure"]
    assert commands(call) == everything
    assert call() == 0
    assert commands(call) == everything, "a repeated call must not run finished steps"
    # The recipe `precision` has the same models, so the only additional training is lazy-exact.
    assert call(recipe="precision") == 0
    assert commands(call).count("train") == 4 + 1


def test_only_selects_a_model_and_the_rest_remains(call, capsys):
    assert call(only=["softmax"]) == 0
    assert commands(call) == ["data", "train", "measure"]
    assert "4 steps remain" in capsys.readouterr().err
    assert call(report=True) == 0
    assert commands(call) == ["data", "train", "measure"]
    assert "| softmax | 3.420 |" in (call.folder / "out/tiny/parity.md").read_text()


def test_given_model_replaces_its_training(call):
    model = call.folder / "mine"
    model.mkdir()
    (model / "config.json").write_text('{"model": {}, "training": {"seed": 1}}')
    assert call(model=[f"softmax={model}"]) == 0
    assert commands(call).count("train") == 2  # lazy and softmax-base150k
    assert "| softmax | 3.010 |" in (call.folder / "out/tiny/parity.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"recipe": "pariti"}, ["'pariti'", "did you mean 'parity'"]),
        ({"scale": "huge"}, ["--scale", "tiny, small, paper", "'huge'"]),
        ({"only": ["sotfmax"]}, ["--only", "softmax-base150k", "'sotfmax'"]),
        ({"corpus": "/none"}, ["--corpus", "/none"]),
        ({"scale": "paper"}, ["--scale paper", "--corpus"]),
        ({"model": ["a=/none"]}, ["--model", "/none", "config.json"]),
        ({"domain": ["=x"]}, ["--domain", "NAME=DIR"]),
    ],
)
def test_wrong_input_gives_one_line_that_names_it(call, capsys, arguments, names):
    assert call(**arguments) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("lazy lab: ") and all(name in line for name in names)
    assert commands(call) == []


@pytest.mark.parametrize("scale", SCALES)
def test_every_recipe_can_be_planned(call, capsys, scale):
    for name, recipe in recipes(SCALES[scale]).items():
        models = {model.name for model in recipe.models}
        for difference in recipe.differences:
            assert difference.column.title in [column.title for column in recipe.columns], f"{name}: {difference}"
            assert {difference.over, difference.under} <= models or scale == "tiny", f"{name}: {difference}"
        for model in recipe.models:
            for file in model.configuration(SCALES[scale], 1)[0]:
                assert (configurations() / file).is_file(), f"{name}: {file}"
    (call.folder / "corpus").mkdir()
    (call.folder / "corpus/corpus.json").write_text("{}")
    corpus = str(call.folder / "corpus")
    assert call(recipe="all", scale=scale, corpus=corpus, no_records=True, dry_run=True, json=True) == 0
    plans = {plan["recipe"]: plan for plan in json.loads(capsys.readouterr().out)}
    assert plans.keys() == recipes(SCALES[scale]).keys()
    # Recipes that only use --model or --data have no steps without these options.
    without = {name for name, plan in plans.items() if not plan["steps"]}
    assert without == {"fig3", "cross-domain", "table3", "table4", "table5", "table6", "table7"}


def test_records_replace_trainings_at_scale_small(call, capsys):
    assert call(recipe="rivals", scale="small", seeds=3, json=True) == 0
    assert commands(call) == []
    found = {row["model"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    recorded = records.find(records.read("evidence"), block="B", cell="lazy")
    mean = sum(record["measures"]["heldout"]["loss"] for record in recorded) / 3
    assert found["lazy"]["held-out loss"].startswith(f"{mean:.3f} [")
    assert "<svg" in (call.folder / "out/small/rivals.svg").read_text()


def test_table_of_data_set_sizes(call, capsys):
    (call.folder / "piqa-test.jsonl").write_text("{}\n{}\n\n")
    assert call(recipe="table3", data=str(call.folder), json=True) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["piqa"], row["piqa (paper)"], row["boolq (paper)"]) == ("2", 16113, 15942)
    assert "boolq" not in row


@pytest.mark.slow
def test_real_recipe_at_tiny_scale(lazy_binary, tmp_path):
    if not demo_text():
        pytest.skip("Perl's manual is not installed")
    command = [lazy_binary, "lab", "fig4", "--output", tmp_path, "--device", "cpu", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["rows"]
    assert 3 < float(row["held-out loss"]) < 7.5
    assert {"effective range, tokens", "mean absolute bias of the first layer"} <= row.keys()
    assert "<svg" in (tmp_path / "tiny/fig4.svg").read_text()
