"""The page of `lazy report` for synthetic run folders."""

import fcntl
import json
import math
import re
import shutil
import sys
from statistics import fmean

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

import torch  # noqa: E402
from html_page import checked_text, dotted, plain, replaced, section  # noqa: E402
from lazy_lab import run_report  # noqa: E402
from lazy_lab.errors import UserError  # noqa: E402
from lazy_lab.run_report import curves, page, text  # noqa: E402
from lazy_lab.run_report.headline import headline  # noqa: E402
from lazy_lab.run_report.runs import load_run  # noqa: E402
from lazy_lab.run_report.weights import learned_parameters  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from synthetic_run import write_run  # noqa: E402


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Returns the folders of a Lazy run and a softmax run, and the HTML page about both runs."""
    parent = tmp_path_factory.mktemp("pair")
    folders = write_run(parent), write_run(parent, "softmax", lazy=False, seed=2)
    return *folders, render([load_run(folder) for folder in reversed(folders)])


def render(runs):
    """Returns the page about the runs and checks its HTML."""
    found = page.render(runs, "lazy report runs/lazy runs/softmax", "2026-01-02", "0.1.0")
    checked_text(found)
    return found


def test_page_of_two_runs_has_all_sections(pair):
    lazy, softmax, page = pair
    for name in "curves results weights layers offsets distance-bias maps samples run".split():
        assert f'<section id="{name}">' in page
    text = checked_text(page)
    assert "nan" not in text.lower() and "None" not in text
    assert "the <first> alternative" in text and "lazy report runs/lazy runs/softmax" in text
    assert "prefers-color-scheme:dark" in page and 'content="width=device-width' in page
    assert len(page) < 800_000
    assert page == render([load_run(lazy), load_run(softmax)])  # equal runs in any order give equal pages


def test_values_on_the_page_equal_the_records(pair):
    lazy, softmax, page = pair
    results = plain(section(page, "results"))
    assert "Held-out loss nats per token 3.6732 3.6989" in results
    assert "<b>3.6732</b>" in page and "<b>3.6989</b>" not in page
    assert f"Perplexity per token {math.exp(3.6732):.2f} {math.exp(3.6989):.2f}" in results
    assert "per word 612.4 634.9" in results
    assert "Training tokens 2.05M 2.05M" in results and "fastest interval 8.4k 8.4k" in results
    assert "h:mm:ss or m:ss 4:00 4:00" in results  # training time: 1000 steps of 0.24 s
    for name, folder in (("lazy", lazy), ("softmax", softmax)):
        stored = json.loads((folder / "sinks.json").read_text())
        for key, title in (("sink_ratio", "Sink ratio"), ("alive_fraction", "Alive fraction")):
            values = stored["per_head"][key]
            assert text.share(fmean(map(fmean, values))) in results
            table = section(page, "weights").split(f"<h4>{title} of {name}, percent</h4>")[1].split("</table>")[0]
            rows = [re.findall(r"<td>([^<]*)</td>", row) for row in table.split("<tr>")[2:]]
            for row, cells in zip(values, rows, strict=True):
                expected = [100 * value for value in (*row, fmean(row))]
                assert [float(cell) for cell in cells] == pytest.approx(expected, abs=0.051)
        for attention_map in stored["attention_maps"]:
            sink = fmean(row[0] for row in attention_map["weights"])
            assert f"sink {text.share(sink)}" in section(page, "maps")
    assert "layer 0: -1.00, layer 1: -1.25, layer 2: -1.50, layer 3: -1.75" in page  # mean offset tau
    assert "Released mass is 0\u2009% in all layers throughout" in plain(section(page, "layers"))


def test_colors_of_the_maps_equal_the_weights(pair):
    lazy, _, page_text = pair
    stored = json.loads((lazy / "sinks.json").read_text())["attention_maps"][0]
    table = section(page_text, "maps").split("<tbody>")[1].split("</tbody>")[0]
    for row, weights in zip(table.split("<tr>")[1:], stored["weights"], strict=True):
        levels = re.findall(r'<td class="(?:q(\d+)|v)"', row)
        assert levels == ["" if w == 0 else str(math.floor(63 * math.sqrt(w) + 0.5)) for w in weights]
    assert page.map_levels([[0.25, 0.25, 0.0]], merged=True) == [[(2, 32), (1, None)]]


EARLY = (2e6, 2e6)


@pytest.mark.parametrize(
    ("bits", "tokens", "expected"),
    [
        ((1.8, 1.836), EARLY, "vs softmax: 1.800 against 1.836 bits per byte"),
        ((1.8, 1.836), EARLY, "After 2\u2009000\u2009000 training tokens each, Lazy Attention is 0.036 bits per byte"),
        ((1.8, 1.836), EARLY, "better than the compared softmax model on held-out text (2.0 %). An early lead"),
        ((1.8, 1.836), EARLY, "7.4 % on it (H_T / T at 64 tokens); every sample began"),  # (1 + ... + 1/64) / 64
        ((1.8, 1.836), (4e8, 4e8), "on held-out text (2.0 %). Lazy Attention puts"),
        ((1.8, 1.836), (4e8, 8e8), "After 400\u2009000\u2009000 to 800\u2009000\u2009000 training tokens (the runs"),
        ((1.9, 1.836), EARLY, "0.064 bits per byte worse than the compared softmax model on held-out text (3.5 %)."),
        ((1.83602, 1.836), EARLY, "the same loss to the printed digits"),
        ((None, 1.836), EARLY, "3.673 against 3.699 nats per token"),
    ],
)
def test_headline_compares_the_printed_digits(pair, bits, tokens, expected):
    runs = [load_run(folder) for folder in pair[:2]]
    for run, run.values["bits_per_byte"], run.values["tokens"] in zip(runs, bits, tokens):
        run.sinks |= {"length": 64, "bos": True}
    if bits[0] is None:
        del runs[0].values["bits_per_byte"]
    assert expected in " ".join(headline(runs))
    assert headline(runs[1:])[0] == "Softmax: 1.836 bits per byte"
    assert headline([*runs, runs[0]])[0].startswith("3 runs: ")


def test_running_and_stopped_runs_report_their_step(tmp_path):
    folder = write_run(tmp_path, layers=1, maps=())
    shutil.rmtree(folder / "model")
    assert load_run(folder).status == ""  # all 1000 steps are finished
    config = (folder / "config.toml").read_text().replace("steps = 1000", "steps = 3000")
    (folder / "config.toml").write_text(config)
    assert load_run(folder).status == ""  # without a lock file, the run has no status
    (folder / ".lock").touch()
    stopped = load_run(folder).status
    assert stopped == f"stopped at step 1000 of 3000; lazy train {folder / 'config.toml'} --resume continues it"
    with open(folder / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = load_run(folder)
    assert running.status == "running, step 1000 of 3000, 8:00 left"  # 2000 remaining steps of 0.24 s
    assert f"lazy: {running.status}." in plain(render([running]))
    assert any("neither model/ nor a checkpoint" in line for line in running.missing)


def test_missing_files_are_listed(tmp_path):
    for file in "run.json eval.json sinks.json samples.json config.toml log.jsonl".split():
        folder = write_run(tmp_path, layers=1, maps=[(0, 1)], steps=200)
        (folder / file).unlink()
        run = load_run(folder)
        assert [line.split(":")[0] for line in run.missing] == [f"no {file}"]
        assert f"{folder}: {run.missing[0]}" in plain(render([run]))
    (folder / "log.jsonl").write_text('{"step":1,"tokens":10,"loss_metrics/global_avg_loss":9.5}\n{"step":2,')
    assert load_run(folder).curves["loss_metrics/global_avg_loss"] == [(10, 9.5)]  # the incomplete line is skipped


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("log.jsonl", '{"step":1,"tokens":10}\n{"step":\n', ":2: expected JSON, found"),
        ("log.jsonl", '{"step":1}\n', ":1: tokens: expected a number, found nothing"),
        ("log.jsonl", '{"tokens":"ten"}\n', ':1: tokens: expected a number, found "ten"'),
        ("eval.json", '{"results": 3}', ": results: expected an object, found 3"),
        ("config.toml", "[model\n", ": expected TOML, found"),
        ("samples.json", '[{"prompt": "a"}]', ": [0].text: expected text, found nothing"),
        (
            "lengths.json",
            '{"results": {"heldout": {"models": []}}}',
            ": results.heldout.models: expected a list of one",
        ),
        ("model/model.safetensors", "short", ": expected a safetensors file, found"),
        ("model/config.json", "{", ": expected JSON, found"),
    ],
)
def test_damaged_files_are_named(tmp_path, file, content, found):
    folder = write_run(tmp_path, steps=1)
    (folder / file).write_text(content)
    with pytest.raises(UserError) as error:
        load_run(folder)
    assert str(error.value).startswith(f"{folder / file}{found}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["version"], 3, "expected 1 or 2, found 3"),
        (["per_head", "density", 1], [0.5], "expected 6 numbers, found a list"),
        (["per_head", "density"], [[0.5]], "expected 4 rows of numbers, found a list"),
        (["overall", "alive_fraction"], 2, "expected a fraction, found 2"),
        (["overall", "density"], None, "expected a fraction, found null"),
        (["attention_maps", 0, "weights", 3], [1], "expected 4 weights, one per visible key, found a list"),
        (["attention_maps", 0, "weights"], [[1]], "expected 20 rows, one per token, found a list"),
    ],
)
def test_wrong_sink_measures_are_named_with_the_field(tmp_path, pair, path, value, found):
    content = json.loads((pair[0] / "sinks.json").read_text())
    (tmp_path / "sinks.json").write_text(json.dumps(replaced(content, path, value)))
    with pytest.raises(UserError) as error:
        load_run(tmp_path)
    assert str(error.value) == f"{tmp_path / 'sinks.json'}: {dotted(path)}: {found}"


def test_diverged_run_has_gaps(tmp_path):
    folder = write_run(tmp_path, layers=1, maps=())
    lines = (folder / "log.jsonl").read_text().splitlines()
    lines[500:] = [re.sub(r'("(?:loss|validation)_metrics/\w+": )[\d.]+', r"\1null", line) for line in lines[500:]]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "eval.json").write_text('{"results": {"heldout": {"loss,none": null}}}')
    run = load_run(folder)
    assert math.isnan(run.curves["validation_metrics/loss"][-1][1])
    assert run.values["loss"] == pytest.approx(3.55 + 4.6 * math.exp(-500 / 45))  # last finite validation loss
    page = render([run])
    assert "nan" not in plain(page).lower() and "Lnan" not in page and "nan," not in page


def test_curves_are_smoothed_and_thinned():
    reduced = curves.smooth([(step, 2.0) for step in range(100_000)])
    assert 300 <= len(reduced) <= 402 and reduced[-1] == (99_999, pytest.approx(2.0))
    # With a short curve, the window is one step, so the average equals the values.
    assert curves.smooth([(1, 5.0), (3, 4.0)]) == [(1, 5.0), (3, 4.0)]
    # For a curve of 100 points, the average has the decay 1 - 1 / (100 / 25) = 0.75 per step.
    losses = [(step, float(step % 7)) for step in range(100)]
    weights = [0.75 ** (99 - step) for step, _ in losses]
    expected = sum(w * loss for w, (_, loss) in zip(weights, losses)) / sum(weights)
    assert curves.smooth(losses)[-1][1] == pytest.approx(expected)


def test_benchmarks_and_lengths_have_one_row_per_run(tmp_path):
    runs = [load_run(write_run(tmp_path, "softmax", lazy=False, layers=1, maps=(), steps=1))]
    assert 'id="benchmarks"' not in render(runs)
    for name, accuracy in (("one", 0.2571), ("two", 0.2618)):
        folder = write_run(tmp_path, name, lazy=False, layers=1, maps=(), steps=1)
        hellaswag = {"acc,none": 0.9, "acc_norm,none": accuracy, "acc_norm_stderr,none": 0.0044}
        boolq = {"acc,none": 0.378, "acc_stderr,none": "N/A"}
        content = {
            "results": {"hellaswag": hellaswag, "boolq": boolq},
            "average": {"acc": 0.3181, "metrics": {"hellaswag": "acc_norm", "boolq": "acc"}},
            "chance": {"hellaswag": {"random": 0.25}},
        }
        (folder / "eval.json").write_text(json.dumps(content))
        rows = [{"length": n, "loss": 5 + n / 65536} for n in (256, 4096)]
        (folder / "lengths.json").write_text(json.dumps({"results": {"heldout": {"models": [{"lengths": rows}]}}}))
        runs.append(load_run(folder))
    page = render(runs)
    rows = plain(section(page, "benchmarks"))
    assert "hellaswag acc_norm boolq acc mean" in rows
    assert "one 25.7 ±0.4 37.8 31.8" in rows and "two 26.2 ±0.4 37.8 31.8 guessing 25.0 –" in rows
    assert "one 5.004 5.062" in plain(section(page, "lengths"))


def test_many_runs_become_rows_and_equal_names_become_folders(tmp_path):
    runs = [load_run(write_run(tmp_path / str(n), "run", False, layers=1, maps=(), steps=1)) for n in range(7)]
    runs[3].values["loss"] = 1.25
    page = render(runs)
    assert 'class="results wide"' in page and "<td><b>1.2500</b></td>" in page
    assert str(tmp_path / "3" / "run") in plain(section(page, "results"))
    assert 'class="results wide"' not in render(runs[:6])


def test_deep_models_many_maps_and_further_measures(tmp_path):
    maps = [(layer, head) for layer in range(3) for head in (2, 5)] + [(3, 2), (3, 5), (3, 7)]
    folder = write_run(tmp_path, layers=24, heads=16, maps=maps, steps=200)
    further = {
        "weights": {"sink_k": [0.5, 0.25], "entropy": [[1, 2], [4, 2]]},
        "massive": [{"per_sample": 2, "largest": 9000, "median": 0.5, "position": 0, "dimension": 447}] * 2,
        "collapse": [{"cosine": [0.1, 0.3], "effective_rank": [3, 2]}] * 2,
    }
    path = folder / "sinks.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"further": further}))
    run = load_run(folder)
    assert run.sinks["further"]["lines"][1] == ("Pairwise cosine of hidden states", [[0.2, 0.2]], "place", 0)
    page = render([run])
    layers = section(page, "layers")
    assert layers.count('<span class="run">') == 9 and "layer 23</span>" in layers  # legend: the run and 8 of 24 layers
    assert "8 of 24 layers are shown" in plain(layers)
    assert page.count('<input type="radio"') == 4 + 3 and page.count('checked=""') == 2
    further = section(page, "further")
    assert "447" in further and "Sink_k" in further and "after the last layer" in further
    assert "Entropy, % of 4.00 nats" in plain(further) and ">25.0</td>" in further and ">100</td>" in further


def test_parameters_of_converted_models_and_checkpoints(tmp_path):
    folder = tmp_path / "checkpoints" / "step-00000200"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"offset_init": 0.0}')
    offsets, bias = torch.tensor([-1.0, 0.5]), torch.tensor([[1.5, -2.0], [0.25, 8.0]], dtype=torch.bfloat16)
    tensors = {"model.layers.1.self_attn.lazy_tau": offsets, "model.layers.1.self_attn.lazy_distance_bias": bias}
    save_file(tensors, folder / "model-00001-of-00002.safetensors")
    save_file({"exp_avg.model.layers.0.attn.softmax_offset": offsets}, folder / "optimizer.safetensors")
    shutil.copytree(folder, folder.with_name("step-00000100"))
    (folder.with_name("step-00000100") / "config.json").write_text('{"offset_init": 3.0}')
    learned = learned_parameters(tmp_path)
    assert learned["initial"] == 0 and list(learned["tau"]) == [1]
    assert learned["tau"][1].tolist() == [-1.0, 0.5]
    assert learned["distance_bias"][1].tolist() == [[1.5, -2.0], [0.25, 8.0]]
    assert learned_parameters(tmp_path / "absent") == {}


def test_command_writes_the_page_and_reports_errors(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    folder = write_run(tmp_path, layers=1, maps=(), steps=1)
    shutil.copy(folder / "sinks.json", tmp_path / "measured.json")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    for inputs, output, expected in (
        (["lazy"], "page.html", (0, "page.html\n", "")),
        (["measured.json", "lazy/eval.json"], "page.html", (0, "page.html\n", "")),
        (["absent"], "page.html", (2, "", "absent: expected the folder of a run or a file")),
        (["empty"], "page.html", (2, "", "empty: expected the folder of a run with run.json, config.toml")),
        (["other.json"], "page.html", (2, "", "other.json: expected the folder of a run, or the JSON")),
        (["lazy"], "empty", (2, "", "--output empty: expected a file's name, found a folder")),
        (["lazy"], "no/page.html", (2, "", "--output no/page.html: expected a file in an existing folder")),
    ):
        arguments = {"directory": str(tmp_path), "inputs": inputs, "output": output, "line": "L", "version": "0.1.0"}
        code = run_report.main(arguments)
        out, error = capsys.readouterr()
        assert (code, out) == expected[:2]
        assert error.removeprefix("lazy report: ").startswith(expected[2]) and error.count("\n") == (code != 0)
    assert "2 runs" in (tmp_path / "page.html").read_text()
