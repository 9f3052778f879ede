"""The page table1.md: the models of the paper's Table 1 at 55M parameters, 100M tokens and two seeds."""

import itertools

from .. import charts
from ..published import TABLE1_340M, TABLE1_760M
from . import data, pictures, text
from .data import LOSS, Measure, percent

MODELS = {  # name of a model in the recipe table1 -> its title on the page
    "lazy": "Lazy Attention",
    "no-positional": "Lazy without bias, RoPE base 1e4 (- Positional)",
    "no-elastic": "Lazy with softmax (- Elastic)",
    "softmax": "softmax (Transformer++)",
    "softmax-rope150k": "softmax, RoPE base 1.5e5",
    "streaming": "StreamingLLM (softmax, cache of 4 + 60 tokens)",
    "sigmoid": "sigmoid attention",
    "gated-deltanet": "Gated DeltaNet",
    "deltanet": "DeltaNet",
    "mamba2": "Mamba2",
    "retnet": "RetNet",
    "ttt-linear": "TTT-Linear",
    "titans-mag": "Titans MAG",
    "titans-lmm": "Titans LMM",
}
TASKS = {  # title -> task/metric, in the order of the paper's columns
    "LAMBADA acc": "lambada_openai/acc",
    "PIQA acc": "piqa/acc",
    "HellaSwag acc_n": "hellaswag/acc_norm",
    "WinoGrande acc": "winogrande/acc",
    "ARC-e acc": "arc_easy/acc",
    "ARC-c acc_n": "arc_challenge/acc_norm",
    "SIQA acc": "social_iqa/acc",
    "BoolQ acc": "boolq/acc",
}
NO_BREAK = ",\u00a0"  # a comma and a non-breaking space
CHANCE = ("", "50", "25", "50", "25", "25", "33", "50")


def task(title, path, digits, scale=1):
    return Measure(title, f"tasks-{path.split('/')[0]}/{path}/value", digits, scale)


ACCURACIES = [task(title, path, 1, 100) for title, path in TASKS.items()]
AVERAGE = percent(
    "average of 8", lambda model: data.combine(lambda *x: sum(x) / len(x), *(a.of(model) for a in ACCURACIES))
)
COLUMNS = (
    task("WikiText ppl", "wikitext/word_perplexity", 0),
    task("LAMBADA ppl", "lambada_openai/perplexity", 0),
    *ACCURACIES,
    AVERAGE,
)
LENGTHS = {
    length: Measure(f"{length} tokens", f"lengths-{length}/heldout/{length}")
    for length in (512, 1024, 2048, 4096, 8192)
}


def spread(measure, model):
    """Returns the text "mean ± half of the difference between the two seeds"."""
    found = measure.of(f"{model}@100").values()
    shown = [
        text.number(x, measure.digits, measure.scale) for x in (sum(found) / len(found), (max(found) - min(found)) / 2)
    ]
    return "\u00a0±\u00a0".join(shown)


def by_loss():
    """Returns the models ordered by the held-out loss."""
    return sorted(MODELS, key=lambda model: LOSS.level(f"{model}@100").mean)


def comparison():
    """Returns the table of all models by benchmark, with the numbers from the paper in small type."""
    rows = []
    for model in by_loss():
        paper = [numbers for numbers in (TABLE1_340M.get(model), TABLE1_760M.get(model))]
        cells = [spread(measure, model) for measure in COLUMNS]
        for place in range(len(COLUMNS) if any(paper) else 0):
            cited = [text.number(numbers[place], 1) if numbers else "–" for numbers in paper]
            cells[place] += f"<br><sub>{NO_BREAK.join(cited)}</sub>"
        rows.append([MODELS[model], spread(LOSS, model), *cells])
    rows.append(["chance", "", "", "", *CHANCE, ""])
    return text.table(["model", LOSS.title, *(measure.title for measure in COLUMNS)], rows)


def same_order(paper):
    """Returns (number of pairs of models that our held-out losses rank in the same order as the paper's WikiText
    perplexities, number of all pairs)."""
    losses = {model: LOSS.level(f"{model}@100").mean for model in paper}
    pairs = list(itertools.combinations(paper, 2))
    return sum((paper[a][0] < paper[b][0]) == (losses[a] < losses[b]) for a, b in pairs), len(pairs)


def draw(folder):
    """Draws the held-out loss of every model with one mark per seed, and the loss of five models by context length."""
    figure, axes = charts.figure(720, 400, ncols=2, width_ratios=(1, 1.15))
    shown = {"lazy": "s0", "softmax": "s1", "gated-deltanet": "s2", "mamba2": "s3", "ttt-linear": "s4"}
    ordered, short = by_loss(), {model: title.split(" (")[0] for model, title in MODELS.items()}
    for place, model in enumerate(ordered):
        losses = list(LOSS.of(f"{model}@100").values())
        axes[0].plot(losses, [place] * len(losses), "o-", color=charts.color(shown.get(model, "s6")))
    axes[0].set_yticks(range(len(ordered)), [short[model] for model in ordered])
    axes[0].set(ylim=(len(ordered) - 0.5, -0.5), xlabel="held-out loss, nats per token")
    axes[0].grid(axis="y", visible=False)
    for model, role in shown.items():
        columns = [measure.of(f"{model}@100") for measure in LENGTHS.values()]
        pictures.curves(axes[1], list(LENGTHS), pictures.by_seed(columns), short[model], role)
    charts.length_axis(axes[1], list(LENGTHS))
    axes[1].set(xlabel="context, tokens", ylabel="loss, nats per token")
    axes[1].legend(loc="upper left", fontsize=12)
    charts.save_svg(figure, folder / "table1.svg", "Held-out loss of fourteen models, and loss by context length")


def write(folder):
    draw(folder)
    measured = {MODELS[model]: model for model in by_loss() if LENGTHS[512].of(f"{model}@100")}
    text.write_page(
        folder,
        "table1",
        table=comparison(),
        by_length=text.models_by_measures("loss in windows of", measured, LENGTHS.values(), spread),
        order={"340M": same_order(TABLE1_340M), "760M": same_order(TABLE1_760M)},
        AVERAGE=AVERAGE,
    )
