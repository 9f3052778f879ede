#!/usr/bin/env python3
"""The documentation's links, anchors and paths exist, and its lines fit into 120 columns.

Usage: docs_links.py SOURCE             checks every page of the tree below SOURCE
       docs_links.py SOURCE --broken    checks that the check works: each kind of mistake in a page must be reported

Checked are README.md and the other pages at the top, docs/ and examples/. A path is a word that begins with a folder of
the repository (`src/`, `configs/`, ...); `*` is a pattern, and names in capitals (NAME.toml) are placeholders. Columns
do not count in tables and code.
"""

import pathlib
import re
import sys
import tempfile

FOLDERS = "apps|benchmarks|cmake|configs|docs|examples|include|python|scripts|src|tests"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(rf"(?<![\w/.:=~-])(?:{FOLDERS})/[\w./*+-]*")
PLACEHOLDER = re.compile(r"(^|[/.-])[A-Z]{3,}([/.-]|$)")
COLUMNS = 120


def anchors(page):
    """The names that a heading gets on a web page: lower case, punctuation dropped, spaces as hyphens."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_link(root, page, target):
    name, _, anchor = target.partition("#")
    other = (page.parent / name) if name else page
    if not other.exists():
        return f"no such file: {target}"
    if root not in other.resolve().parents and other.resolve() != root:
        return f"leaves the repository: {target}"
    if anchor and anchor not in anchors(other.read_text(encoding="utf-8")):
        return f"no such heading: {target}"
    return None


def check_path(root, text):
    path = text.rstrip(".")
    if path.endswith("/README") or PLACEHOLDER.search(path.removesuffix("README.md")):
        return None
    place = root / path
    found = any(root.glob(path.rstrip("/"))) if "*" in path else place.is_file() or any(place.glob("*"))
    return None if found else f"no such path: {path}"


def check(root):
    root = root.resolve()
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    errors = []
    for page in sorted(pages):
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```", lambda block: re.sub(r"[^\n]", "", block[0]), text, flags=re.M | re.S)
        for link in LINK.finditer(prose):  # a link may go over two lines
            problem = None if re.match(r"\w+:", link[1]) else check_link(root, page, link[1])
            if problem:
                errors.append(f"{page.relative_to(root)}:{prose.count(chr(10), 0, link.start()) + 1}: {problem}")
        code = False
        for number, line in enumerate(text.splitlines(), 1):
            fence = line.startswith("```")
            code = code != fence
            rest = re.sub(r"\w+://\S+", "", LINK.sub("", line))
            problems = [check_path(root, path) for path in PATH.findall(re.sub(r"\]\([^)]*\)", "", rest))]
            if len(line) > COLUMNS and not (code or fence or line.startswith(("|", "    "))):
                problems.append(f"{len(line)} columns, at most {COLUMNS}")
            errors += [f"{page.relative_to(root)}:{number}: {problem}" for problem in problems if problem]
    return errors


def check_broken():
    right = "# A page\n[here](README.md#a-page) docs/README.md docs/*.md configs/NAME.toml https://x.org/src/none\n"
    wrong = ["[no](none.md)", "[no](README.md#none)", "src/none.cc", "configs/*.none", "`docs/none.md`", "x " * 61]
    with tempfile.TemporaryDirectory() as folder:
        docs = pathlib.Path(folder) / "docs"
        docs.mkdir()
        page = docs / "README.md"
        page.write_text(right, encoding="utf-8")
        if errors := check(docs.parent):
            sys.exit(f"reported although right: {errors}")
        for line in wrong:
            page.write_text(f"{right}{line}\n", encoding="utf-8")
            if len(check(docs.parent)) != 1:
                sys.exit(f"not reported: {line}")


def main():
    if "--broken" in sys.argv:
        check_broken()
        return
    errors = check(pathlib.Path(sys.argv[1]))
    print("\n".join(errors))
    sys.exit(1 if errors else 0)


main()
