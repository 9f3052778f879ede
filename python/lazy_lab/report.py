"""Writes the report of `lazy uptrain` (report.html and report.md). The only input is results.json."""

import importlib.util
import json
from dataclasses import dataclass

from .errors import UserError
from .statistics import Interval, paired_difference, student_interval
from .steps import write_atomic
from .uptrain_results import FORMAT, KINDS

PACKAGES = ("jinja2", "matplotlib", "scipy")


def missing_packages():
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


@dataclass
class Measure:
    """One row of the report's table: a function that returns the value of a model, and the number format."""

    title: str
    value: object  # function from an entry of "models" in results.json to a number, or None if not measured
    digits: int = 3
    unit: str = ""
    scale: float = 1.0


def measures(results):
    found = [
        Measure("held-out loss, nats per token", lambda model: model.get("heldout", {}).get("loss")),
        Measure("held-out loss, bits per byte", lambda model: model.get("heldout", {}).get("bits_per_byte")),
    ]

    def task(name, key):
        return lambda model: model.get("tasks", {}).get(name, {}).get(key)

    tasks = {}
    for model in results["models"]:
        tasks |= model.get("tasks", {})
    for name, values in tasks.items():
        found.append(Measure(f"{name}, {values['headline'].replace('_', ' ')}", task(name, values["headline"])))
        if "nats_per_word" in values:
            found.append(Measure(f"{name}, nats per word", task(name, "nats_per_word")))
    for title, key in (
        ("weight on the first key", "sink_ratio"),
        ("released mass", "released_mass"),
        ("alive pairs", "alive_fraction"),
    ):
        found.append(
            Measure(title, lambda model, key=key: model.get("attention", {}).get("overall", {}).get(key), 2, " %", 100)
        )
    lengths = sorted({speed["length"] for model in results["models"] for speed in model.get("speed", [])})
    for length in lengths:
        for title, key, digits, unit, scale in (
            (f"time per token after {length} tokens", "seconds_per_token", 3, " ms", 1000),
            (f"alive pairs of a decode step after {length} tokens", "alive", 1, " %", 100),
            (f"rows of V alive for some head of a group, after {length} tokens", "alive_in_group", 1, " %", 100),
            (f"bytes of K and V needed per token after {length} tokens", "bytes", 1, " MB", 1e-6),
        ):
            value = lambda model, length=length, key=key: next(
                (s.get(key) for s in model.get("speed", []) if s["length"] == length), None
            )
            found.append(Measure(title, value, digits, unit, scale))
    return found


def printed(interval: Interval | None, measure, signed=False):
    if interval is None:
        return ""
    sign = "+" if signed else ""
    number = lambda value: f"{measure.scale * value:{sign}.{measure.digits}f}"
    bounds = f" [{number(interval.low)}, {number(interval.high)}]" if signed and interval.low is not None else ""
    unit = measure.unit.replace("%", "points") if signed else measure.unit
    return number(interval.mean) + unit + bounds


def values_of(results, kind, measure):
    """Returns {seed: value} for the models of one kind, without models for which the value was not measured."""
    values = {m["seed"]: measure.value(m) for m in results["models"] if m["model"] == kind}
    return {seed: value for seed, value in values.items() if value is not None}


def table(results):
    """Returns the rows of the table as lists of strings: the title, one cell per kind of KINDS, and the difference Lazy
    - softmax. Rows without any value are omitted."""
    rows = []
    for measure in measures(results):
        values = {kind: values_of(results, kind, measure) for kind in KINDS}
        if not any(values.values()):
            continue
        cells = [printed(student_interval(found.values()) if found else None, measure) for found in values.values()]
        difference = paired_difference(values["softmax"], values["lazy"])
        rows.append([measure.title, *cells, printed(difference, measure, signed=True)])
    return rows


