"""`lazy uptrain`: converts a pretrained model to Lazy Attention, continues its training, and reports the results."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from . import plan, report
from .errors import RunError, Stopped, UserError
from .options import GROUPS, check_corpus, check_folder, forget_training_settings, parse
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


def estimate(runner, step, steps):
    """After a training step: prints its duration and the estimated duration of the remaining trainings."""
    trainings = [other for other in steps.values() if other.group == "train" and "steps" in other.inputs]
    left = sum(not runner.record(other, steps) for other in trainings)
    if step in trainings and left:
        minutes = runner.record(step, steps)["seconds"] / 60
        remain = f"{left} training{'s remain' if left > 1 else ' remains'}"
        say(f"this training took {minutes:.1f} minutes; {remain}, about {minutes * left:.0f} minutes")


def lacking(folder):
    """Returns a message that names the missing Python packages of the report, or None if all are installed."""
    missing = report.missing_packages()
    mend = f"`{sys.executable} -m pip install {' '.join(missing)}`, then `lazy uptrain --report-only {folder}`"
    return f"the report needs Python packages that {sys.executable} lacks: {mend}" if missing else None


def write_pages(folder):
    for page in report.write_report(folder):
        print(page)


def run(arguments):
    if arguments["report_only"]:
        folder = Path(arguments["report_only"])
        report.read_results(folder)  # report a wrong folder before missing packages
        if line := lacking(folder):
            raise UserError(line)
        return write_pages(folder)
    options = parse(arguments)
    config = program_json(options, "info", str(options.model), "--json")["config"]
    normalizer = config.get("normalizer", "softmax")
    if normalizer != "softmax":
        raise UserError(f"{options.model}: expected a model with softmax attention, found normalizer '{normalizer}'")
    gpu = resolve_dtype(options)
    passes, splits = check_corpus(options) if options.corpus else (None, None)
    check_folder(options)
    runner = Runner(options.output, options.program, options.threads)
    first = plan.first_steps(options)
    limit = config.get("max_position_embeddings") or config.get("n_positions") or options.seq_len
    groups = ("prepare", *(options.only or GROUPS))
    everything = first + plan.Plan(options, gpu, limit).steps()
    runner.planned = [step.name for step in everything if step.group in groups]
    runner.run(first, {"corpus"})
    if passes is None:
        try:
            passes, splits = check_corpus(options)
        except UserError:
            forget_training_settings(options)
            raise
    if passes > 1:
        say(f"--tokens {options.tokens}: {passes:.2f} passes over the text")
    runner.run(first, {step.name for step in first})
    planned = plan.Plan(options, gpu, limit, splits).steps()
    results = options.output / "results.json"

    def write_results():
        write_atomic(results, json.dumps(collect(options, passes, splits), indent=1, default=str) + "\n")

    steps = {step.name: step for step in first + planned}

    def after(step):
        write_results()
        estimate(runner, step, steps)

    runner.after = after
    blocked = runner.run(first + planned, set(runner.planned))
    write_results()
    for name in blocked:
        say(f"skipped, because a required step is not finished: {steps[name].title}")
    print(results)
    if "report" in groups:
        line = lacking(options.output)  # not an error: the measurements are complete without the report
        say(line) if line else write_pages(options.output)


def main(arguments):
    """Runs `lazy uptrain`. `arguments` is the JSON object that apps/lazy/uptrain.cc passes. Returns the exit code."""
    try:
        run(arguments)
        return 0
    except (UserError, RunError) as error:
        mend = "" if error.exit_code == 2 else "; run the same command again to continue"
        say(f"{error}{mend}")
        return error.exit_code
    except OSError as error:  # for example, a full disk or a folder without write permission
        say(f"{error.filename or arguments['output']}: {error.strerror or error}; run the same command to continue")
        return 1
    except (Stopped, KeyboardInterrupt) as stopped:
        say("stopped; run the same command again to continue")
        return getattr(stopped, "exit_code", 128 + signal.SIGINT)
