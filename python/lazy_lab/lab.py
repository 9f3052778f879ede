"""`lazy lab`: trains and measures the models of a recipe, and writes its page. docs/guides/lab.md describes it."""

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from .errors import UserError, exit_code_of
from .lab_page import write_page
from .lab_records import Recorded
from .lab_steps import Plan
from .recipes import find_recipe, recipes
from .recipes.scales import SCALES
from .steps import Runner, say, write_atomic

# Studies are Python modules that run their measurements in PyTorch and write their own pages, in contrast to recipes,
# which run `lazy` commands.
STUDIES = {"toys": "toy models of the attention sink", "gpt2": "the attention sink of a GPT-2 model"}


def named_folders(option, texts):
    """Parses the values NAME=DIR of an option. Returns [(name, folder)]. The name is "model" if only DIR is given."""
    found = {}
    for text in texts:
        name, folder = text.split("=", 1) if "=" in text else ("model", text)
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or not folder:
            raise UserError(f"{option}: expected NAME=DIR, found '{text}'")
        if name in found:
            raise UserError(f"{option}: expected different names, found '{name}' twice")
        found[name] = Path(folder).absolute()
    return list(found.items())


def parse(arguments):
    """Checks the JSON object that apps/lazy/lab.cc passes, and returns its values as attributes."""
    a = SimpleNamespace(**arguments)
    if a.scale not in SCALES:
        raise UserError(f"--scale: expected {', '.join(SCALES)}, found '{a.scale}'")
    a.corpus, a.data = (Path(folder) if folder else None for folder in (a.corpus, a.data))
    for option, folder in (("corpus", a.corpus), ("data", a.data)):
        if folder and not folder.is_dir():
            found = "a file" if folder.exists() else "none"
            raise UserError(f"--{option} {folder}: expected a folder, found {found}")
    for text in a.text:
        if not Path(text).exists():
            raise UserError(f"--text {text}: expected a file or a folder, but the path does not exist")
    a.domain, a.model = named_folders("--domain", a.domain), named_folders("--model", a.model)
    a.output = Path(a.output)
    for name, folder in a.model:
        if not (folder / "config.json").is_file():
            raise UserError(f"--model {name}={folder}: expected a model folder, found no config.json in it")
    if a.model and a.seeds > 1:
        raise UserError(f"--model: replaces a single training and requires --seeds 1, found {a.seeds}")
    if a.only and a.recipe == "all":
        raise UserError("--only: expected one recipe, found all")
    return a


def selected(plan, only):
    """Returns the names of the steps to run, together with the steps that they need. `only` are the values of --only.
    If it is empty, all measurement steps run. Otherwise, each value is the name of a step without the key at the end;
    for a training step, all measurements of the trained model run, too."""
    steps = plan.steps.values()
    measurements = [step for step in steps if step.group == "measure"]
    names = {step.name.rsplit("-", 1)[0]: step.name for step in steps if step.group != "corpus"}
    chosen = set() if only else {step.name for step in measurements}
    for wanted in only:
        if wanted not in names:
            raise UserError(f"--only: expected a step of {plan.recipe.name} ({', '.join(names)}), found '{wanted}'")
        chosen.add(names[wanted])
        chosen |= {step.name for step in measurements if names[wanted] in step.needs[:1]}
    for step in reversed(steps):
        if step.name in chosen:
            chosen |= set(step.needs)
    return chosen


def run_recipe(options, plan, runner):
    """Runs the steps of a recipe. Returns the number of steps that are not finished."""
    chosen = set() if options.report else selected(plan, options.only)
    if plan.corpus is None and any(plan.steps[name].group == "train" for name in chosen):
        raise UserError(
            f"--scale {options.scale}: expected --corpus DIR for the trainings whose results are not in "
            "docs/results/records, found none"
        )
    folder = plan.folder / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in plan.configurations.items():
        path = folder / f"{name}.toml"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomic(path, text)
    runner.run(list(plan.steps.values()), chosen)
    return sum(not runner.record(plan.steps[name], plan.steps) for name in selected(plan, []))


def dry_run(options, plan, runner):
    recipe, chosen = plan.recipe, selected(plan, options.only)
    rows = [
        {"step": step.name, "group": step.group, "done": bool(runner.record(step, plan.steps))}
        for step in plan.steps.values()
        if step.name in chosen
    ]
    if options.json:
        return {"recipe": recipe.name, "scale": options.scale, "steps": rows, "skipped": plan.skipped}
    print(f"{recipe.name}: {recipe.title} ({recipe.source}); scale {options.scale}: {plan.scale.means}")
    for row in rows:
        print(f"  {row['step']:<44} {row['group']:<8} {'done' if row['done'] else 'to do'}")
    for (name, seed), values in sorted(plan.known.items()):
        print(f"  {name}, seed {seed}: already in docs/results/records: {', '.join(sorted(values))}")
    for name, reason in plan.skipped:
        print(f"  {name}: skipped, {reason}")
    return None


def run_study(options):
    """Runs the command of a study module. The study gpt2 needs --model and --text."""
    words = [str(folder) for _, folder in options.model]
    words += ["--text", str(options.text[0])] if options.text else []
    sys.argv = [f"lazy lab {options.recipe}", *words, "--output", str(options.output)]
    importlib.import_module(f"{__package__}.recipes.{options.recipe}").main()


def list_recipes(options):
    known = recipes(SCALES[options.scale]).values()
    rows = [{"recipe": recipe.name, "title": recipe.title, "source": recipe.source} for recipe in known]
    rows += [{"recipe": name, "title": title, "source": "studies in PyTorch"} for name, title in STUDIES.items()]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['recipe']:<14} {row['title']} ({row['source']})")


def run(arguments):
    options = parse(arguments)
    if options.recipe == "list":
        return list_recipes(options)
    if options.recipe in STUDIES:
        return run_study(options)
    scale = SCALES[options.scale]
    wanted = recipes(scale).values() if options.recipe == "all" else [find_recipe(options.recipe, scale)]
    recorded = Recorded() if options.scale == "small" and not options.no_records else None
    runner = Runner(options.output / options.scale, options.program, options.threads, "lab")
    summaries = []
    for recipe in wanted:
        plan = Plan(options, recipe, recorded)
        if options.dry_run:
            summaries.append(dry_run(options, plan, runner))
            continue
        remaining = run_recipe(options, plan, runner)
        if remaining and not options.report:
            say(f"{recipe.name}: {remaining} steps remain; add --report to write the page of the finished steps", "lab")
            continue
        path, summary = write_page(plan, options.line)
        summaries.append(summary)
        if not options.json:
            print(path.read_text(encoding="utf-8"))
        say(f"{recipe.name}: {path}", "lab")
    if options.json:
        print(json.dumps(summaries[0] if len(summaries) == 1 else summaries, indent=1))


def main(arguments):
    """Runs `lazy lab`. `arguments` is the JSON object that apps/lazy/lab.cc passes. Returns the exit code."""
    return exit_code_of("lab", arguments["output"], lambda: run(arguments))
