"""Tests of the page for results of `lazy eval --lengths`. The results are invented; docs/guides/length.md describes
their format."""

import copy
import re

import pytest
from html_page import Checker, plain, section

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from lazy_lab.errors import UserError  # noqa: E402
from lazy_lab.run_report import lengths  # noqa: E402
from lazy_lab.run_report.fields import Field  # noqa: E402


def model(label, kind):
    facts = {"path": f"runs/{label}/model", "rope_base": 150000, "training_length": 256}
    return facts | {"label": label, "kind": kind}


def window(length, loss, words, interval, positions=()):
    row = {"length": length, "loss": loss, "perplexity": 20, "word_perplexity": words, "words": 9}
    row |= {"word_perplexity_interval": interval}
    places = [{"from": 1, "to": to, "loss": value, "loss_interval": bounds} for to, value, bounds in positions]
    return row | ({"positions": places} if places else {})


def depths(*values):
    keys = ("depth", "exact", "log_likelihood", "log_likelihood_absent")
    return [dict(zip(keys, row)) for row in values]


def lambada(accuracy):
    rows = [{"length": 256, "perplexity": 30, "word_accuracy": accuracy, "word_perplexity": 70}]
    standard = {"max_length": 256, "word_accuracy": 2 * accuracy, "word_perplexity": 60}
    return {"unit": "item", "units": 5153, "skipped": [], "standard": standard, "lengths": rows}


# The loss of the second model grows strongly with length.
FIRST = [window(256, 3, 40, [38, 42]), window(512, 3, 41, None, [(1, 7, [6, 8]), (512, 3, [2.9, 3.1])])]
SECOND = [
    window(256, 3, 42, [40, 44]),
    window(512, None, None, None),
    window(1024, 5, 900, [800, 1000], [(1, 7, None)]),
]
LONG = {"skipped": [{"length": 99999, "why": "the text has 5000 tokens"}]}
STUDY = {
    "schema": "lazy.length/1",
    "config": {"lengths": [256, 512, 1024]},
    "models": [model("lazy", "lazy"), model("<soft>", "transformer")],
    "results": {
        "wikitext": {
            "source": "data/eval",
            "models": [
                {"unit": "document", "units": 62, "lengths": FIRST} | LONG,
                {"unit": "document", "units": 62, "skipped": [], "lengths": SECOND},
            ],
            "change_against_first": [
                {"model": 1, "lengths": [{"length": 512, "difference": 1.25, "interval": [1.1, 1.4]}]}
            ],
        },
        "lambada_openai": {"source": "data/eval", "models": [lambada(0.2), lambada(0.3)]},
        "passkey": {
            "models": [
                {
                    "skipped": [],
                    "lengths": [
                        {"length": 256, "depths": depths((0, 1, -1, -9), (1, 0.4, -2, -9))},
                        {"length": 1024, "depths": depths((0, 0.2, -9, -8), (1, 0, -8, -8))},
                    ],
                },
                {"skipped": [], "lengths": [{"length": 256, "depths": depths((0, 1, -1, -9), (1, 1, -1, -9))}]},
            ]
        },
    },
}


def render(study):
    return lengths.render(Field(study, "lengths.json"), "lazy eval lazy <soft> --lengths 256", "2026-01-02", "0.1.0")


def test_page_shows_every_task():
    page = render(STUDY)
    checked = Checker(page)
    for name in ("models", "wikitext", "lambada_openai", "passkey", "run"):
        assert f'<section id="{name}">' in page
    assert "<soft>" in checked.text and "nan" not in checked.text
    assert not re.search(r"https?://|<script|<link|<img|url\((?!#)|@import", page)
    wikitext, recall = plain(section(page, "wikitext")), plain(section(page, "passkey"))
    assert "256 40.00 38.00 to 42.00 42.00 40.00 to 44.00 512 41.00 not finite 1024 – 900.00" in wikitext
    assert "the axis is logarithmic" in wikitext  # the values range from 38 to 1000
    assert "■ <soft> 512 1.250 1.100 to 1.400" in wikitext
    assert "lazy: length 99999 skipped: the text has 5000 tokens." in wikitext
    assert "Intervals over 62 documents of data/eval." in wikitext
    assert "0 % 100 20.0 100 % 40.0 0 depth 256 1k" in recall  # exact answers of the first model
    assert "not planted" in section(page, "passkey")  # at 1k, planting the key lowers the likelihood
    assert (
        "Standard score, with each item in a separate context model max_length accuracy perplexity ● lazy 256 0.400"
        in (plain(section(page, "lambada_openai")))
    )


def damaged(*path):
    """Returns a damaged copy of the results. The arguments are a path of keys and a new value for the last key. If the
    new value is None, the key is removed."""
    *keys, last, value = path
    study = copy.deepcopy(STUDY)
    place = study
    for key in keys:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return study


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("schema", "lazy.length/9"), 'schema: expected "lazy.length/1", found "lazy.length/9"'),
        (("models", []), "models: expected at least one model, found a list"),
        (("results", "passkey", "models", 1, None), "results.passkey.models: expected 2 entries"),
        (
            ("results", "passkey", "models", 0, "lengths", 1, "depths", 0, "exact", 3),
            "results.passkey.models[0].lengths[1].depths[0].exact: expected a fraction from 0 to 1, found 3",
        ),
        (
            ("results", "passkey", "models", 0, "lengths", 1, "depths", 0, None),
            "results.passkey.models[0].lengths[1].depths: expected 2 depths",
        ),
        (
            ("results", "wikitext", "models", 0, "lengths", 0, "length", None),
            "results.wikitext.models[0].lengths[0].length: expected a number, found nothing",
        ),
        (
            ("results", "wikitext", "models", 0, "lengths", 0, "word_perplexity_interval", [1]),
            "results.wikitext.models[0].lengths[0].word_perplexity_interval: expected two numbers",
        ),
        (("results", "wikitext", "models", 1, "lengths", []), "results.wikitext.models[1].lengths: expected at"),
    ],
)
def test_damaged_file_is_named_with_the_field(path, found):
    with pytest.raises(UserError) as error:
        render(damaged(*path))
    assert str(error.value).startswith(f"lengths.json: {found}")
