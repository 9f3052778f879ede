"""The page of `lazy report` for synthetic run folders."""

import fcntl
import json
import math
import re
import shutil
import statistics
import sys

import pytest
from html_page import Checker, plain, section
from synthetic_run import safetensors, write_run

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

import numpy  # noqa: E402
from lazy_lab import charts, run_report  # noqa: E402
from lazy_lab.errors import UserError  # noqa: E402
from lazy_lab.run_report import curves, page, text  # noqa: E402
from lazy_lab.run_report.headline import headline  # noqa: E402
from lazy_lab.run_report.runs import load_run  # noqa: E402
from lazy_lab.run_report.weights import learned_parameters  # noqa: E402


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Returns the folders of a Lazy run and a softmax run, and the HTML page about both runs."""
    parent = tmp_path_factory.mktemp("pair")
    folders = write_run(parent), write_run(parent, "softmax", lazy=False, seed=2)
    return *folders, render([load_run(folder) for folder in reversed(folders)])


def render(runs):
    return page.render(runs, "lazy report runs/lazy runs/softmax", "2026-01-02", "0.1.0")


def changed(folder, file, change):
    """Applies the function `change` to the JSON content of a file in the folder, and writes the file again."""
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


def test_page_of_two_runs_is_valid_and_loads_nothing(pair):
    *_, page = pair
    checked = Checker(page)
    for name in "curves results weights layers offsets distance-bias maps samples run".split():
        assert f'<section id="{name}">' in page
    assert not re.search(r"https?://|<script|<link|<img|@import|url\((?!#)", page)
    assert "nan" not in checked.text.lower() and "None" not in checked.text
    assert "the <first> alternative" in checked.text and "lazy report runs/lazy runs/softmax" in checked.text
    assert page.index("prefers-color-scheme:dark") > 0 and 'content="width=device-width' in page
    assert len(page) < 800_000


def test_equal_runs_give_equal_pages(tmp_path):
    folder = write_run(tmp_path, layers=1, heads=2, steps=200)
    assert render([load_run(folder)]) == render([load_run(folder)])


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
            mean = statistics.fmean(v for row in values for v in row)
            assert text.share(mean) in results
            table = section(page, "weights").split(f"<h4>{title} of {name}, percent</h4>")[1].split("</table>")[0]
            rows = [re.findall(r"<td>([^<]*)</td>", row) for row in table.split("<tr>")[2:]]
            for row, numbers in zip(values, rows, strict=True):
                assert [float(n) for n in numbers] == pytest.approx(
                    [*(100 * v for v in row), 100 * statistics.fmean(row)], abs=0.051
                )
        for attention_map in stored["attention_maps"]:
            sink = statistics.fmean(row[0] for row in attention_map["weights"])
            assert f"sink {text.share(sink)}" in section(page, "maps")
    assert "layer 0: -1.00, layer 1: -1.25, layer 2: -1.50, layer 3: -1.75" in page  # mean offset tau
    assert "Released mass is 0\u2009% in all layers throughout" in plain(section(page, "layers"))


def test_colors_of_the_maps_equal_the_weights(pair):
    lazy, _, page_text = pair
    stored = json.loads((lazy / "sinks.json").read_text())["attention_maps"][0]
    table = section(page_text, "maps").split("<tbody>")[1].split("</tbody>")[0]
    for row, weights in zip(table.split("<tr>")[1:], stored["weights"], strict=True):
        levels = re.findall(r'<td class="(?:q(\d+)|v)"', row)
        expected = ["" if w == 0 else str(math.floor(63 * math.sqrt(w) + 0.5)) for w in weights]
        assert levels == expected
    assert [page.map_rows([[0.25, 0.25, 0.0]], merged) for merged in (True, False)] == [
        [[(2, 32, 0.25), (1, None, 0.0)]],
        [[(1, 32, 0.25), (1, 32, 0.25), (1, None, 0.0)]],
    ]


def test_headline_compares_the_printed_digits(pair):
    lazy, softmax = (load_run(folder) for folder in pair[:2])
    lazy.values["bits_per_byte"], softmax.values["bits_per_byte"] = 1.8, 1.836
    title, detail = headline([lazy, softmax])
    assert title == "Lazy Attention vs softmax: 1.800 against 1.836 bits per byte"
    assert "After 2\u2009048\u2009000 training tokens each, Lazy Attention is 0.036 bits per byte better" in detail
    assert "(2.0 %)" in detail and "head start" in detail and "seeds is not known" in detail
    softmax.sinks |= {"length": 64, "bos": True}
    assert "7.4 % on it (H_T / T at 64 tokens); every sample began with BOS" in headline([lazy, softmax])[1]
    lazy.values["tokens"] = softmax.values["tokens"] = 4e8
    assert "head start" not in headline([lazy, softmax])[1]
    lazy.values["bits_per_byte"] = 1.9
    assert "0.064 bits per byte worse" in headline([lazy, softmax])[1]
    lazy.values["bits_per_byte"] = 1.83602
    assert "the same loss to the printed digits" in headline([lazy, softmax])[1]
    softmax.values["tokens"] = 8e8
    assert "After 400\u2009000\u2009000 to 800\u2009000\u2009000" in headline([lazy, softmax])[1]
    del lazy.values["bits_per_byte"]
    assert headline([lazy, softmax])[0].endswith("3.673 against 3.699 nats per token")
    assert headline([softmax])[0] == "Softmax: 1.836 bits per byte"
    assert headline([lazy, softmax, lazy])[0] == "3 runs: lazy is best with 3.673 nats per token"


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
    for file in ("run.json", "eval.json", "sinks.json", "samples.json", "log.jsonl", "config.toml"):
        folder = write_run(tmp_path, "partial", layers=1, maps=[(0, 1)], steps=200)
        (folder / file).unlink()
        run = load_run(folder)
        assert [line.split(":")[0] for line in run.missing] == [f"no {file}"]
    page = render([run])
    assert f"{folder}: {run.missing[0]}" in plain(page)
    assert Checker(page)
    (tmp_path / "log").mkdir()
    (tmp_path / "log/log.jsonl").write_text('{"step":1,"tokens":10,"loss_metrics/global_avg_loss":9.5}\n{"step":2,')
    run = load_run(tmp_path / "log")  # the incomplete last line is skipped
    assert run.curves["loss_metrics/global_avg_loss"] == [(10, 9.5)]
    assert "9.5" not in run.values and Checker(render([run]))


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("log.jsonl", '{"step":1,"tokens":10}\n{"step":\n', ("log.jsonl:2: expected JSON",)),
        ("log.jsonl", '{"step":1}\n', ("log.jsonl:1: tokens: expected a number, found nothing",)),
        ("log.jsonl", '{"tokens":"ten"}\n', ('log.jsonl:1: tokens: expected a number, found "ten"',)),
        ("eval.json", '{"results": 3}', ("eval.json: results: expected an object, found 3",)),
        ("eval.json", '{"results"', ("eval.json: expected JSON",)),
        ("eval.json", '{"results": 1e999}', ("eval.json: expected JSON", "1e999")),
        ("config.toml", "[model\n", ("config.toml: expected TOML", "line 1")),
        ("samples.json", '[{"prompt": "a"}]', ("samples.json: [0].text: expected text, found nothing",)),
        ("sinks.json", lambda j: j.update(version=3), ("sinks.json: version: expected 1 or 2, found 3",)),
        ("sinks.json", lambda j: j["per_head"]["density"][1].pop(), ("per_head.density[1]: expected 6 numbers",)),
        ("sinks.json", lambda j: j["per_head"]["density"].pop(), ("per_head.density: expected 4 rows",)),
        ("sinks.json", lambda j: j["overall"].update(alive_fraction=2), ("overall.alive_fraction: expected", "2")),
        (
            "sinks.json",
            lambda j: j["overall"].update(density=None),
            ("overall.density: expected a fraction, found null",),
        ),
        ("sinks.json", lambda j: j["attention_maps"][0]["weights"][3].append(0.5), ("weights[3]: expected 4 weights",)),
        (
            "lengths.json",
            '{"results": {"heldout": {"models": []}}}',
            ("lengths.json: results.heldout.models", "one model"),
        ),
        ("model/model.safetensors", "short", ("model.safetensors: expected a safetensors file",)),
    ],
)
def test_damaged_files_are_named_with_the_field(tmp_path, file, content, found):
    folder = write_run(tmp_path, steps=1)
    if callable(content):
        changed(folder, file, content)
    else:
        (folder / file).write_text(content)
    with pytest.raises(UserError) as error:
        load_run(folder)
    message = str(error.value)
    assert message.startswith(str(folder)) and "\n" not in message
    assert all(part in message for part in found), message


def test_diverged_run_has_gaps(tmp_path):
    folder = write_run(tmp_path, layers=1, maps=())
    lines = (folder / "log.jsonl").read_text().splitlines()
    lines[500:] = [re.sub(r'("(?:loss|validation)_metrics/\w+": )[\d.]+', r"\1null", line) for line in lines[500:]]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    changed(
        folder, "eval.json", lambda j: j["results"]["heldout"].update({"loss,none": None, "bits_per_byte,none": None})
    )
    run = load_run(folder)
    assert math.isnan(run.curves["validation_metrics/loss"][-1][1])
    assert run.values["loss"] == pytest.approx(3.55 + 4.6 * math.exp(-500 / 45))  # last finite validation loss
    page = render([run])
    assert "nan" not in plain(page).lower() and "Lnan" not in page and "nan," not in page
    assert Checker(page)


def test_curves_of_long_runs_are_thinned():
    points = [(step, 2.0) for step in range(100_000)]
    reduced = curves.smooth(points)
    assert 300 <= len(reduced) <= 402 and reduced[-1] == (99_999, pytest.approx(2.0))
    assert charts.thin(points[:5]) == points[:5]
    # With a short curve, the window is one step, so the average equals the values.
    assert curves.smooth([(1, 5.0), (2, math.nan), (3, 4.0)]) == [(1, 5.0), (3, 4.0)]
    # For a curve of 100 points, the average has the decay 1 - 1 / (100 / 25) = 0.75 per step.
    losses = [(step, float(step % 7)) for step in range(100)]
    weights = [0.75 ** (99 - step) for step, _ in losses]
    expected = sum(w * loss for w, (_, loss) in zip(weights, losses)) / sum(weights)
    assert curves.smooth(losses)[-1][1] == pytest.approx(expected)


def test_benchmarks_and_lengths_have_one_row_per_run(tmp_path):
    runs = []
    for name, accuracy in (("one", 0.2571), ("two", 0.2618)):
        folder = write_run(tmp_path, name, lazy=False, layers=1, maps=(), steps=1)

        def change(content, accuracy=accuracy):
            content["results"]["hellaswag"] = {
                "acc,none": 0.9,
                "acc_norm,none": accuracy,
                "acc_norm_stderr,none": 0.0044,
            }
            content["results"]["boolq"] = {"acc,none": 0.378, "acc_stderr,none": "N/A"}
            content["average"] = {"acc": 0.3181, "metrics": {"hellaswag": "acc_norm", "boolq": "acc"}}
            content["chance"] = {"hellaswag": {"random": 0.25}}

        changed(folder, "eval.json", change)
        rows = [{"length": n, "loss": 5 + n / 65536} for n in (256, 4096)]
        lengths = {"results": {"heldout": {"models": [{"lengths": rows}]}}}
        (folder / "lengths.json").write_text(json.dumps(lengths))
        runs.append(load_run(folder))
    softmax = load_run(write_run(tmp_path, "softmax", lazy=False, layers=1, maps=(), steps=1))
    page = render([*runs, softmax])
    rows = plain(section(page, "benchmarks"))
    assert "hellaswag acc_norm boolq acc mean" in rows
    assert "one 25.7 ±0.4 37.8 31.8" in rows and "two 26.2 ±0.4 37.8 31.8 guessing 25.0 –" in rows
    assert "one 5.004 5.062" in plain(section(page, "lengths"))
    assert 'id="benchmarks"' not in render([softmax])


def test_many_runs_become_rows_and_equal_names_become_folders(tmp_path):
    runs = [load_run(write_run(tmp_path / str(n), "run", False, layers=1, maps=(), steps=1)) for n in range(7)]
    runs[3].values["loss"] = 1.25
    page = render(runs)
    assert 'class="results wide"' in page and "<td><b>1.2500</b></td>" in page
    assert str(tmp_path / "3" / "run") in plain(section(page, "results"))
    assert 'class="results wide"' not in render(runs[:6])


def test_deep_models_and_many_maps(tmp_path):
    maps = [(layer, head) for layer in range(3) for head in (2, 5)]
    folder = write_run(tmp_path, layers=24, heads=16, maps=maps, steps=200)
    shutil.rmtree(folder / "model")

    def change(content):
        content["attention_maps"] += [content["attention_maps"][0] | {"layer": 3, "head": head} for head in (2, 5, 7)]
        massive = {"per_sample": 2, "largest": 9000, "median": 0.5, "position": 0, "dimension": 447}
        weights = {"sink_k": [0.5, 0.25], "entropy": [[1, 2], [4, 2]]}
        collapse = [{"cosine": [0.1, 0.3], "effective_rank": [3, 2]}] * 2
        content["further"] = {"weights": weights, "massive": [massive] * 2, "collapse": collapse}

    changed(folder, "sinks.json", change)
    run = load_run(folder)
    assert run.sinks["further"]["cosine"] == [0.2, 0.2]
    page = render([run])
    Checker(page)
    layers = section(page, "layers")
    assert layers.count('<span class="run">') == 9 and "layer 23</span>" in layers  # legend: the run and 8 of 24 layers
    assert "8 of 24 layers are shown" in plain(layers)
    assert page.count('<input type="radio"') == 4 + 3 and page.count(" checked>") == 2
    further = section(page, "further")
    assert "447" in further and "Sink_k" in further and "after the last layer" in further
    assert "Entropy, % of 4.00 nats" in plain(further) and ">25.0</td>" in further and ">100</td>" in further


def test_parameters_of_converted_models_and_checkpoints(tmp_path):
    folder = tmp_path / "checkpoints" / "step-00000200"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"offset_init": 0.0}')
    offsets = numpy.array([-1.0, 0.5], "float32")
    bf16 = (numpy.array([[1.5, -2.0], [0.25, 8.0]], "float32").view("uint32") >> 16).astype("uint16")
    tensors = {"model.layers.1.self_attn.lazy_tau": offsets, "model.layers.1.self_attn.lazy_distance_bias": bf16}
    (folder / "model-00001-of-00002.safetensors").write_bytes(safetensors(tensors))
    (folder / "optimizer.safetensors").write_bytes(safetensors({"exp_avg.model.layers.0.attn.softmax_offset": offsets}))
    shutil.copytree(folder, folder.with_name("step-00000100"))
    learned = learned_parameters(tmp_path)
    assert learned["initial"] == 0 and list(learned["tau"]) == [1]
    assert learned["tau"][1].tolist() == [-1.0, 0.5]
    assert learned["distance_bias"][1].tolist() == [[1.5, -2.0], [0.25, 8.0]]
    assert learned_parameters(tmp_path / "absent") is None


def test_command_writes_the_page_and_reports_errors(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    folder = write_run(tmp_path, layers=1, maps=(), steps=1)

    def report(*inputs, output="page.html"):
        arguments = {"directory": str(tmp_path), "inputs": inputs, "output": output, "line": "L", "version": "0.1.0"}
        code = run_report.main(arguments)
        return code, *capsys.readouterr()

    assert report("lazy") == (0, "page.html\n", "")
    assert Checker((tmp_path / "page.html").read_text())
    shutil.copy(folder / "sinks.json", tmp_path / "measured.json")
    assert report("measured.json", "lazy/eval.json")[0] == 0
    assert "2 runs" in (tmp_path / "page.html").read_text()
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    for inputs, output, found in (
        (("absent",), "page.html", "absent: expected the folder of a run or a file"),
        (("empty",), "page.html", "empty: expected the folder of a run with run.json, config.toml"),
        (("other.json",), "page.html", "other.json: expected the folder of a run, or the JSON"),
        (("lazy",), "empty", "--output empty: expected a file's name, found a folder"),
        (("lazy",), "no/page.html", "--output no/page.html: expected a file in an existing folder"),
    ):
        code, out, error = report(*inputs, output=output)
        assert (code, out) == (2, "") and error.startswith(f"lazy report: {found}") and error.count("\n") == 1
