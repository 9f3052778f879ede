"""Checks that tests do not depend on the wording of error messages. A test should only check the type of an error and
the names and values in its message."""

import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parents[1]
MAX_GOLDEN_TEXTS = 60
# Matches an assertion on an error message whose expected text has four words in a row.
PROSE = re.compile(
    r"error_of\b(?:(?!EXPECT_|ASSERT_).)*?"
    r"(?:HasSubstr|StartsWith|EndsWith|ContainsRegex)\(\"[^\"]*(?:[a-z]+ ){3}[a-z]+",
    re.DOTALL,
)


def golden_texts(text):
    """Returns the number of complete messages that a C++ test file expects."""
    return len(re.findall(r"\bIsMessage\(", text))


def prose_assertions(text):
    """Returns the statements that expect several words in a row in an error message."""
    return PROSE.findall(text)


def sources():
    return sorted(TESTS.rglob("*.cc"))


def test_number_of_golden_texts_is_small():
    assert sum(golden_texts(path.read_text(encoding="utf-8")) for path in sources()) <= MAX_GOLDEN_TEXTS


def test_message_assertions_check_names_only():
    found = {str(path): prose_assertions(path.read_text(encoding="utf-8")) for path in sources()}
    assert {path: statements for path, statements in found.items() if statements} == {}


def test_assertion_on_wording_is_detected():
    bad = 'EXPECT_THAT(error_of([&] { read(); }),\n            HasSubstr("the file is cut short here"));'
    assert prose_assertions(bad)
    assert not prose_assertions('EXPECT_THAT(error_of([&] { read(); }), Names({"a.bin", 4}));')
