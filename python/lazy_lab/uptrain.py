"""`lazy uptrain`: converts a pretrained model to Lazy Attention, continues its training, and reports the results."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from . import report
from .errors import RunError, UserError, exit_code_of
from .estimates import Forecast, shown
from .options import GROUPS, check_corpus, check_folder, parse, set_measurement_sizes
from .plan import Plan
from .steps import Runner, say, write_atomic
from .uptrain_results import collect


def program_json(options, *arguments):
    """Runs a short `lazy` command and returns the JSON value that it prints."""
    done = subprocess.run([options.program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("lazy: ")
        raise (UserError if done.returncode == 2 else RunError)(message)
    return json.loads(done.stdout)


def resolve_dtype(options):
    """Returns whether the commands use a GPU. Replaces the dtype "auto" by "bf16" on a GPU and by "fp32" on a CPU."""
    gpu = options.device == "cuda"
    if options.device == "auto":
        gpu = any(device.startswith("cuda") for device in program_json(options, "info", "--json")["devices"])
    if options.dtype == "auto":
        options.dtype = "bf16" if gpu else "fp32"
    return gpu


def measured_rate(options, gpu, limit):
    """Returns the time of one token in a forward pass of the given model, measured on a short text."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("word " * (65536 if gpu else max(512, options.seq_len)), encoding="utf-8")
        threads = ["--threads", str(options.threads)] if options.threads else []
        place = ["--device", options.device, "--dtype", options.dtype]
        length = ["--max-length", str(min(options.seq_len, limit))]
        evaluate = ["eval", str(options.model), "--text", str(text), "--no-bos", *length, *place, "--json"]
        results = program_json(options, *threads, *evaluate)
    return float(results["total_evaluation_time_seconds"]) / results["configs"]["heldout"]["tokens"]


def records(runner, steps):
    by_name = {step.name: step for step in steps}
    return {step.name: record for step in steps if (record := runner.record(step, by_name))}


def print_plan(options, runner, steps, gpu, limit):
    """Prints the steps with estimates of their times."""
    forecast = Forecast(steps, records(runner, steps))
    if not forecast.rate:
        forecast = Forecast(steps, records(runner, steps), measured_rate(options, gpu, limit))
    print(forecast.table())
    if not forecast.left:
        print(f"all {len(steps)} steps are finished")
    else:
        print(f"{len(steps)} steps; the steps that are not finished take about {shown(forecast.seconds_left())}")


def lacking(folder):
    """Returns a message that names the missing Python packages of the report, or None if all are installed."""
    missing = [name for name in report.PACKAGES if importlib.util.find_spec(name) is None]
    mend = f"`{sys.executable} -m pip install {' '.join(missing)}`, then `lazy uptrain --report-only {folder}`"
    return f"the report needs Python packages that {sys.executable} lacks: {mend}" if missing else None


def write_pages(folder):
    for page in report.write_report(folder):
        print(page)
    results = report.read_results(folder)
    if missing := report.incomplete(results):
        say(f"{missing} To finish it: {results['command']}")


def run_steps(options, runner, planned, make_steps):
    """Runs the steps with the names `planned`. Writes results.json after each step, and prints its path at the end.
    make_steps: function that returns all steps; it is called again when the corpus exists."""
    runner.planned = planned
    say(f"{len(planned)} steps; `--dry-run` lists them with estimates of their times")
    runner.run(make_steps(), {"corpus"})
    passes, corpus = check_corpus(options)
    check_folder(options, corpus_checked=True)
    if passes > 1:
        say(f"--tokens {options.tokens}: {passes:.2f} passes over the text")
    runner.run(make_steps(), {"corpus", "convert", "bos"})
    steps, results = make_steps(), options.output / "results.json"
    selected = [step for step in steps if step.name in planned]

    def write_results():
        finished = records(runner, steps)
        unfinished = [step.title for step in steps if step.name not in finished]
        write_atomic(results, json.dumps(collect(options, passes, corpus, unfinished), indent=1, default=str) + "\n")

    def after(step):
        write_results()
        forecast = Forecast(selected, records(runner, steps))
        if forecast.left and forecast.rate:
            took = shown(forecast.seconds[step.name])
            say(f"this step took {took}; {len(forecast.left)} remain, about {shown(forecast.seconds_left())}")

    runner.after = after
    blocked = runner.run(steps, set(planned))
    write_results()
    for step in steps:
        if step.name in blocked:
            say(f"skipped, because a required step is not finished: {step.title}")
    print(results)


def run(arguments):
    if arguments["report_only"]:
        folder = Path(arguments["report_only"])
        report.read_results(folder)  # raises an error for a wrong folder before packages are checked
        if line := lacking(folder):
            raise UserError(line)
        return write_pages(folder)
    options = parse(arguments)
    config = program_json(options, "info", str(options.model), "--json")["config"]
    normalizer = config.get("normalizer", "softmax")
    if normalizer != "softmax":
        raise UserError(f"{options.model}: expected a model with softmax attention, found normalizer '{normalizer}'")
    gpu = resolve_dtype(options)
    set_measurement_sizes(options, gpu)
    if options.corpus:
        check_corpus(options)
    runner = Runner(options.output, options.program, options.threads)
    limit = config.get("max_position_embeddings") or config.get("n_positions") or options.seq_len
    make_steps = lambda: Plan(options, gpu, limit).steps()
    groups = ("prepare", *(options.only or GROUPS))
    selected = [step for step in make_steps() if step.group in groups]
    if options.dry_run:
        return print_plan(options, runner, selected, gpu, limit)
    check_folder(options, corpus_checked=False)
    run_steps(options, runner, [step.name for step in selected], make_steps)
    if "report" in groups:
        line = lacking(options.output)  # not an error: the measurements are complete without the report
        say(line) if line else write_pages(options.output)


def main(arguments):
    """Runs `lazy uptrain`. `arguments` is the JSON object that apps/lazy/uptrain.cc passes. Returns the exit code."""
    return exit_code_of("uptrain", arguments["output"], lambda: run(arguments))
