"""What the message of an error must name: ``pytest.raises(ValueError, match=naming("num_heads", 5))``."""

import re


def naming(*values) -> str:
    """A pattern for messages that name every value, in any order. A value is a whole token: "head" is not found in
    "head_dim", nor 4 in 14."""
    pattern = r"\A"
    for text in map(str, values):
        begin = r"(?<!\w)" if re.match(r"\w", text) else ""
        end = r"(?!\w)" if re.search(r"\w\Z", text) else ""
        pattern += rf"(?=[\s\S]*{begin}{re.escape(text)}{end})"
    return pattern
