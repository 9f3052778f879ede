"""Creates patterns for error messages: ``pytest.raises(ValueError, match=naming("num_heads", 5))``."""

import re


def naming(*values) -> str:
    """Returns a pattern that matches messages that contain all values, in any order. Only whole words match: "head"
    does not match in "head_dim", and 4 does not match in 14."""
    pattern = r"\A"
    for text in map(str, values):
        begin = r"(?<!\w)" if re.match(r"\w", text) else ""
        end = r"(?!\w)" if re.search(r"\w\Z", text) else ""
        pattern += rf"(?=[\s\S]*{begin}{re.escape(text)}{end})"
    return pattern
