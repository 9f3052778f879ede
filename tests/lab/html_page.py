"""Functions that check HTML pages and extract parts of them."""

import html
import html.parser
import re

VOID = {"meta", "input", "br", "img", "link", "hr"}


class Checker(html.parser.HTMLParser):
    """HTML parser that checks three rules: tags are closed in order, ids are unique, and every label refers to an
    input. It also collects the text of the page."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.targets, self.images, self.text = [], [], [], [], ""
        self.feed(page)
        assert not self.open
        assert len(set(self.ids)) == len(self.ids)
        assert set(self.targets) <= set(self.ids)
        assert all(self.images)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        self.targets += [attributes["for"]] if "for" in attributes else []
        self.targets += re.findall(r"#([^)]+)\)?$", attributes.get("href", "") + attributes.get("clip-path", ""))
        if attributes.get("role") == "img":
            self.images.append(attributes.get("aria-label"))

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