def summary(results):
    """Returns the first line of the page, which states how many trainings the results are based on."""
    seeds = {kind: sorted(m["seed"] for m in results["models"] if m["model"] == kind) for kind in ("softmax", "lazy")}
    counts = [len(found) for found in seeds.values() if found]
    if not counts:
        return "No model has been trained yet."
    if max(counts) == 1:
        return "Each model was trained once, so differences between models are not significant."
    text = f"Means over the seeds {', '.join(map(str, seeds['lazy']))}."
    common = set(seeds["softmax"]) & set(seeds["lazy"])
    if len(common) > 1:
        text += f" Differences are paired by seed ({len(common)}); brackets are 95 % Student t intervals."
    elif common:
        text += " Only one seed has a control, so differences between the models are not significant."
    return text


def incomplete(results):
    """Returns a sentence that says how many steps are not finished, or "" if all steps are finished."""
    unfinished = results.get("unfinished", [])
    if not unfinished:
        return ""
    named = "; ".join(unfinished[:3]) + ("; ..." if len(unfinished) > 3 else "")
    steps = "1 step is" if len(unfinished) == 1 else f"{len(unfinished)} steps are"
    return f"The report is incomplete: {steps} not finished ({named})."


def settings(results):
    a, corpus = results["arguments"], results["corpus"]
    measured = [model for model in results["models"] if "parameters" in model]
    limits = []
    if a.get("heldout_tokens"):
        limits.append(f"the losses on at most {a['heldout_tokens']:,} held-out tokens")
    if a.get("limit"):
        limits.append(f"the benchmarks on at most {a['limit']} documents each")
    return [
        *(f"{model['parameters']:,} parameters, {model['device']}, {a['dtype']}" for model in measured[:1]),
        f"{results['steps']} steps of {a['batch_tokens']:,} tokens in sequences of {a['seq_len']:,}, "
        f"{corpus['passes']:.2f} passes over {corpus['train']:,} tokens; {corpus['validation']:,} tokens are held out",
        f"AdamW, rate {a['lr']:g} after {results['warmup_steps']} steps of warm-up, cosine decay to 10 %, weight decay "
        f"{a['weight_decay']:g}",
        f"offset shifted from 0 to {a['to']:g} over the first {100 * a['anneal']:g} % of the steps; distance bias over "
        f"{a['window']} tokens",
        *([f"measured: {', '.join(limits)}"] if limits else []),
    ]


def read_results(folder):
    """Reads results.json of the folder and checks its format."""
    path = folder / "results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        started = (folder / "uptrain.json").is_file()
        mend = "; no measurement is finished, run the same `lazy uptrain` command again to continue" if started else ""
        raise UserError(f"{folder}: expected a folder of `lazy uptrain` with results.json, found none{mend}") from None
    except ValueError as error:
        raise UserError(f"{path}: expected JSON, found {error}") from None
    found = results.get("format") if isinstance(results, dict) else type(results).__name__
    if found != FORMAT:
        raise UserError(f"{path}: format: expected {FORMAT}, found {found}")
    return results


def write_report(folder):
    """Writes report.html and report.md from results.json of the folder. Returns the paths of the two files."""
    results = read_results(folder)
    import jinja2

    from .charts import color_css
    from .figures import FIGURES

    figures = [(title, picture) for title, draw in FIGURES if (picture := draw(results))]
    context = {
        "name": results["name"],
        "summary": f"{summary(results)} {incomplete(results)}".rstrip(),
        "table": table(results),
        "columns": ["", "before", "Lazy, not trained", "softmax, continued", "Lazy", "Lazy - softmax"],
        "settings": settings(results),
        "figures": figures,
        "colors": color_css(),
        "command": results["command"],
        "date": results["date"],
    }
    loader = jinja2.PackageLoader("lazy_lab", "templates")
    pages = []
    for name in ("report.html", "report.md"):
        environment = jinja2.Environment(
            loader=loader,
            autoescape=name.endswith(".html"),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        pages.append(folder / name)
        write_atomic(pages[-1], environment.get_template(f"uptrain_{name}").render(context))
    return pages
