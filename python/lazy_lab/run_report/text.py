"""Numbers and names as text of the pages."""

import math

from markupsafe import Markup, escape

from .. import charts

MARKS = {"o": "●", "s": "■", "^": "▲", "D": "◆"}  # the markers of curves as text


def fixed(value, digits):
    """Formats the value with `digits` digits after the decimal point. Zero is printed without a sign."""
    if not math.isfinite(value):
        return "not a number"
    return f"{value:z.{digits}f}".replace("-", "\u2212")


def percent(share):
    """Formats a fraction in percent: with two digits after the decimal point below 1 %, one digit below 100 %, and
    otherwise none."""
    size = 100 * abs(share)
    return "0" if size < 1e-9 else fixed(100 * share, 2 if size < 0.995 else 1 if size < 99.95 else 0)


def share(value):
    return f"{percent(value)}\u2009%"


def grouped(count):
    """Returns a whole number in groups of three digits."""
    return f"{count:,.0f}".replace(",", "\u2009")


def seconds_text(seconds):
    """Returns a time as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def token_text(token, limit=8):
    text = "".join(c if c >= " " else "?" for c in token.strip())
    text = text or ("⏎" if "\n" in token else "␣" if token else "∅")
    return text if len(text) <= limit else text[:limit] + "…"


def series_name(index, name):
    """Returns the name of a data series, preceded by its marker in its color. A series has the same color and marker in
    every picture and table."""
    mark = MARKS[charts.marker(index)]
    return Markup('<span class="run"><i class="{}">{}</i>{}</span>').format(charts.series_role(index), mark, name)


def lined(text, below=""):
    """Returns text with a second line in small type."""
    return Markup("{}<small>{}</small>").format(text, below) if below else escape(text)
