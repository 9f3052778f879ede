"""Checks docs/dev/traces.md: every file that a row names exists, and contains the functions of the row.

A row begins with one or more functions and one file: | `Class::function`, `function` in `path` | ... A function is
found if its name is followed by "(" or "<" in the file, and its class, if one is given, occurs in the file. Code in the
other columns may name functions too; paths among it must exist.
"""

import re

import pytest

PAGE = "docs/dev/traces.md"
MAX_ROWS = 25
ROW = re.compile(r"^\| ((?:`[\w:]+`(?:, )?)+) in `([\w./-]+)` \|")
PATH = re.compile(r"`((?:apps|include|python|src|tests)/[\w./-]+)`")


def function_problem(text, function):
    *classes, name = function.split("::")
    for part in classes:
        if not re.search(rf"\b{part}\b", text):
            return f"no class {part}"
    return None if re.search(rf"(?<![\w~]){name}\s*[(<]", text) else f"no function {name}"


def problems(root, page):
    """Returns a list of errors "LINE: message"."""
    errors = [
        f"{page.count(chr(10), 0, found.start()) + 1}: no such file: {found[1]}"
        for found in PATH.finditer(page)
        if not (root / found[1]).is_file()
    ]
    rows = 0
    for number, line in enumerate(page.splitlines(), 1):
        rows = rows + 1 if line.startswith("| `") else 0 if line.startswith("#") else rows
        if rows > MAX_ROWS:
            errors.append(f"{number}: more than {MAX_ROWS} rows")
        if not line.startswith("| `"):
            continue
        row = ROW.match(line)
        if not row:
            errors.append(f"{number}: expected functions in a file")
            continue
        if not (root / row[2]).is_file():
            continue  # reported above
        text = (root / row[2]).read_text(encoding="utf-8")
        for function in re.findall(r"`([\w:]+)`", row[1]):
            if problem := function_problem(text, function):
                errors.append(f"{number}: {row[2]}: {problem}")
    return errors


def test_functions_exist(root):
    page = (root / PAGE).read_text(encoding="utf-8")
    assert sum(bool(ROW.match(line)) for line in page.splitlines()) > 3
    assert problems(root, page) == []


SOURCE = "struct Engine {};\nvoid Engine::run() {}\ntemplate <typename T> void launch(T x);\n"


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "engine.cc").write_text(SOURCE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "row, correct",
    [
        ("| `Engine::run`, `launch` in `src/engine.cc` | text |", True),
        ("| `Engine::walk` in `src/engine.cc` | text |", False),
        ("| `Motor::run` in `src/engine.cc` | text |", False),
        ("| `unch` in `src/engine.cc` | text |", False),
        ("| `launch` in `src/none.cc` | text |", False),
        ("| `launch` in `src/engine.cc` | as in `src/none.cc` |", False),
        ("| `launch` | text |", False),
        ("\n".join(["| `launch` in `src/engine.cc` | text |"] * (MAX_ROWS + 1)), False),
    ],
)
def test_wrong_rows_are_found(repository, row, correct):
    assert (problems(repository, row) == []) == correct
