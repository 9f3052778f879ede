"""`lazy lab`: trains and measures the models of a recipe, and writes its page. docs/guides/lab.md describes it."""

import importlib
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from .errors import UserError, exit_code_of
from .recipes import SCALES, find_recipe, recipes
from .steps import Runner, say, write_atomic

NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."


@dataclass
class Options:
    """The checked arguments. The fields have the names of the keys in the JSON object that apps/lazy/lab.cc passes."""

    program: str
    line: str
    threads: int
    recipe: str
    scale: str
    corpus: Path | None
    text: list
    data: Path | None
    domain: list  # (name, folder) of each --domain
    model: list  # (name, folder) of each --model
    seeds: int
    only: list
    device: str
    output: Path
    dry_run: bool
    report: bool
    no_records: bool
    json: bool


def named_folders(option, texts):
    found = []
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals:
            name, folder = "model", text
        if not name or not folder or name.strip(NAME):
            raise UserError(f"{option}: expected NAME=DIR, found '{text}'")
        if name in dict(found):
            raise UserError(f"{option}: expected different names, found '{name}' twice")
        found.append((name, Path(folder).absolute()))
    return found


def parse(arguments):
    a = dict(arguments)
    if a["scale"] not in SCALES:
        raise UserError(f"--scale: expected {', '.join(SCALES)}, found '{a['scale']}'")
    for option in ("corpus", "data"):
        a[option] = Path(a[option]) if a[option] else None
        if a[option] and not a[option].is_dir():
            raise UserError(
                f"--{option} {a[option]}: expected a folder, found {'a file' if a[option].exists() else 'none'}"
            )
    for text in a["text"]:
        if not Path(text).exists():
            raise UserError(f"--text {text}: expected a file or a folder, but the path does not exist")
    a |= {"domain": named_folders("--domain", a["domain"]), "model": named_folders("--model", a["model"])}
    a["output"] = Path(a["output"])
    for name, folder in a["model"]:
        if not (folder / "config.json").is_file():
            raise UserError(f"--model {name}={folder}: expected a model folder, found no config.json in it")
    if a["model"] and a["seeds"] > 1:
        raise UserError(f"--model: replaces a single training and requires --seeds 1, found {a['seeds']}")
    if a["only"] and a["recipe"] == "all":
        raise UserError("--only: expected one recipe, found all")
    return Options(**{field.name: a[field.name] for field in fields(Options)})


def selected(plan, steps, only):
    """Returns the names of the steps to run, together with the steps that they need. Without --only, these are all
    measurement steps. With --only, these are the steps of one model, or the single step of this name (without the key
    at the end of step names)."""
    names = {step.name.rsplit("-", 1)[0]: step.name for step in steps if step.group != "corpus"}
    chosen = {step.name for step in steps if step.group == "measure"} if not only else set()
    for wanted in only:
        if wanted not in names:
            raise UserError(f"--only: expected a step of {plan.recipe.name} ({', '.join(names)}), found '{wanted}'")
        chosen.add(names[wanted])
        if plan.all[names[wanted]].group == "train":
            chosen |= {step.name for step in steps if step.group == "measure" and names[wanted] in step.needs[:1]}
    for step in reversed(steps):
        if step.name in chosen:
            chosen |= set(step.needs)
    return chosen


def write_configurations(plan):
    folder = plan.folder / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in plan.configurations.items():
        path = folder / f"{name}.toml"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomic(path, text)


def make_plan(options, recipe):
    from .lab_steps import Plan

    recorded = None
    if options.scale == "small" and not options.no_records:
        from .lab_records import Recorded

        recorded = Recorded()
    plan = Plan(options, recipe, recorded)
    return plan, plan.steps()


def run_recipe(options, recipe, runner):
    """Runs the steps of a recipe. Returns the plan and the number of steps that are not finished."""
    while True:
        plan, steps = make_plan(options, recipe)
        chosen = selected(plan, steps, options.only)
        # Some models choose their learning rate by short trainings. After these, the plan is computed again.
        undecided = [model.name for model in plan.models if model.rates and model.name not in plan.choices]
        trials = {name for name in chosen if any(name.startswith(f"{model}.rate") for model in undecided)}
        if trials:
            for step in reversed(steps):
                if step.name in trials:
                    trials |= set(step.needs)
        if options.report:
            trials, chosen = set(), set()
        if plan.corpus is None and any(plan.all[name].group == "train" for name in chosen):
            raise UserError(
                f"--scale {options.scale}: expected --corpus DIR for the steps that are not recorded, found none"
            )
        write_configurations(plan)
        runner.planned = [step.name for step in steps if step.name in chosen]
        runner.run(steps, trials or chosen)
        if not trials:
            wanted = selected(plan, steps, [])
            return plan, sum(not runner.record(plan.all[name], plan.all) for name in wanted)


def dry_run(options, recipe, runner):
    plan, steps = make_plan(options, recipe)
    chosen = selected(plan, steps, options.only)
    rows = [
        {"step": step.name, "group": step.group, "done": bool(runner.record(step, plan.all))}
        for step in steps
        if step.name in chosen
    ]
    if options.json:
        return {"recipe": recipe.name, "scale": options.scale, "steps": rows, "skipped": plan.skipped}
    print(f"{recipe.name}: {recipe.title} ({recipe.source}); scale {options.scale}: {plan.scale.means}")
    for row in rows:
        print(f"  {row['step']:<44} {row['group']:<8} {'done' if row['done'] else 'to do'}")
    for (name, seed), values in sorted(plan.known.items()):
        print(f"  {name}, seed {seed}: recorded: {', '.join(sorted(values))}")
    for name, reason in plan.skipped:
        print(f"  {name}: skipped, {reason}")
    return None


def studies():
    """Returns {name: title} of the studies. A study is a Python module that runs its measurements in PyTorch and writes
    its own page, in contrast to a recipe, which runs `lazy` commands."""
    titles = {"toys": "toy models of the attention sink", "gpt2": "the attention sink of a GPT-2 model"}
    folder = Path(__file__).parent / "recipes"
    return {name: title for name, title in titles.items() if (folder / f"{name}.py").is_file()}


def run_study(options):
    """Runs the command of a study module: gpt2 needs --model and --text."""
    words = [str(folder) for _, folder in options.model]
    words += ["--text", str(options.text[0])] if options.text else []
    sys.argv = [f"lazy lab {options.recipe}", *words, "--output", str(options.output)]
    importlib.import_module(f"{__package__}.recipes.{options.recipe}").main()


def list_recipes(options):
    rows = [{"recipe": recipe.name, "title": recipe.title, "source": recipe.source} for recipe in recipes().values()]
    rows += [{"recipe": name, "title": title, "source": "studies in PyTorch"} for name, title in studies().items()]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['recipe']:<14} {row['title']} ({row['source']})")


def run(arguments):
    options = parse(arguments)
    if options.recipe == "list":
        return list_recipes(options)
    if options.recipe in studies():
        return run_study(options)
    wanted = list(recipes().values()) if options.recipe == "all" else [find_recipe(options.recipe)]
    runner = Runner(options.output / options.scale, options.program, options.threads, "lab")
    summaries = []
    for recipe in wanted:
        if options.dry_run:
            summaries.append(dry_run(options, recipe, runner))
            continue
        plan, remaining = run_recipe(options, recipe, runner)
        if remaining and not options.report:
            say(f"{recipe.name}: {remaining} steps remain; add --report to write the page of the finished steps", "lab")
            continue
        from .lab_page import write_page

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
