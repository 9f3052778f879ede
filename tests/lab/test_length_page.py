"""Tests of the page for results of `lazy eval --lengths`. The results are invented; docs/guides/length.md describes
their format."""

import pytest
from html_page import checked_text, dotted, plain, replaced, section

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from lazy_lab.errors import UserError  # noqa: E402
from lazy_lab.run_report import lengths  # noqa: E402
from lazy_lab.run_report.fields import Field  # noqa: E402


def model(label, kind):
    facts = {"path": f"runs/{label}/model", "rope_base": 150000, "training_length": 256}
    return facts | {"label": label, "kind": kind}


def window(length, words, interval, *positions):
    places = [{"from": 1, "to": to, "loss": value, "loss_interval": bounds} for to, value, bounds in positions]
    row = {"length": length, "perplexity": 20, "word_perplexity": words, "word_perplexity_interval": interval}
    return row | {"words": 9} | ({"positions": places} if places else {})


def probe(*lengths):
    keys = ("depth", "exact", "log_likelihood", "log_likelihood_absent")
    rows = [{"length": length, "depths": [dict(zip(keys, row)) for row in rows]} for length, *rows in lengths]
    return {"skipped": [], "lengths": rows}


def lambada(accuracy):
    rows = [{"length": 256, "perplexity": 30, "word_accuracy": accuracy, "word_perplexity": 70}]
    standard = {"max_length": 256, "word_accuracy": 2 * accuracy, "word_perplexity": 60}
    return {"unit": "item", "units": 5153, "skipped": [], "standard": standard, "lengths": rows}


# The perplexity of the second model grows strongly with length.
FIRST = [window(256, 40, [38, 42]), window(512, 41, None, (1, 7, [6, 8]), (512, 3, [2.9, 3.1]))]
SECOND = [window(256, 42, [40, 44]), window(512, None, None), window(1024, 900, [800, 1000], (1, 7, None))]
DOCUMENTS = {"unit": "document", "units": 62, "skipped": []}
CHANGES = [{"model": 1, "lengths": [{"length": 512, "difference": 1.25, "interval": [1.1, 1.4]}]}]
STUDY = {
    "schema": "lazy.length/1",
    "config": {"lengths": [256, 512, 1024]},
    "models": [model("lazy", "lazy"), model("<soft>", "transformer")],
    "results": {
        "wikitext": {
            "source": "data/eval",
            "models": [
                DOCUMENTS | {"lengths": FIRST, "skipped": [{"length": 99999, "why": "the text has 5000 tokens"}]},
                DOCUMENTS | {"lengths": SECOND},
            ],
            "change_against_first": CHANGES,
        },
        "heldout": {"source": "corpus", "models": [DOCUMENTS | {"lengths": FIRST}] * 2},
        "lambada_openai": {"source": "data/eval", "models": [lambada(0.2), lambada(0.3)]},
        "passkey": {
            "models": [
                probe((256, (0, 1, -1, -9), (1, 0.4, -2, -9)), (1024, (0, 0.2, -9, -8), (1, 0, -8, -8))),
                probe((256, (0, 1, -1, -9), (1, 1, -1, -9))),
            ]
        },
    },
}


def render(study):
    return lengths.render(Field(study, "lengths.json"), "lazy eval lazy <soft> --lengths 256", "2026-01-02", "0.1.0")


def test_page_shows_every_task():
    page = render(STUDY)
    text = checked_text(page)
    assert "<soft>" in text and "nan" not in text
    assert "2 models and variants at context lengths from 256 to 1024 tokens." in text
    wikitext, passkey = plain(section(page, "wikitext")), plain(section(page, "passkey"))
    assert "256 40.00 38.00 to 42.00 42.00 40.00 to 44.00 512 41.00 not finite 1024 – 900.00" in wikitext
    assert "perplexity per word, log scale" in wikitext  # the values range from 38 to 1000
    assert "log scale" not in section(page, "heldout") and "Held-out text" in section(page, "heldout")
    assert "■ <soft> 512 1.250 1.100 to 1.400" in wikitext
    assert "lazy: length 99999 skipped: the text has 5000 tokens." in wikitext
    assert "Intervals over 62 documents of data/eval." in wikitext
    assert "0 % 100 20.0 100 % 40.0 0 depth 256 1k" in passkey  # exact answers of the first model
    assert "not planted" in passkey  # at 1k, planting the key lowers the likelihood
    lambada = plain(section(page, "lambada_openai"))
    assert "in a separate context model max_length accuracy perplexity ● lazy 256 0.400 60.00 ■ <soft>" in lambada


PASSKEY = ("results", "passkey", "models")
WIKITEXT = ("results", "wikitext", "models")


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["schema"], "lazy.length/9", 'expected "lazy.length/1", found "lazy.length/9"'),
        (["models"], [], "expected at least one model, found a list"),
        (["config", "lengths"], [], "expected at least one length, found a list"),
        (PASSKEY, [], "expected 2 entries, one per model, found a list"),
        ([*PASSKEY, 0, "lengths", 1, "depths", 0, "exact"], 3, "expected a fraction from 0 to 1, found 3"),
        ([*PASSKEY, 0, "lengths", 1, "depths"], [{}], "expected 2 depths, as at the first length, found a list"),
        ([*PASSKEY, 0, "lengths", 0, "depths"], [], "expected at least one depth, found a list"),
        ([*WIKITEXT, 0, "lengths", 0, "length"], "long", 'expected a number, found "long"'),
        ([*WIKITEXT, 0, "lengths", 0, "word_perplexity_interval"], [1], "expected two numbers, found a list"),
        ([*WIKITEXT, 1, "lengths"], [], "expected at least one length, found a list"),
        ([*WIKITEXT, 0, "skipped"], 3, "expected a list, found 3"),
    ],
)
def test_damaged_file_is_named_with_the_field(path, value, found):
    with pytest.raises(UserError) as error:
        render(replaced(STUDY, path, value))
    assert str(error.value) == f"lengths.json: {dotted(path)}: {found}"
