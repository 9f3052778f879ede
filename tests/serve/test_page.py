"""Tests of the web page that `lazy serve` shows at `/`, in headless Chromium with the window sizes of a desktop and a
phone.

LAZY_PAGE_PICTURES is a folder for screenshots of the tested pages.
"""

import json
import os
import tempfile
import urllib.request

import browser
import pytest
from serving import serving

pytestmark = pytest.mark.data

PROMPT = "Once there was a house by the sea"
SIZES = {"desk": (1280, 800), "phone": (390, 844)}


def ask(address, path, body):
    request = urllib.request.Request(f"{address}/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class Page:
    """The page under test: methods that act on it like a user, and methods that read values from it."""

    def __init__(self, tab, address, size):
        self.tab, self.address, self.size = tab, address, size
        tab.problems.clear()
        tab.requests.clear()
        tab.open(f"{address}/", *SIZES[size])

    def read(self, expression):
        return self.tab.evaluate(expression)

    def generate(self, tokens, temperature=1):
        self.tab.write("#prompt", PROMPT)
        self.tab.write("#max_tokens", str(tokens))
        self.tab.write("#temperature", str(temperature))
        self.tab.write("#seed", "5")
        self.tab.click("#run")

    def finish(self):
        self.tab.wait_for(
            "!document.body.classList.contains('running') && columns.every("
            "c => c.drawn > 0 && c.drawn === c.tokens.length && !c.drawing && "
            "(!c.shape || c.shown && c.stats.length === Math.min(c.drawn, c.shape.max_tokens)))"
        )

    def look_at(self, column, index):
        """Selects a token by mouse or touch, so that it stays selected when the pointer moves away."""
        selector = f".model:nth-child({column + 1}) .tok[data-index='{index}']"
        if self.size == "phone":
            self.tab.tap(selector)
        else:
            self.tab.point(selector)  # pointing at a token already shows its weights
            self.wait_shown(column, index)
            self.tab.click(selector)
        self.tab.wait_for("view.kept")
        self.wait_shown(column, index)

    def wait_shown(self, column, index, head=None):
        of = "" if head is None else f" && c.shown.head.layer === {head[0]} && c.shown.head.head === {head[1]}"
        # While text is generated (`running`), the page is redrawn continuously, so the test waits for pending redraws
        # only if no text is generated.
        self.tab.wait_for(
            f"(c => c.shown && c.shown.index === {index}{of} && (c.running || !c.drawing))(columns[{column}])"
            f" && document.querySelector('.model:nth-child({column + 1}) .query').dataset.index === '{index}'"
        )

    def weights(self, column):
        """Returns a pair for each displayed token: its weight or None, and whether it is displayed as a token with
        weight zero."""
        return self.read(
            f"[...document.querySelectorAll('.model:nth-child({column + 1}) .text .tok')].map(e => "
            "[e.dataset.weight === undefined ? null : Number(e.dataset.weight), e.classList.contains('dead')])"
        )

    def cells(self, column):
        return self.read(
            f"[...document.querySelectorAll('.model:nth-child({column + 1}) .cell[data-head]')]"
            ".map(e => Number(e.dataset.value))"
        )

    def facts(self, column):
        return self.read(f"[...document.querySelectorAll('.model:nth-child({column + 1}) dd')].map(e => e.textContent)")

    def check_width(self):
        wide = self.read("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == SIZES[self.size][0], wide
        beyond = self.read(
            "[...document.querySelectorAll('button, input, textarea, .text, .grid, .chart, #run')].filter(e => "
            "e.getClientRects().length && (e.getBoundingClientRect().right > innerWidth + 0.5 || "
            "e.getBoundingClientRect().left < -0.5)).map(e => e.outerHTML.slice(0, 80))"
        )
        assert beyond == [], beyond

    def check_quiet(self):
        assert self.tab.problems == [], self.tab.problems
        others = [url for url in self.tab.requests if not url.startswith((f"{self.address}/", "data:"))]
        assert others == [], others

    def picture(self, name):
        folder = os.environ.get("LAZY_PAGE_PICTURES") or tempfile.gettempdir()
        path = os.path.join(folder, f"lazy-page-{os.getpid()}-{self.size}-{name}.png")
        self.tab.picture(path)
        assert os.path.getsize(path) > 10_000, path
        if "LAZY_PAGE_PICTURES" not in os.environ:
            os.remove(path)


def check_weights(page, column, index, row):
    """Checks that the displayed values are equal to the response of /v1/attention for the same tokens."""
    ids = page.read(f"columns[{column}].tokens.map(token => token.id)")
    answer = ask(
        page.address,
        "v1/attention",
        {"model": "lazy", "tokens": ids[: index + 1], "first": 0, "rows": [row]},
    )
    expected = answer["rows"][0]["weights"]
    drawn = page.weights(column)
    assert len(expected) == index + 1 < len(drawn)
    for n, (weight, dead) in enumerate(drawn):
        assert weight == (expected[n] if n <= index else None), (n, weight)
        assert dead == (n < index and expected[n] == 0), (n, weight, dead)
    if row[1] is not None:
        assert any(dead for _, dead in drawn), "every token has nonzero weight, so the test checks nothing"
    listed = page.read(f"document.querySelectorAll('.model:nth-child({column + 1}) .weights li').length")
    assert listed == min(6, sum(weight > 0 for weight in expected)), listed

    def of(name, at):
        return [value for layer in answer[name][at] for value in layer]

    # Compares displayed values. The tolerance is one unit in the last displayed digit, because the page may show values
    # from a forward pass over more tokens.
    def close(found, wanted):
        assert len(found) == len(wanted) and all(abs(a - b) < 1.5e-4 for a, b in zip(found, wanted)), (found, wanted)

    def choose(name, value):
        page.tab.click(f"input[name={name}][value={value}]")
        page.tab.wait_for(f"view.{name} === '{value}' && columns.every(c => !c.drawing)")

    close(page.cells(column), of("released", index))
    choose("measure", "sink")
    close(page.cells(column), of("sink", index))
    choose("measure", "alive")
    close(page.cells(column), [count / (index + 1) for count in of("alive", index)])
    choose("measure", "released")
    layer, head = row
    alive, released, sink = page.facts(column)
    assert alive == f"{sum(weight > 0 for weight in expected)} of {index + 1}", alive
    if layer is not None and head is not None:
        close([float(released), float(sink)], [answer[name][index][layer][head] for name in ("released", "sink")])


def check_model(page):
    """Checks the displayed text, attention weights and statistics of the heads, for two models."""
    page.check_width()
    names = page.read("[...document.querySelectorAll('#models label')].map(e => e.textContent.trim())")
    assert names == ["lazy", "twin", "hybrid"], names
    page.generate(24)
    page.finish()
    ids = page.read("columns.map(c => c.tokens.map(token => token.id))")
    assert ids[0] == ids[1], "equal models, prompts and seeds must give equal texts"
    prompt = ask(page.address, "tokenize", {"model": "lazy", "prompt": PROMPT})["tokens"]
    assert ids[0][: len(prompt)] == prompt
    direct = {"model": "lazy", "prompt": prompt, "max_tokens": 24, "temperature": 1, "seed": 5}
    choice = ask(page.address, "v1/completions", {**direct, "return_token_ids": True})["choices"][0]
    assert ids[0][len(prompt) :] == choice["token_ids"]

    page.look_at(0, 14)
    check_weights(page, 0, 14, [None, None])
    page.picture("mean")
    assert page.read("columns[1].shown.index") == 14, "the page must select the same token index in the other text"
    page.tab.click(".model:nth-child(1) .cell[data-head='1,0']")
    page.wait_shown(0, 14, (1, 0))
    check_weights(page, 0, 14, [1, 0])
    # The page numbers layers and heads from 0.
    assert "layer 1, head 0" in page.read("columns[0].element.innerText").lower()
    names = page.read("[...columns[0].element.querySelectorAll('.grid .name')].map(e => e.textContent)")
    assert names == ["all", "0", "1", "0", "1"], names
    page.tab.click("input[name=scope][value=text]")
    whole = len(ids[0])
    answer = ask(page.address, "v1/attention", {"model": "lazy", "tokens": ids[0], "first": 0})
    page.tab.wait_for("view.scope === 'text' && columns.every(c => !c.drawing)")
    mean = sum(released[1][0] for released in answer["released"]) / whole
    assert abs(page.cells(0)[2] - mean) < 1.5e-4
    page.tab.click("input[name=scope][value=token]")
    page.check_width()
    page.picture("head")


def check_keys(page):
    """Checks that the page can be controlled by the keyboard alone."""
    tab = page.tab
    tab.point("h1")
    tab.press("Escape")  # deselects the token
    tab.evaluate("document.querySelector('#prompt').focus()")
    stops = []
    for _ in range(30):
        tab.press("Tab")
        stops.append(page.read("document.activeElement.className || document.activeElement.id || 'radio'"))
        if stops[-1] == "text":
            break
    assert "run" in stops and stops[-1] == "text", stops
    count = page.read("columns[0].tokens.length")
    tab.press("Home")
    page.wait_shown(0, 0)
    tab.press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft")
    page.wait_shown(0, 2)
    tab.press("End")
    page.wait_shown(0, count - 1)
    tab.press("ArrowUp")
    assert page.read("view.index") < count - 1
    tab.press("End", "ArrowLeft")
    page.wait_shown(0, count - 2)
    # After Enter the token stays selected, and the arrow keys move to the token whose weight is displayed.
    tab.press("Enter", "ArrowLeft", "ArrowLeft")
    assert page.read("[view.index, view.kept, view.reading]") == [count - 2, True, count - 4]
    told = page.read("document.querySelector('#announce').textContent")
    weight = page.weights(0)[count - 4][0]
    assert told.endswith("dead") if weight == 0 else abs(float(told.split()[-1]) - weight) < 6e-5, (told, weight)
    tab.press("Escape")
    assert page.read("[view.index, view.kept]") == [None, False]
    tab.press("Tab")
    assert page.read("document.activeElement.classList.contains('cell')")
    tab.press("Home", "ArrowDown", "ArrowRight")
    page.wait_shown(0, count - 1, (0, 0))
    tab.press("ArrowDown", "ArrowRight")
    page.wait_shown(0, count - 1, (1, 1))
    assert page.read("document.activeElement.dataset.head") == "1,1"


def check_while_it_writes(page):
    """Checks that the statistics of the heads are updated while the text grows, and that Escape stops the
    generation."""
    page.tab.click("#models label:nth-of-type(2)")  # deselect the second model
    page.tab.wait_for("document.querySelectorAll('.model').length === 1")
    page.generate(60_000, temperature=0)  # the text does not end without Escape
    page.tab.wait_for("columns[0].tokens.length > 20 && columns[0].stats.length > 12")
    first = page.read("columns[0].stats.length")
    assert page.read("document.body.classList.contains('running')")
    page.tab.wait_for(f"columns[0].stats.length > {first}")
    # If the user has scrolled the panel up, the page must not scroll it down again, so that tokens do not move under
    # the pointer.
    page.tab.wait_for("columns[0].text.scrollHeight > 3 * columns[0].text.clientHeight")
    page.look_at(0, 9)  # a token can be selected while the text is generated
    assert page.read("document.body.classList.contains('running')")
    page.tab.press("Escape")
    page.finish()
    assert page.read("columns[0].tokens.length") < 60_000
    assert page.read("document.querySelector('#error').hidden")


def check_hybrid(page):
    """Checks a model in which only the first layer has no attention."""
    page.tab.click("#models label:nth-of-type(3)")
    page.tab.wait_for("document.querySelectorAll('.model').length === 2")
    page.generate(8)
    page.finish()
    empty = page.read("[...columns[1].element.querySelectorAll('.cell.empty')].map(e => e.dataset.head)")
    assert empty == ["0,0", "0,1"], empty
    page.tab.click(".model:nth-child(2) .cell[data-head='0,1']")
    page.tab.wait_for("columns[1].shown && columns[1].shown.weights === null")
    # The list of weights contains a single entry, the message that the layer has no attention.
    page.tab.wait_for("document.querySelectorAll('.model:nth-child(2) .weights li').length === 1")
    page.check_width()


@pytest.fixture(scope="module")
def tab():
    program = browser.find()
    if program is None:
        pytest.skip(f"none of {', '.join(browser.PROGRAMS)} is installed, and LAZY_CHROMIUM is not set")
    with browser.running(program) as tab:
        yield tab


@pytest.fixture(scope="module")
def server(lazy_binary, model_folder, hybrid_folder):
    with serving(lazy_binary, {"lazy": model_folder, "twin": model_folder, "hybrid": hybrid_folder}) as server:
        yield server


@pytest.mark.parametrize("size", SIZES)
def test_texts_weights_and_heads(tab, server, size):
    page = Page(tab, server.address, size)
    tab.wait_for("document.querySelectorAll('.model').length === 2")
    side_by_side = page.read("columns[0].element.offsetTop === columns[1].element.offsetTop")
    assert side_by_side == (size == "desk")
    check_model(page)
    if size == "desk":
        check_keys(page)
    check_while_it_writes(page)
    check_hybrid(page)
    page.check_quiet()


def test_streaming_cache_shows_no_weights(tab, lazy_binary, model_folder):
    with serving(lazy_binary, {"lazy": model_folder}, "--cache", "streaming:2+6") as server:
        page = Page(tab, server.address, "phone")
        tab.wait_for("document.querySelectorAll('.model').length === 1")
        page.generate(20)
        page.finish()
        assert page.read("columns[0].tokens.length") > 8
        # the page shows a message instead of weights
        assert page.read("columns[0].element.querySelectorAll('.none').length") == 1
        assert page.read("columns[0].element.querySelectorAll('.token, .heads').length") == 0
        page.check_width()
        page.check_quiet()


def test_api_key_is_requested(tab, lazy_binary, model_folder, tmp_path):
    (tmp_path / "keys.txt").write_text("right-key\n")
    with serving(lazy_binary, {"lazy": model_folder}, "--api-key-file", str(tmp_path / "keys.txt")) as server:
        page = Page(tab, server.address, "desk")
        tab.wait_for("!document.querySelector('#key_field').hidden")
        assert not page.read("document.querySelector('#error').hidden")
        assert page.read("document.activeElement.id") == "key"
        tab.call("Input.insertText", text="right-key")
        tab.press("Enter")
        tab.wait_for("document.querySelectorAll('.model').length === 1")
        page.generate(6)
        page.finish()
        assert page.read("document.querySelector('#error').hidden")
