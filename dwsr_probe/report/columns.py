"""A run's records as columns: CSV, and Parquet if pyarrow is installed. Used by `report --format
csv|parquet`.

Tasks come first, then processes (`kind` tells them apart), with the names of the record. Nested
fields are JSON text in both formats, as they are in the store. Their structure differs from record
to record, so a schema of structs would differ from run to run. Rows are written as they are read.

Task names are data, but a spreadsheet evaluates a cell that begins with one of _FORMULA_STARTS.
Such a text is written with an apostrophe in front, which marks it as text for a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any

from dwsr_probe.record import FIELDS, TYPES, to_row
from dwsr_probe.report.groups import asked_tasks

if TYPE_CHECKING:
    from dwsr_probe.store import Store

NEEDS_PYARROW = "Parquet needs pyarrow: pip install 'dwsr-probe[report]'"
_BATCH_ROWS = 20_000
# The apostrophe is one of them, so that a reader who removes one apostrophe always gets the
# original text.
_FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠'")
_TEXT_COLUMNS = [i for i, name in enumerate(FIELDS) if TYPES[name] in (str, object)]


def rows(store: Store, task: str | None = None) -> Iterator[tuple[Any, ...]]:
    """All records as tuples in the order of FIELDS, nested ones as JSON text. task: only tasks that
    a user means by this name; NoSuchTask if there are none."""
    if task is not None:
        return map(to_row, asked_tasks(store, task))
    return chain(store.rows(), (to_row(record) for record, _ in store.processes()))


def write_csv(store: Store, file: IO[bytes], task: str | None = None) -> None:
    """RFC 4180, UTF-8, names in the first line; what was not measured is empty. A NUL is written as
    \\x00: many readers stop at one, and Python 3.10 cannot write it."""
    found = rows(store, task)
    text = io.TextIOWrapper(
        file,
        encoding="utf-8",
        errors="backslashreplace",
        newline="",
        write_through=False,
    )
    try:
        writer = csv.writer(text)
        writer.writerow(FIELDS)
        writer.writerows(map(_cells, found))
    finally:
        text.detach()  # flushes; the file is the caller's


def _cells(values: Iterable[Any]) -> list[Any]:
    row = list(values)
    for i in _TEXT_COLUMNS:
        text = row[i]
        if text:
            if "\0" in text:
                text = text.replace("\0", "\\x00")
            row[i] = f"'{text}" if text.startswith(_FORMULA_STARTS) else text
    return row


def write_parquet(store: Store, file: IO[bytes], task: str | None = None) -> None:
    """Raises ImportError without pyarrow."""
    import pyarrow as pa
    from pyarrow import parquet

    types: dict[object, Any] = {int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in TYPES.items()])
    found = rows(store, task)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(found, _BATCH_ROWS)):
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


def _utf8(text: str | None) -> str | None:
    """Arrow refuses half a surrogate pair: it becomes an escape sequence."""
    return (
        text
        if text is None or text.isascii()
        else text.encode("utf-8", "backslashreplace").decode()
    )
