"""Tests check the type of an error and the names in its message. Few assert on the wording of a whole message."""

import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parents[1]
MAX_GOLDEN_TEXTS = 60
# A matcher for the message of an error whose literal has four words in a row.
PROSE = re.compile(
    r"error_of\b(?:(?!EXPECT_|ASSERT_).)*?"
    r"(?:HasSubstr|StartsWith|EndsWith|ContainsRegex)\(\"[^\"]*(?:[a-z]+ ){3}[a-z]+",
    re.DOTALL,
)


def golden_texts(text):
    """The number of complete messages that a C++ test file expects."""
    return len(re.findall(r"\bIsMessage\(", text))


def prose_assertions(text):
    """Statements that expect several words in a row in the message of an error."""
    return PROSE.findall(text)


def sources():
    return sorted(TESTS.rglob("*.cc"))


def test_golden_texts_are_few():
    assert sum(golden_texts(path.read_text(encoding="utf-8")) for path in sources()) <= MAX_GOLDEN_TEXTS


def test_messages_are_checked_by_names():
    found = {str(path): prose_assertions(path.read_text(encoding="utf-8")) for path in sources()}
    assert {path: statements for path, statements in found.items() if statements} == {}


def test_the_check_sees_an_assertion_on_wording():
    bad = 'EXPECT_THAT(error_of([&] { read(); }),\n            HasSubstr("the file is cut short here"));'
    assert prose_assertions(bad)
    assert not prose_assertions('EXPECT_THAT(error_of([&] { read(); }), Names({"a.bin", 4}));')
