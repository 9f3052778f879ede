"""JSON values that store their position in a file, so that errors name the file, the field and the wrong value."""

import json
import math

from ..errors import UserError

MISSING = object()


def _finite(text):
    if math.isinf(value := float(text)):
        raise ValueError(f"number out of range: {text}")
    return value


DECODER = json.JSONDecoder(parse_float=_finite)


class Field:
    """A value of a JSON document. Indexing returns the Field of a key or of a list's element. The methods return the
    value, or raise a UserError if it is missing or has another type."""

    def __init__(self, value, file, name=""):
        self.value, self.file, self.name = value, file, name

    @classmethod
    def parse(cls, text, file):
        try:
            return cls(DECODER.decode(text), file)
        except ValueError as error:
            raise UserError(f"{file}: expected JSON, found {error}") from None

    @classmethod
    def read(cls, path):
        return cls.parse(path.read_text(encoding="utf-8", errors="replace"), str(path))

    def wrong(self, expected):
        kinds = {dict: "an object", list: "a list"}
        found = "nothing" if self.value is MISSING else kinds.get(type(self.value)) or json.dumps(self.value)[:60]
        raise UserError(f"{self.file}: {self.name + ': ' if self.name else ''}expected {expected}, found {found}")

    def __contains__(self, key):
        """Whether the value is an object with this key. null is treated as absent."""
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def __getitem__(self, key):
        if isinstance(key, int):
            return Field(self.value[key], self.file, f"{self.name}[{key}]")
        return Field(self.keys().get(key, MISSING), self.file, f"{self.name}.{key}" if self.name else key)

    def __iter__(self):
        """Iterates over the Fields of a list's elements."""
        if not isinstance(self.value, list):
            self.wrong("a list")
        return (self[i] for i in range(len(self.value)))

    def keys(self):
        """Returns the JSON object as a dictionary, for iteration over its keys."""
        return self.value if isinstance(self.value, dict) else self.wrong("an object")

    def number(self):
        """Returns a number. null is NaN: the program writes null for a value that is not finite."""
        if self.value is None:
            return math.nan
        is_number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        return self.value if is_number else self.wrong("a number")

    def text(self):
        return self.value if isinstance(self.value, str) else self.wrong("text")

    def numbers(self):
        return [item.number() for item in self]

    def matrix(self, shape=None):
        """Returns a list of rows. `shape` is a matrix whose shape the value must have. Without it, all rows must have
        the same length."""
        rows = [row.numbers() for row in self]
        for i, row in enumerate(rows):
            expected = (shape or rows)[min(i, len(shape or rows) - 1)]
            if len(row) != len(expected):
                self[i].wrong(f"{len(expected)} numbers")
        if not rows or not rows[0] or len(rows) != len(shape or rows):
            self.wrong(f"{len(shape or [0])} rows of numbers")
        return rows
