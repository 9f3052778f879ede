"""Reads and writes the recorded results in docs/results/records: one file STUDY.jsonl.zst per study.

| study | a record is |
|---|---|
| evidence | one training of the protocol configs/evidence.toml with all its measures |
| steps | one step of a recipe: a training or one measurement of a model |

A file has one JSON object per line, sorted by its key `file`. It is compressed with zstd, so
`zstd -dc steps.jsonl.zst | jq -c 'select(.model == "lazy") | .step'` reads it without this package. Numbers in long
lists of the study `steps` are rounded to 7 significant digits (see `rounded`). Other numbers are exact.
"""

import collections
import json
import math
from pathlib import Path

from .errors import UserError

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results" / "records"
STUDIES = {name: FOLDER / f"{name}.jsonl.zst" for name in ("evidence", "steps")}
LEVEL = 19  # zstd compression level
LONG_LIST = 64


def read(study):
    """Returns the records of a study, a list of JSON objects. `study` is a name of STUDIES or the path of a file."""
    path = Path(STUDIES.get(study, study))
    if not path.is_file():
        raise UserError(f"{path}: expected a file of records, or one of the studies {', '.join(STUDIES)}; found none")
    import pyarrow

    try:
        with pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd") as stream:
            lines = stream.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected JSON lines compressed with zstd, found {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}: line {number}: expected a JSON object, found {error}") from error
        if not isinstance(found[-1], dict) or not isinstance(found[-1].get("file"), str):
            raise UserError(f"{path}: line {number}: expected a JSON object with the key file, found {line[:40]}")
    return found


def rounded(value, digits, inside_long_list=False):
    """Returns a JSON value in which the fractional numbers of lists with at least LONG_LIST items have `digits`
    significant digits. The long lists are losses by text or sequence, sink measures by sample, and biases by distance.
    Pages show means over such lists, and rounding hardly changes a mean."""
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

    counts = collections.Counter(record["file"] for record in records)
    if duplicates := sorted(name for name, count in counts.items() if count > 1):
        raise UserError(f"{path}: expected one record per file name, found several of {duplicates[0]}")
    lines = [
        json.dumps(rounded(record, digits) if digits else record, separators=(",", ":"), allow_nan=False) + "\n"
        for record in sorted(records, key=lambda record: record["file"])
    ]
    codec = pyarrow.Codec("zstd", compression_level=LEVEL)
    Path(path).write_bytes(codec.compress("".join(lines).encode(), asbytes=True))


def find(records, **conditions):
    """Returns the records with the given values, for example find(records, block="B", cell="lazy")."""
    return [record for record in records if all(record.get(key) == value for key, value in conditions.items())]
