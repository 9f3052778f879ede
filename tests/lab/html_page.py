"""Functions that check HTML pages, extract parts of them, and damage their data."""

import copy
import html
import html.parser
import re

VOID = {"meta", "input", "br", "img", "link", "hr"}


class Checker(html.parser.HTMLParser):
    """HTML parser that checks a page: tags are closed in order, ids are unique, every reference to an id has a target,
    pictures have a text for screen readers, and the page loads nothing. It also collects the text of the page."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.targets, self.text = [], [], [], ""
        self.feed(page)
        assert not self.open
        assert len(set(self.ids)) == len(self.ids)
        assert set(self.targets) <= set(self.ids)
        assert not re.search(r"https?://|<script|<link|<img|@import|url\((?!#)", page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        assert attributes.get("role") != "img" or attributes.get("aria-label")
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.targets += [attributes["for"]] if "for" in attributes else []
        self.targets += re.findall(r"#([^)]+)\)?$", attributes.get("href", "") + attributes.get("clip-path", ""))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def section(page, name):
    return page[page.index(f'<section id="{name}">') :].split("</section>")[0]


def plain(markup):
    return re.sub("[ \n]+", " ", html.unescape(re.sub("<[^>]*>", " ", markup)))  # does not replace thin spaces


def replaced(document, path, value):
    """Returns a copy of a JSON document with another value at a path of keys and indices."""
    *keys, last = path
    place = document = copy.deepcopy(document)
    for key in keys:
        place = place[key]
    place[last] = value
    return document


def dotted(path):
    """Returns a path of keys and indices in the form of messages, such as models[0].label."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")
