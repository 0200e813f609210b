"""Records as lines of JSON, written by any program. Each line is checked when it is read, so that
the model refuses none of them later. Called by cli/predict_learn.py; the form is in
docs/predict.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.records import parse_record
from dwsr_probe.predict.sizes import non_negative_int

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

LINE_BYTES_MOST = 1 << 20
_FIGURES = ("alloc_peak_bytes", "rss_peak_bytes", "gpu", "output_bytes")
_TEXT_MOST = 200  # characters of a message


class RecordLines:
    """Iterates over the records of a file. read: lines so far that are not empty. refused: those
    of them that are no records. first_refused: number and message of the first of these.
    bytes_read: of all lines."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read = self.refused = self.bytes_read = 0
        self.first_refused: tuple[int, str] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Records of tasks. The rows of processes, as reports write them, are left out."""
        number = 0
        while line := self._file.readline(LINE_BYTES_MOST):
            number += 1
            self.bytes_read += len(line)
            is_whole = len(line) < LINE_BYTES_MOST or line.endswith(b"\n")
            if not is_whole:
                self._skip_rest()
            if is_whole and not line.strip():
                continue
            self.read += 1
            try:
                if not is_whole:
                    raise ValueError(f"the line is longer than {LINE_BYTES_MOST >> 20} MiB")
                record = parse_line(line)
            except ValueError as error:
                self.refused += 1
                self.first_refused = self.first_refused or (number, str(error)[:_TEXT_MOST])
                continue
            if record is not None:
                yield record

    def _skip_rest(self) -> None:
        while (part := self._file.readline(LINE_BYTES_MOST)) and not part.endswith(b"\n"):
            self.bytes_read += len(part)
        self.bytes_read += len(part)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record in a line; None if it is that of a process. ValueError if it is no record, or if
    it has no figure to learn."""
    try:
        record = json.loads(line.decode("utf-8-sig"), parse_float=_parse_number)
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(record, dict):
        raise ValueError('not an object such as {"task_name": "sort", "alloc_peak_bytes": 1000}')
    if record.get("kind", "task") == "process":
        return None
    # The board's figures are null where they were not measured. Here a name may be misspelt.
    if not any(name in record for name in _FIGURES):
        raise ValueError(f"no peak: none of {', '.join(_FIGURES)}")
    has_growth = "rss_before_bytes" in record or record.get("rss_peak_bytes") is None
    if not has_growth and record.get("alloc_peak_bytes") is None:
        raise ValueError("rss_peak_bytes without rss_before_bytes: the growth is not known")
    if (total := record.get("input_bytes")) is not None:
        total = non_negative_int(total, "input_bytes")
        record["inputs"] = record.get("inputs") or [{"nbytes": total}]
    if parse_record(record) is None:
        raise ValueError(f"kind is {str(record['kind'])[:60]!r}, not task")
    return record


def _parse_number(text: str) -> float:
    """Some languages write whole numbers as 1e+06 or 5.0."""
    value = float(text)
    return int(value) if value.is_integer() else value
