"""A run's records as columns: CSV, and Parquet if pyarrow is there. Used by `report --format
csv|parquet`.

Tasks first, then processes (`kind` tells them apart), with the names of the record. Nested
fields are JSON text in both, as they are in the store: their shape differs from record to
record, so that a schema of structs would differ from run to run. Rows are written as they are
read.

Names are data: a spreadsheet would calculate a cell that begins with one of _FORMULA. Such a
text gets an apostrophe in front, which a spreadsheet takes for "this is text".
"""

import csv
import io
from itertools import chain, islice

from dwsr_probe.record import FIELDS, TYPES, to_row

MISSING = "Parquet needs pyarrow: pip install 'dwsr-probe[report]'"
_BATCH = 20_000
# the apostrophe, so that removing one gives back every text as it was
_FORMULA = tuple("=+-@\t\r\n＝＋－＠'")
_TEXTS = [i for i, name in enumerate(FIELDS) if TYPES[name] in (str, object)]


def rows(store):
    """All records as tuples in the order of FIELDS, nested ones as JSON text."""
    return chain(store.rows(), (to_row(record) for record, _ in store.processes()))


def write_csv(store, file):
    """RFC 4180, UTF-8, a head of names; what was not measured is empty. A NUL is written as
    \\x00: many readers stop at one, and Python 3.10 cannot write it."""
    text = io.TextIOWrapper(
        file, encoding="utf-8", errors="backslashreplace", newline="", write_through=False
    )
    try:
        writer = csv.writer(text)
        writer.writerow(FIELDS)
        writer.writerows(map(_cells, rows(store)))
    finally:
        text.detach()  # flushes; the file is the caller's


def _cells(row):
    row = list(row)
    for i in _TEXTS:
        text = row[i]
        if text:
            if "\0" in text:
                text = text.replace("\0", "\\x00")
            row[i] = f"'{text}" if text.startswith(_FORMULA) else text
    return row


def write_parquet(store, file):
    """ImportError without pyarrow."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            (name, {int: pa.int64(), float: pa.float64()}.get(kind, pa.string()))
            for name, kind in TYPES.items()
        ]
    )
    found = rows(store)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(found, _BATCH)):
            columns = (
                map(_utf8, column) if schema.field(name).type == pa.string() else column
                for name, column in zip(FIELDS, zip(*batch, strict=True), strict=True)
            )
            writer.write_table(
                pa.Table.from_arrays(
                    [
                        pa.array(column, kind.type)
                        for column, kind in zip(columns, schema, strict=True)
                    ],
                    schema=schema,
                )
            )


def _utf8(text):
    """Half a surrogate pair is no text to Arrow."""
    return (
        text
        if text is None or text.isascii()
        else text.encode("utf-8", "backslashreplace").decode()
    )
