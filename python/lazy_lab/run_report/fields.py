"""JSON values that store their position in a file, so that errors name the file, the field and the wrong value."""

import json
import math

from ..errors import UserError

MISSING = object()


class Field:
    """A value of a JSON document. Indexing returns the Field of a key or of a list's element. The methods return the
    value, or raise a UserError if it has another type, or if it is missing and no default is given."""

    def __init__(self, value, file, name=""):
        self.value, self.file, self.name = value, file, name

    @classmethod
    def parse(cls, text, file):
        try:
            return cls(json.loads(text), file)
        except ValueError as error:
            raise UserError(f"{file}: expected JSON, found {error}") from None

    @classmethod
    def read(cls, path):
        return cls.parse(path.read_text(encoding="utf-8", errors="replace"), path)

    def wrong(self, expected):
        kinds = {dict: "an object", list: "a list", object: "nothing"}
        found = kinds.get(type(self.value)) or json.dumps(self.value)[:60]
        raise UserError(f"{self.file}: {self.name + ': ' if self.name else ''}expected {expected}, found {found}")

    def __contains__(self, key):
        """Whether the value is an object with this key. null is treated as absent."""
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def __getitem__(self, key):
        if isinstance(key, int):
            items = list(self)
            return items[key] if key < len(items) else Field(MISSING, self.file, f"{self.name}[{key}]")
        found = MISSING if self.value is MISSING or self.value is None else self.keys().get(key, MISSING)
        return Field(found, self.file, f"{self.name}.{key}" if self.name else key)

    def __iter__(self):
        """Iterates over the Fields of a list's elements."""
        if not isinstance(self.value, list):
            self.wrong("a list")
        return (Field(item, self.file, f"{self.name}[{i}]") for i, item in enumerate(self.value))

    def some(self, name):
        """Returns the Fields of a list that must not be empty."""
        return list(self) or self.wrong(f"at least one {name}")

    def keys(self):
        """Returns the JSON object as a dictionary, for iteration over its keys."""
        return self.value if isinstance(self.value, dict) else self.wrong("an object")

    def number(self):
        """Returns a number. null is NaN: the program writes null for a value that is not finite."""
        if self.value is None:
            return math.nan
        is_number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        return self.value if is_number else self.wrong("a number")

    def text(self, default=None):
        if default is not None and (self.value is MISSING or self.value is None):
            return default
        return self.value if isinstance(self.value, str) else self.wrong("text")

    def numbers(self):
        return [item.number() for item in self]

    def matrix(self, shape=None):
        """Returns a list of rows of equal length. `shape` is a matrix whose shape the value must have."""
        rows = [row.numbers() for row in self]
        shape = shape or rows or [[]]
        if len(rows) != len(shape) or not shape[0]:
            self.wrong(f"{len(shape)} rows of numbers")
        for i, row in enumerate(rows):
            if len(row) != len(shape[0]):
                self[i].wrong(f"{len(shape[0])} numbers")
        return rows
