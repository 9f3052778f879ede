"""Writes the report of `lazy uptrain` (report.html and report.md). The only input is results.json."""

import functools
import importlib.util
import sys

from .errors import UserError
from .statistics import paired_difference, student_interval
from .steps import read_object, write_atomic
from .uptrain_results import FORMAT, KINDS

PACKAGES = ("jinja2", "matplotlib", "scipy")
COLUMNS = ("", "before", "Lazy, not trained", "softmax, continued", "Lazy", "Lazy - softmax")


def by_length(model):
    """Returns an entry of `models` in which the list `speed` is replaced by a dictionary {length: measurements}."""
    return model | {"speed": {speed["length"]: speed for speed in model.get("speed", [])}}


def quantities(models):
    """Returns the rows of the table as (title, path of the value in an entry of `models`, digits, unit, factor)."""
    tasks = functools.reduce(dict.__or__, [model.get("tasks", {}) for model in models], {})
    rows = [
        ("held-out loss, nats per token", ("heldout", "loss"), 3, "", 1),
        ("held-out loss, bits per byte", ("heldout", "bits_per_byte"), 3, "", 1),
    ]
    for task, values in tasks.items():
        headline = values["headline"]
        rows.append((f"{task}, {headline.replace('_', ' ')}", ("tasks", task, headline), 3, "", 1))
        if "nats_per_word" in values:
            rows.append((f"{task}, nats per word", ("tasks", task, "nats_per_word"), 3, "", 1))
    rows += [
        ("weight on the first key", ("attention", "overall", "sink_ratio"), 2, " %", 100),
        ("released mass", ("attention", "overall", "released_mass"), 2, " %", 100),
        ("alive pairs", ("attention", "overall", "alive_fraction"), 2, " %", 100),
    ]
    for length in sorted({length for model in models for length in model["speed"]}):
        after = f"after {length} tokens"
        rows += [
            (f"time per token {after}", ("speed", length, "seconds_per_token"), 3, " ms", 1000),
            (f"alive pairs of a decode step {after}", ("speed", length, "alive"), 1, " %", 100),
            (f"rows of V alive for some head of a group, {after}", ("speed", length, "alive_in_group"), 1, " %", 100),
            (f"bytes of K and V needed per token {after}", ("speed", length, "bytes"), 1, " MB", 1e-6),
        ]
    return rows


def printed(interval, digits, unit, sign=""):
    """Formats the mean of an Interval. The sign "+" is for differences: the mean and the bounds of its confidence
    interval are then printed with explicit signs."""
    if interval is None:
        return ""
    bounds = ""
    if sign:
        unit = unit.replace("%", "points")
        if interval.low is not None:
            bounds = f" [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"
    return f"{interval.mean:{sign}.{digits}f}{unit}{bounds}"


def table(results):
    """Returns the rows of the table as lists of strings: the title, one cell per kind of KINDS, and the difference Lazy
    - softmax. Rows without any value are omitted."""
    models, rows = [by_length(model) for model in results["models"]], []
    for title, path, digits, unit, factor in quantities(models):
        values = {kind: {} for kind in KINDS}
        for model in models:
            value = functools.reduce(lambda part, key: (part or {}).get(key), path, model)
            if value is not None:
                values[model["model"]][model["seed"]] = factor * value
        if any(values.values()):
            means = [student_interval(found.values()) if found else None for found in values.values()]
            difference = printed(paired_difference(values["softmax"], values["lazy"]), digits, unit, "+")
            rows.append([title, *(printed(mean, digits, unit) for mean in means), difference])
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
    if not path.is_file():
        started = (folder / "uptrain.json").is_file()
        mend = "; no measurement is finished, run the same `lazy uptrain` command again to continue" if started else ""
        raise UserError(f"{folder}: expected a folder of `lazy uptrain` with results.json, found none{mend}")
    results = read_object(path, "format")
    if results["format"] != FORMAT:
        raise UserError(f"{path}: format: expected {FORMAT}, found {results['format']}")
    return results


def write_report(folder):
    """Writes report.html and report.md from results.json of the folder. Returns the paths of the two files."""
    results = read_results(folder)
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        mend = f"`{sys.executable} -m pip install {' '.join(missing)}`, then `lazy uptrain --report-only {folder}`"
        raise UserError(f"the report needs Python packages that {sys.executable} lacks: {mend}")
    import jinja2

    from .charts import color_css
    from .figures import FIGURES

    context = results | {
        "summary": f"{summary(results)} {incomplete(results)}".rstrip(),
        "table": table(results),
        "columns": COLUMNS,
        "settings": settings(results),
        "figures": [(title, picture) for title, draw in FIGURES if (picture := draw(results))],
        "colors": color_css(),
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lazy_lab", "templates"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages = [folder / "report.html", folder / "report.md"]
    for page in pages:
        write_atomic(page, environment.get_template(f"uptrain_{page.name}").render(context))
    return pages
