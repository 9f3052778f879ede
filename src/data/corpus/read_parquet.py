"""Writes one text column of a Parquet file to standard output as JSON lines, for `lazy data prepare` and `lazy eval`.

    read_parquet.py FILE COLUMN STATUS_FD

COLUMN may be a dotted path into structs, or * for all columns. Row groups are read in batches, which bounds memory.
STATUS_FD is a file of two little-endian 64-bit numbers that are updated in place: bytes read so far, and rows without a
text. Exit codes: 0 success; 3 Python lacks pyarrow; 2 any other error, with one line on standard error.
"""

import json
import os
import struct
import sys
from json.encoder import encode_basestring  # implemented in C; json.dumps would create an encoder for every row

BATCH_ROWS = 256


def fail(code, message):
    print(" ".join(str(message).split()), file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)  # ends the process without writing the buffered rows, which are not needed


def column_type(schema, column):
    """Returns the type of a column and whether it is nested. Looks up the name first, then the dotted path."""
    if column in schema.names:
        return schema.field(column).type, False
    names, found = schema.names, schema
    for part in column.split("."):
        if part not in names:
            fail(2, f'column "{column}" is missing; the file has {", ".join(schema.names)}')
        found = found.field(part) if found is schema else found.type.field(part)
        nested = pa.types.is_struct(found.type)
        names = [found.type.field(i).name for i in range(found.type.num_fields)] if nested else []
    return found.type, True


def is_text(type_):
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    known = [pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary]
    known += [getattr(pa.types, name) for name in ("is_string_view", "is_binary_view") if hasattr(pa.types, name)]
    return any(is_it(type_) for is_it in known)


def texts(batch, column, nested):
    """Returns the column of a batch as a list of bytes, with None for null values."""
    array = batch.column(0)
    if nested:
        for part in column.split(".")[1:]:
            array = pc.struct_field(array, part)  # the member is null if the struct is null
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.large_binary()).to_pylist()  # bytes, because the text may be invalid UTF-8


def write_rows(file, out):
    """Writes every row as an object with all columns."""
    for batch in file.iter_batches(BATCH_ROWS):
        rows = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in batch.to_pylist())
        out.write("".join(rows).encode())
    out.flush()


def main(path, column, status):
    out = sys.stdout.buffer
    # pyarrow accepts only file names in UTF-8. Python represents other bytes of a name by surrogates, which are not
    # printable. In this case the file is opened here.
    source = path if path.isprintable() else open(path, "rb")
    with pq.ParquetFile(source, buffer_size=1 << 20, page_checksum_verification=True) as file:
        if column == "*":
            return write_rows(file, out)
        type_, nested = column_type(file.schema_arrow, column)
        if not is_text(type_):
            fail(2, f'column "{column}": expected strings, found {type_}')
        consumed = nulls = 0
        begin = "{" + encode_basestring(column) + ": "
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            size = sum(metadata.column(i).total_compressed_size for i in range(metadata.num_columns))
            rows = 0
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[column]):
                lines = []
                for text in texts(batch, column, nested):
                    if text is None:
                        nulls += 1
                        continue
                    lines.append(begin + encode_basestring(text.decode("utf-8", "surrogateescape")) + "}\n")
                out.write("".join(lines).encode("utf-8", "surrogateescape"))
                rows += batch.num_rows
                part = size * rows // max(1, metadata.num_rows)
                os.pwrite(status, struct.pack("<QQ", consumed + part, nulls), 0)
            consumed += size
        out.flush()


try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    fail(3, error)
try:
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
except BrokenPipeError:
    os._exit(2)  # the reading process has terminated
except (pa.ArrowException, OSError, ValueError) as error:
    fail(2, f"not a readable Parquet file: {error}")
