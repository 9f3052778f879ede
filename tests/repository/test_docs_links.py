"""Checks that links, anchors and paths in the documentation exist, and that lines have at most 120 columns.

The test checks the pages in the root directory, docs/ and examples/. A path is a word that begins with a directory of
the repository (`src/`, `configs/`, ...). `*` is a wildcard, names in capitals (NAME.toml) are placeholders, and
FILE.toml+VARIANT must be a variant of that file. Tables and code may be wider.
"""

import re

import pytest
import tomllib

DIRECTORIES = "apps|benchmarks|cmake|configs|docs|examples|include|python|scripts|src|tests"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(rf"(?<![\w/.:=~-])(?:{DIRECTORIES})/[\w./*+-]*")
PLACEHOLDER = re.compile(r"(^|[/.-])[A-Z]{3,}([/.-]|$)")
COLUMNS = 120


def anchors(page):
    """Returns the anchors of a page's headings: lower case, without punctuation, with hyphens instead of spaces."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def link_problem(root, page, target):
    name, _, anchor = target.partition("#")
    other = (page.parent / name) if name else page
    if not other.exists():
        return f"no such file: {target}"
    if root not in other.resolve().parents and other.resolve() != root:
        return f"leaves the repository: {target}"
    if anchor and anchor not in anchors(other.read_text(encoding="utf-8")):
        return f"no such heading: {target}"
    return None


def path_problem(root, text):
    path, plus, variant = text.rstrip(".").partition(".toml+")
    if plus:
        path += ".toml"
        declared = (root / path).is_file() and tomllib.loads((root / path).read_text(encoding="utf-8")).get("variants")
        if not PLACEHOLDER.search(variant) and variant not in (declared or {}):
            return f"no such variant: {text}"
    if path.endswith("/README") or PLACEHOLDER.search(path.removesuffix("README.md")):
        return None
    place = root / path
    found = any(root.glob(path.rstrip("/"))) if "*" in path else place.is_file() or any(place.glob("*"))
    return None if found else f"no such path: {path}"


def problems(root):
    """Returns a list of errors "PAGE:LINE: message" for all pages below `root`."""
    root = root.resolve()
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    errors = []
    for page in sorted(pages):
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```", lambda block: re.sub(r"[^\n]", "", block[0]), text, flags=re.M | re.S)
        for link in LINK.finditer(prose):  # link texts may contain a line break, so the whole page is searched
            problem = None if re.match(r"\w+:", link[1]) else link_problem(root, page, link[1])
            if problem:
                errors.append(f"{page.relative_to(root)}:{prose.count(chr(10), 0, link.start()) + 1}: {problem}")
        code = False
        for number, line in enumerate(text.splitlines(), 1):
            fence = line.startswith("```")
            code = code != fence
            rest = re.sub(r"\w+://\S+", "", LINK.sub("", line))
            found = [path_problem(root, path) for path in PATH.findall(re.sub(r"\]\([^)]*\)", "", rest))]
            if len(line) > COLUMNS and not (code or fence or line.startswith(("|", "    "))):
                found.append(f"{len(line)} columns, at most {COLUMNS}")
            errors += [f"{page.relative_to(root)}:{number}: {problem}" for problem in found if problem]
    return errors


def test_links_and_paths_exist(root):
    assert problems(root) == []


RIGHT = "# A page\n[here](README.md#a-page) docs/README.md docs/*.md configs/NAME.toml docs/a.toml+b https://x.org/src/none\n"


@pytest.fixture
def page(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.toml").write_text("[variants.b]\n", encoding="utf-8")
    return tmp_path / "docs" / "README.md"


def test_correct_page_is_accepted(page, tmp_path):
    page.write_text(RIGHT, encoding="utf-8")
    assert problems(tmp_path) == []


WRONG = {
    "file": "[no](none.md)",
    "heading": "[no](README.md#none)",
    "outside": "[no](../../x)",
    "path": "src/none.cc",
    "pattern": "configs/*.none",
    "variant": "docs/a.toml+c",
    "page": "`docs/none.md`",
    "width": "x " * 61,
}


@pytest.mark.parametrize("mistake", WRONG)
def test_each_kind_of_mistake_is_reported(page, tmp_path, mistake):
    page.write_text(f"{RIGHT}{WRONG[mistake]}\n", encoding="utf-8")
    (tmp_path.parent / "x").touch()
    assert [problem.split(":")[:2] for problem in problems(tmp_path)] == [["docs/README.md", "3"]]
