"""Writes the page of the GPT-2 study and its pictures from records."""

import numpy as np

from .. import charts, records
from ..errors import UserError
from ..results.text import estimate, number, table, write_page
from ..statistics import student_interval
from .gpt2 import READINGS
from .study import draw_map

CONDITIONS = {  # name of the condition -> (what is changed, result that the study reports)
    "none": ("nothing", ""),
    "1": ("1: b_Q = 0", "the sink substantially diminishes"),
    **{f"2 {name}": (f"2: EPE_2 replaces EPE_1, {name}", "the sink disappears") for name in READINGS},
    **{f"3 {name}": (f"3: EPE_1 moves to position 2, {name}", "a strong sink at position 2") for name in READINGS},
    "4": ("4: the first token's embedding = 0", "the sink persists"),
    "5": ("5: no keys from the two massive coordinates", "the sink is substantially reduced"),
    "control": ("control of 5: random pairs of coordinates", "the sink remains"),
    "2'": ("2': p_2 replaces p_1 at the input", "not in the study"),
    "3'": ("3': p_1 and p_2 exchanged at the input", "not in the study"),
}
# Tables 1 and 2 of the study for the twelve layers of GPT-2 with 124M parameters: mean and standard deviation of
# |gamma|, and |gamma| at the coordinates 138 and 447.
PUBLISHED_GAMMA = {
    "mean": (4.47, 2.8, 1.717, 1.657, 1.561, 0.86, 1.12, 1.404, 1.23, 1.313, 1.403, 1.145),
    "std": (22.226, 6.62, 5.826, 5.02, 4.618, 1.59, 2.701, 3.546, 3.224, 3.616, 4.0, 2.65),
    "138": (12.116, 8.065, 10.178, 18.198, 3.072, 5.644, 12.453, 19.806, 17.846, 23.131, 27.547, 4.5),
    "447": (11.064, 24.468, 23.047, 17.149, 23.854, 6.142, 18.17, 28.01, 28.01, 28.42, 27.691, 13.59),
}


def interventions(found, recorded):
    """Returns a dictionary. "interventions": the table of all interventions. "uniform": the mean weight on the first
    key under uniform attention. "halved": the titles of the conditions in which the attention to the first position
    loses more than half of its excess over "uniform". recorded: {condition: [attention to the first position, attention
    to the second position]} for the model with 55M parameters."""
    keys, conditions = ("first", "second"), dict(found["conditions"])
    controls = [values for name, values in conditions.items() if name.startswith("control")]
    conditions["control"] = {key: np.mean([values[key] for values in controls], axis=0) for key in keys}
    uniform = np.mean(1 / np.arange(2, found["length"] + 1))
    excess = np.mean(conditions["none"]["first"]) - uniform
    rows, halved = [], []
    for name, (title, study) in CONDITIONS.items():
        by_text = [np.mean(conditions[name][key], axis=1) for key in keys]  # means over layers
        earlier = ", ".join(map(number, recorded.get(name, [])))
        rows.append([title, study, earlier, *(estimate(student_interval(values)) for values in by_text)])
        if np.mean(by_text[0]) - uniform < excess / 2:
            halved.append(title)
    header = ["changed", "the study", "55M: first, second", "first position", "second position"]
    return {"interventions": table(header, rows), "uniform": uniform, "halved": halved}


def alignments(found):
    """Returns the table of the three readings of the effective positional embedding (EPE): their largest coordinates,
    norms, and alignment with b_Q."""
    rows = []
    for reading, meaning in READINGS.items():
        epe = found["epe"][reading]
        gap = np.subtract(epe["cosine_first"], epe["cosine_others_mean"])
        without = [
            np.mean(np.abs(layer["cosine_without_epe"][reading])) - np.mean(np.abs(layer["cosine_input"]))
            for layer in found["delta"][1:]  # EPE is not part of the stream before the first layer
        ]
        first, second, *_ = epe["top"]
        cells = [f"{first}, {second}", f"{number(epe['norms'][0], 2)} / {number(epe['norms'][2], 2)}"]
        cells.append(number(np.mean(epe["cosine_first"]), 2))
        cells += [estimate(student_interval(values), 2, signed=True) for values in (gap, without)]
        rows.append([f"{reading}: {meaning}", *cells])
    header = ["reading", "two largest coordinates", "norm, first / median", "cosine of EPE_1"]
    return table([*header, "minus other positions", "without EPE_1"], rows)


def gammas(found):
    """Returns the table of |gamma| by layer. If the model has the shape of GPT-2, the published values are added."""
    is_gpt2 = (found["layers"], found["width"]) == (12, 768)
    columns = [*PUBLISHED_GAMMA] if is_gpt2 else ["mean", "std", *map(str, found["massive"])]
    rows = []
    for layer, values in enumerate(found["gamma"]):
        values = values | values["at"]
        cells = [number(values[column]) if column in values else "" for column in columns]
        if is_gpt2:
            cells = [f"{cell} ({PUBLISHED_GAMMA[column][layer]})" for cell, column in zip(cells, columns)]
        rows.append([layer, *cells])
    return table(["layer", "mean", "standard deviation", *(f"coordinate {n}" for n in columns[2:])], rows)


def deltas(found):
    """Returns the table of Delta by layer: its value at the first position, its mean at the other positions, and the
    contribution of EPE to the difference."""
    rows = []
    for layer, values in enumerate(found["delta"]):
        gaps = np.subtract(values["first"], values["others_mean"])
        row = [layer, number(np.mean(values["first"]), 2), estimate(student_interval(gaps), 2, signed=True)]
        row.append(number(gaps.mean() / values["others_std"], 1))
        rows.append(row + [number(values["from_epe"][reading], 2) if layer else "" for reading in READINGS])
    header = ["layer", "Delta_1", "minus other positions", "in standard deviations"]
    return table([*header, *(f"from EPE, {reading}" for reading in READINGS)], rows)


