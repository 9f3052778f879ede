"""The page table1.md: the models of the paper's Table 1 at 55M parameters, 100M tokens and two seeds."""

import itertools

from .. import charts
from ..published import TABLE1_340M, TABLE1_760M
from . import pictures, text
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
TASKS = {  # title -> (task/metric, accuracy by chance in %), in the order of the paper's columns
    "LAMBADA acc": ("lambada_openai/acc", ""),
    "PIQA acc": ("piqa/acc", "50"),
    "HellaSwag acc_n": ("hellaswag/acc_norm", "25"),
    "WinoGrande acc": ("winogrande/acc", "50"),
    "ARC-e acc": ("arc_easy/acc", "25"),
    "ARC-c acc_n": ("arc_challenge/acc_norm", "25"),
    "SIQA acc": ("social_iqa/acc", "33"),
    "BoolQ acc": ("boolq/acc", "50"),
}
NO_BREAK = ",\u00a0"  # a comma and a non-breaking space


def task(path):
    return f"tasks-{path.split('/')[0]}/{path}/value"


ACCURACIES = {title: task(path) for title, (path, _) in TASKS.items()}
AVERAGE = percent("average of 8", tuple(ACCURACIES.values()))
COLUMNS = (
    Measure("WikiText ppl", task("wikitext/word_perplexity"), 0),
    Measure("LAMBADA ppl", task("lambada_openai/perplexity"), 0),
    *itertools.starmap(percent, ACCURACIES.items()),
    AVERAGE,
)
LENGTHS = {
    length: Measure(f"{length} tokens", f"lengths-{length}/heldout/{length}")
    for length in (512, 1024, 2048, 4096, 8192)
}


def spread(measure, model):
    """Returns the text "mean ± half of the difference between the two seeds"."""
    found = measure.of(f"{model}@100")
    shown = (text.number(x, measure.digits) for x in (found.mean(), (found.max() - found.min()) / 2))
    return "\u00a0±\u00a0".join(shown)


def losses():
    """Returns {model: mean held-out loss}, sorted by the loss."""
    return dict(sorted(((model, LOSS.of(f"{model}@100").mean()) for model in MODELS), key=lambda item: item[1]))


def comparison():
    """Returns the table of all models by benchmark, with the numbers from the paper in small type."""
    rows = []
    for model in losses():
        paper = [table.get(model) for table in (TABLE1_340M, TABLE1_760M)]
        cells = [spread(measure, model) for measure in COLUMNS]
        for place in range(len(COLUMNS) if any(paper) else 0):
            cited = [text.number(numbers[place], 1) if numbers else "–" for numbers in paper]
            cells[place] += f"<br><sub>{NO_BREAK.join(cited)}</sub>"
        rows.append([MODELS[model], spread(LOSS, model), *cells])
    rows.append(["chance", "", "", "", *(chance for _, chance in TASKS.values()), ""])
    return text.table(["model", LOSS.title, *(measure.title for measure in COLUMNS)], rows)


def same_order(paper):
    """Returns (number of pairs of models that our held-out losses rank in the same order as the paper's WikiText
    perplexities, number of all pairs)."""
    ours, pairs = losses(), list(itertools.combinations(paper, 2))
    return sum((paper[a][0] < paper[b][0]) == (ours[a] < ours[b]) for a, b in pairs), len(pairs)


def by_length():
    """Returns the table of the loss by context length, of the models for which it was measured."""
    measured = {MODELS[model]: model for model in losses() if len(LENGTHS[512].of(f"{model}@100"))}
    return text.models_by_measures("loss in windows of", measured, LENGTHS.values(), spread)


@pictures.picture(
    "table1", "Held-out loss of fourteen models, and loss by context length", 400, ncols=2, width_ratios=(1, 1.15)
)
def draw(figure, axes):
    shown = {"lazy": "s0", "softmax": "s1", "gated-deltanet": "s2", "mamba2": "s3", "ttt-linear": "s4"}
    short = {model: MODELS[model].split(" (")[0] for model in losses()}
    for place, model in enumerate(short):
        found = LOSS.of(f"{model}@100")
        axes[0].plot(found, [place] * len(found), "o-", color=charts.color(shown.get(model, "s6")))
    pictures.rows_axis(axes[0], short.values())
    axes[0].set_xlabel("held-out loss, nats per token")
    for model, role in shown.items():
        pictures.curves(axes[1], pictures.points(LENGTHS, f"{model}@100"), short[model], role)
    charts.length_axis(axes[1], list(LENGTHS))
    axes[1].set(xlabel="context, tokens", ylabel="loss, nats per token")
    axes[1].legend(loc="upper left", fontsize=12)
