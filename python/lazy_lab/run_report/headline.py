"""The title of the run report and the paragraph below it, computed from the runs as plain text."""

from .text import fixed, grouped, percent

# Measures for the comparison of runs, as (key, unit, digits). The page uses the first one that every run has. Bits per
# byte come first because they do not depend on the tokenizer.
QUALITIES = (("bits_per_byte", "bits per byte", 3), ("loss", "nats per token", 3), ("word_perplexity", "perplexity", 1))
EARLY_TOKENS = 200e6
HEAD_START = (
    "An early lead can be a head start that shrinks with more training tokens: docs/results/README.md shows the "
    "difference over a longer training."
)
NAMES = {"lazy": "Lazy Attention", "softmax": "Softmax"}


def budget(runs):
    tokens = [run.values.get("tokens", 0) for run in runs]
    low, high = min(tokens), max(tokens)
    if not low:
        return ""
    if high - low < 0.005 * high:
        return f"After {grouped(high)} training tokens{' each' if len(runs) > 1 else ''}"
    return f"After {grouped(low)} to {grouped(high)} training tokens (the runs differ)"


def weights(run):
    sink, released, alive = (run.values[key] for key in ("sink_ratio", "released_mass", "alive_fraction"))
    text = f"{NAMES.get(run.kind, run.name)} puts {percent(sink)} % of its weight on the first token"
    if abs(released) > 5e-4:
        text += f", releases {percent(released)} %"
    if alive < 0.9995:
        text += f" and gives a nonzero weight to {percent(alive)} % of the visible (query, key) pairs"
    return f"{text}."


def uniform_weights(runs):
    """Returns a sentence with the sink ratio that softmax with equal scores would have, as a reference value. Returns
    "" if the softmax runs were not measured with the same length and BOS setting."""
    settings = {(run.sinks["length"], run.sinks["bos"]) for run in runs if run.sinks and run.kind == "softmax"}
    if len(settings) != 1:
        return ""
    length, bos = settings.pop()
    share = sum(1 / i for i in range(1, length + 1)) / length
    began = "every sample began with BOS" if bos else "samples did not begin with BOS"
    return f"Softmax over equal scores would put {percent(share)} % on it (H_T / T at {length} tokens); {began}."


def comparison(lazy, softmax, key, unit, digits):
    """Returns the sentences on the difference between two runs. Values are rounded to `digits`, as in the title."""
    first, second = (round(run.values[key], digits) for run in (lazy, softmax))
    gap, start = first - second, ", ".join(filter(None, (budget([lazy, softmax]), "Lazy Attention")))
    if abs(gap) < 0.5 * 10**-digits:
        return [f"{start} and the compared softmax model have the same loss to the printed digits."]
    difference = f"{fixed(abs(gap), digits)} {unit} {'better' if gap < 0 else 'worse'}"
    share = f"({fixed(100 * abs(gap) / second, 1)} %)"
    is_early = gap < 0 and lazy.values.get("tokens", EARLY_TOKENS) < EARLY_TOKENS
    sentence = f"{start} is {difference} than the compared softmax model on held-out text {share}."
    return [sentence, HEAD_START] if is_early else [sentence]


def headline(runs):
    """Returns (title, paragraph). The runs are in the order of the page: Lazy first, then softmax."""
    quality = next((found for found in QUALITIES if all(found[0] in run.values for run in runs)), None)
    is_pair = [run.kind for run in runs] == ["lazy", "softmax"]
    if is_pair:
        title = "Lazy Attention vs softmax"
    else:
        title = f"{len(runs)} runs" if len(runs) > 1 else NAMES.get(runs[0].kind, runs[0].name)
    sentences = [f"{budget(runs)}."] if budget(runs) else []
    if not quality:
        title += ": distribution of attention weight"
    else:
        key, unit, digits = quality
        shown = [fixed(run.values[key], digits) for run in runs]
        if is_pair:
            sentences = comparison(*runs, *quality)
            title += f": {' against '.join(shown)} {unit}"
        elif len(runs) > 1:
            best = min(runs, key=lambda run: run.values[key])
            title += f": {best.name} is best with {fixed(best.values[key], digits)} {unit}"
        else:
            title += f": {shown[0]} {unit}"
    if len(runs) <= 2:
        sentences += [weights(run) for run in runs if run.sinks] + [uniform_weights(runs)]
    if len(runs) > 1:
        sentences.append("Each configuration was run once, so the variation between seeds is not known.")
    return title, " ".join(filter(None, sentences))
