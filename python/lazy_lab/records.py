"""Reads and writes the recorded results in docs/results/records: one file STUDY.jsonl.zst per study.

| study | a record is | name of a former file |
|---|---|---|
| evidence | one training of the protocol configs/evidence.toml with all its measures | evidence/BLOCK.CELL.seedK.json |
| steps | one step of a recipe: a training or one measurement of a model | evidence/steps/STEP-KEY/record.json |

Numbers in long lists of the study `steps` are rounded to 7 significant digits (see `rounded`). Other numbers are exact.

A file has one JSON object per line, sorted by its key `file`. It is compressed with zstd, so
`zstd -dc steps.jsonl.zst | jq -c 'select(.model == "lazy") | .step'` reads it without this package.
"""

import json
import math
from pathlib import Path

from .errors import UserError

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results" / "records"
STUDIES = ("evidence", "steps")
LEVEL = 19  # zstd compression level
LONG_LIST = 64


def path_of(study):
    return FOLDER / f"{study}.jsonl.zst"


def read(study):
    """Returns the records of a study, a list of JSON objects. `study` is a name of STUDIES or the path of a file."""
    path = path_of(study) if study in STUDIES else Path(study)
    if not path.is_file():
        raise UserError(f"{path}: expected a file of records, or one of the studies {', '.join(STUDIES)}; found none")
    import pyarrow

    found = []
    try:
        with pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd") as stream:
            lines = stream.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected JSON lines compressed with zstd, found {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number}: expected a JSON object, found {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("file"), str):
            raise UserError(f"{path}: line {number}: expected a JSON object with the key file, found {line[:40]}")
        found.append(record)
    return found


def rounded(value, digits, inside_long_list=False):
    """Returns a JSON value in which the fractional numbers of lists with at least LONG_LIST items have `digits`
    significant digits. Other numbers are unchanged. The long lists are losses by text or sequence, sink measures by
    sample, and biases by distance. Pages show means over such lists, and rounding hardly changes a mean."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits, len(value) >= LONG_LIST) for item in value]
    if inside_long_list and isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return float(f"{value:.{digits}g}")
    return value


def write(path, records, digits=None):
    """Writes records to a file. The bytes of the file do not depend on the order of the records.

    digits: see rounded(). Default: all numbers are exact.
    """
    import pyarrow

    names = [record["file"] for record in records]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}: expected one record per file name, found several of {duplicates[0]}")
    lines = [
        json.dumps(rounded(record, digits) if digits else record, separators=(",", ":"), allow_nan=False)
        for record in sorted(records, key=lambda record: record["file"])
    ]
    codec = pyarrow.Codec("zstd", compression_level=LEVEL)
    Path(path).write_bytes(codec.compress("".join(line + "\n" for line in lines).encode(), asbytes=True))


def value_at(record, path, default=None):
    """Returns the value of a dotted path such as measures.sinks.512.bos.excess, or `default` if it is not recorded."""
    for key in path.split("."):
        if not isinstance(record, dict) or key not in record:
            return default
        record = record[key]
    return record


def find(records, **conditions):
    """Returns the records with the given values, for example find(records, block="B", cell="lazy"). A condition with a
    list, tuple or set accepts each of its values. Two underscores separate nested keys: a__b=1 means record["a"]["b"]
    == 1."""

    def accepts(record, key, expected):
        found = value_at(record, key.replace("__", "."))
        return found in expected if isinstance(expected, (list, tuple, set, frozenset)) else found == expected

    return [record for record in records if all(accepts(record, *condition) for condition in conditions.items())]
