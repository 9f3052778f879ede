"""Functions that check HTML pages, extract parts of them, and damage their data."""

import copy
import html
import re
from xml.etree import ElementTree


def checked_text(page):
    """Returns the text of a page. Checks that the page is well-formed XML and loads nothing, that ids are unique, that
    every reference to an id has a target, and that pictures have a text for screen readers."""
    root = ElementTree.fromstring(page)
    ids = [element.get("id") for element in root.iter() if "id" in element.keys()]
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:for="|href="#|url\(#)([^")]+)', page)) <= set(ids)
    assert all(element.get("aria-label") for element in root.iter() if element.get("role") == "img")
    assert not re.search(r"https?://|<script|<link|<img|@import|url\((?!#)", page)
    return "".join(root.itertext())


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