def first_order(found):
    """Returns the table that compares predictions of the effect of a position embedding on the residual stream. The
    columns are the cosine and the explained share, for position 1 and as a mean over the other measured positions."""
    titles = {"p": "p alone", "derivative": "derivative along p"} | {r: f"EPE, {r}" for r in READINGS}
    rows = []
    for name, title in titles.items():
        values = found["first_order"]["predictions"][name]
        cells = [value for key in ("cosine", "explained") for value in (values[key][0], np.mean(values[key][1:]))]
        rows.append([title, *(number(value, 2) for value in cells)])
    return table(["prediction", "cosine, position 1", "others", "explained, position 1", "others"], rows)


def draw_layers(found, path):
    """Draws the attention to the first position by layer for each intervention. One panel shows interventions in all
    layers, and one panel shows interventions in a single layer at a time."""
    panels = {
        "all layers": {n: np.mean(found["conditions"][n]["first"], axis=0) for n in CONDITIONS if n != "control"},
        "one layer at a time": found["single"],
    }
    panels = {title: (list(rows), np.array([*rows.values()], dtype=float)) for title, rows in panels.items()}
    top = max(np.nanmax(values) for _, values in panels.values())
    figure, grid = charts.figure(720, 420, ncols=2)
    for axes, (title, (names, values)) in zip(grid, panels.items()):
        draw_map(axes, values / top, f"{title} (darkest: {top:.2f})")
        axes.set(aspect="auto", xlabel="layer", xticks=range(found["layers"]))
        axes.set_yticks(range(len(names)), names)
    charts.save_svg(figure, path, "Attention to the first position by intervention and layer")


def draw_conditions(found, path):
    """Draws one attention map per condition: the mean over layers, heads and texts."""
    figure, grid = charts.figure(720, 570, nrows=3, ncols=5)
    for axes in grid.flat[len(CONDITIONS) :]:
        axes.set_axis_off()
    for name, axes in zip(CONDITIONS, grid.flat):
        name = "control 0" if name == "control" else name
        draw_map(axes, found["maps"][name], name)
    charts.save_svg(figure, path, "Attention maps under each intervention")


def draw_delta(found, path):
    """Draws histograms of Delta_j at the first position and at the other positions, with one panel per layer. The
    largest bin of each histogram has height 1."""
    rows = -(-found["layers"] // 3)
    figure, grid = charts.figure(720, 60 + 150 * rows, nrows=rows, ncols=3, squeeze=False)
    for axes in grid.flat[found["layers"] :]:
        axes.set_axis_off()
    for layer, (values, axes) in enumerate(zip(found["delta"], grid.flat)):
        for name, label, role in (("others", "other positions", "s1"), ("first", "first position", "s0")):
            counts = np.array(values["histogram"][name])
            edges = np.linspace(*values["range"], len(counts) + 1)
            axes.stairs(counts / counts.max(), edges, fill=True, alpha=0.7, color=charts.color(role), label=label)
        axes.set_title(f"layer {layer}")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    charts.save_svg(figure, path, "Distribution of Delta by layer, first position and other positions")


def draw_epe(found, path):
    """Draws the coordinates of EPE_1, and the cosine between W_k EPE_j and b_Q by layer, for each of the three readings
    of EPE."""
    first_color, others_color, layers = charts.color("s0"), charts.color("s1"), range(found["layers"])
    figure, grid = charts.figure(720, 660, nrows=3, ncols=2)
    for reading, (left, right) in zip(READINGS, grid):
        epe = found["epe"][reading]
        left.plot(epe["first"], lw=1, color=others_color)
        left.set_title(f"EPE_1 by coordinate, {reading}")
        mean, spread = np.array(epe["cosine_others_mean"]), np.array(epe["cosine_others_std"])
        right.plot(layers, epe["cosine_first"], "o-", color=first_color, label="first position")
        right.plot(layers, mean, "s-", color=others_color, label="other positions")
        right.fill_between(layers, mean - spread, mean + spread, alpha=0.2, lw=0, color=others_color)
        right.set(title="cosine with b_Q by layer", ylim=(-1, 1))
    figure.legend(*grid[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    charts.save_svg(figure, path, "Effective positional embedding and its alignment with the query bias")


PICTURES = {"interventions": draw_layers, "maps": draw_conditions, "delta": draw_delta, "epe": draw_epe}


def write(path, folder):
    """Writes gpt2.md and its pictures to `folder`. The file `path` contains one full record of a model, and optionally
    the record gpt2/sink-55m."""
    rows = records.read(path)
    full = [record for record in rows if "conditions" in record]
    if len(full) != 1:
        raise UserError(f"{path}: expected one record with the key conditions, found {len(full)}")
    found = full[0]
    recorded = next((record["summary"] for record in rows if "summary" in record), {})
    for name, draw in PICTURES.items():
        draw(found, folder / f"gpt2-{name}.svg")
    write_page(
        folder,
        "gpt2",
        record=found,
        recorded=recorded,
        **interventions(found, recorded.get("attention", {})),
        **{make.__name__: make(found) for make in (alignments, gammas, deltas, first_order)},
        repeated=student_interval(np.mean(found["repeated"]["first"], axis=1)),
        variances={name: student_interval(ratios) for name, ratios in found["variances"].items()},
        positions=", ".join(str(position + 1) for position in found["first_order"]["positions"][1:]),
    )
