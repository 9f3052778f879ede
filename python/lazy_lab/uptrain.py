"""`lazy uptrain`: converts a pretrained model to Lazy Attention, continues its training, and reports the results."""

import json
import subprocess
import tempfile
from pathlib import Path

from . import report
from .errors import RunError, UserError, exit_code_of
from .estimates import Forecast, shown
from .options import GROUPS, check_corpus, check_folder, parse, set_defaults
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


def uses_gpu(options):
    if options.device == "auto":
        return any(device.startswith("cuda") for device in program_json(options, "info", "--json")["devices"])
    return options.device == "cuda"


def measured_rate(options):
    """Returns the time of one token in a forward pass of the given model, measured on a short text."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("word " * (65536 if options.gpu else max(512, options.seq_len)), encoding="utf-8")
        threads = ["--threads", str(options.threads)] if options.threads else []
        place = ["--device", options.device, "--dtype", options.dtype]
        length = ["--max-length", str(min(options.seq_len, options.max_positions))]
        evaluate = ["eval", str(options.model), "--text", str(text), "--no-bos", *length, *place, "--json"]
        results = program_json(options, *threads, *evaluate)
    return float(results["total_evaluation_time_seconds"]) / results["configs"]["heldout"]["tokens"]


def records(runner, steps):
    by_name = {step.name: step for step in steps}
    return {step.name: record for step in steps if (record := runner.record(step, by_name))}


def print_plan(options, runner, steps):
    """Prints the steps with estimates of their times."""
    forecast = Forecast(steps, records(runner, steps))
    if not forecast.rate:
        forecast = Forecast(steps, records(runner, steps), measured_rate(options))
    print(forecast.table())
    if not forecast.left:
        print(f"all {len(steps)} steps are finished")
    else:
        print(f"{len(steps)} steps; the steps that are not finished take about {shown(forecast.seconds_left())}")


def write_report(folder):
    for page in report.write_report(folder):
        print(page)
    results = report.read_results(folder)
    if missing := report.incomplete(results):
        say(f"{missing} To finish it: {results['command']}")


def run_steps(options, runner, planned):
    """Runs the steps with the names `planned`. Writes results.json after each step, and prints its path at the
    end."""
    runner.planned = planned
    say(f"{len(planned)} steps; `--dry-run` lists them with estimates of their times")
    runner.run(Plan(options).steps(), {"corpus"})
    passes, corpus = check_corpus(options)
    check_folder(options, corpus_checked=True)
    if passes > 1:
        say(f"--tokens {options.tokens}: {passes:.2f} passes over the text")
    runner.run(Plan(options).steps(), {"corpus", "convert", "bos"})
    steps, results = Plan(options).steps(), options.output / "results.json"
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
        return write_report(Path(arguments["report_only"]))
    options = parse(arguments)
    config = program_json(options, "info", str(options.model), "--json")["config"]
    normalizer = config.get("normalizer", "softmax")
    if normalizer != "softmax":
        raise UserError(f"{options.model}: expected a model with softmax attention, found normalizer '{normalizer}'")
    set_defaults(options, uses_gpu(options), config)
    if options.corpus:
        check_corpus(options)
    runner, groups = Runner(options.output, options.program, options.threads), ("prepare", *(options.only or GROUPS))
    selected = [step for step in Plan(options).steps() if step.group in groups]
    if options.dry_run:
        return print_plan(options, runner, selected)
    check_folder(options, corpus_checked=False)
    run_steps(options, runner, [step.name for step in selected])
    if "report" in groups:
        try:
            write_report(options.output)
        except UserError as missing:  # the measurements are complete without the packages of the report
            say(missing)


def main(arguments):
    """Runs `lazy uptrain`. `arguments` is the JSON object that apps/lazy/uptrain.cc passes. Returns the exit code."""
    return exit_code_of("uptrain", arguments["output"], lambda: run(arguments))
