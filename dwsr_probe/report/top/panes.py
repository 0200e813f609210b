"""The tables of the screen: running tasks, their operations or names, processes, their GPUs. Their
columns, and how they are sorted, filtered and scrolled. Used by screen.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dwsr_probe.report.top import figures
from dwsr_probe.words import percent_text

if TYPE_CHECKING:
    from dwsr_probe.report.top.moment import ProcessRow
    from dwsr_probe.report.top.picture import Picture

    Cells = list[tuple[str, str]]  # a line of the screen: texts with their styles

BOLD, DIM, RED, YELLOW, GREEN, REVERSE = "1", "2", "31", "33", "32", "7"
_YELLOW_FROM, _RED_FROM = 0.8, 0.95  # of a limit


@dataclass(frozen=True)
class PaneColumn:
    title: str
    width: int  # at least
    text: Callable[[Any, int], str]  # of a row, in so many cells or fewer
    sort_key: Callable[[Any], Any]  # of a row; rows with None come last
    share: float = 0.0  # of the width that is left; 0: none
    width_most: int = 0  # with a share
    align_left: bool = False
    is_name: bool = False  # text that others wrote: what follows is placed absolutely
    style: Callable[[Any], str] | None = None
    wanted: Callable[[Sequence[Any]], bool] = lambda rows: True
    drop_order: int = 9  # where there is no room for all: column 1 goes before column 2


def _attribute(attribute: str) -> Callable[[Any], Any]:
    return lambda row: getattr(row, attribute)


def _ratio(part: str) -> Callable[[Any], float | None]:
    """Of a row: this attribute as a share of its limit."""
    return lambda row: (
        getattr(row, part) / row.limit if getattr(row, part) is not None and row.limit else None
    )


def _limit_style(ratio: float | None) -> str:
    """The colour of a share of a limit."""
    return "" if ratio is None or ratio < _YELLOW_FROM else YELLOW if ratio < _RED_FROM else RED


def _size_column(title: str, attribute: str, **options: Any) -> PaneColumn:
    return PaneColumn(
        title,
        8,
        lambda row, width: figures.size(getattr(row, attribute)),
        _attribute(attribute),
        **options,
    )


def _count_column(title: str, width: int, attribute: str, **options: Any) -> PaneColumn:
    return PaneColumn(
        title,
        width,
        lambda row, _: f"{getattr(row, attribute):,}" if getattr(row, attribute) else "–",
        _attribute(attribute),
        **options,
    )


def _name_column(title: str, attribute: str = "name", **options: Any) -> PaneColumn:
    return PaneColumn(
        title,
        12,
        lambda row, width: figures.name(getattr(row, attribute), width),
        lambda row: getattr(row, attribute).casefold(),
        align_left=True,
        is_name=True,
        **options,
    )


TASK_COLUMNS = (
    _name_column("task", share=0.6, width_most=48),
    PaneColumn("pid", 7, lambda row, _: row.pid[:7], lambda row: row.pid.rjust(20), drop_order=1),
    _size_column("live", "live"),
    _size_column("peak", "peak", style=lambda row: _limit_style(_ratio("peak")(row))),
    PaneColumn(
        "of limit",
        8,
        lambda row, width: figures.bar(row.live, row.peak, row.limit, width),
        _ratio("peak"),
        share=0.4,
        width_most=40,
        align_left=True,
        drop_order=3,
        style=lambda row: _limit_style(_ratio("peak")(row)) or GREEN,
    ),
    _size_column(
        "gpu peak", "gpu_peak", wanted=lambda rows: any(row.gpu_peak is not None for row in rows)
    ),
    PaneColumn(
        "time", 8, lambda row, _: figures.duration(row.seconds), _attribute("seconds"), drop_order=2
    ),
    PaneColumn(
        "growth", 11, lambda row, _: figures.growth(row.rate), _attribute("rate"), drop_order=4
    ),
    PaneColumn(
        "exceeds",
        7,
        lambda row, _: percent_text(row.overrun_ratio),
        _attribute("overrun_ratio"),
        style=lambda row: (
            ""
            if row.overrun_ratio is None or row.overrun_ratio < 0.1
            else YELLOW
            if row.overrun_ratio < 0.5
            else RED
        ),
        wanted=lambda rows: any(row.overrun_ratio is not None for row in rows),
    ),
)
NAME_COLUMNS = (
    _name_column("task", share=1.0, width_most=64),
    _count_column("running", 7, "running", drop_order=2),
    _count_column("done", 9, "done"),
    _count_column("failed", 7, "failed", style=lambda row: RED if row.failed else ""),
    _size_column("median", "peak_median", drop_order=3),
    _size_column("max", "peak_max", style=lambda row: _limit_style(row.share_max)),
    PaneColumn(
        "of limit",
        8,
        lambda row, width: figures.bar(
            row.share_median, row.share_max, None if row.share_max is None else 1.0, width
        ),
        _attribute("share_max"),
        share=0.3,
        width_most=30,
        align_left=True,
        drop_order=1,
        style=lambda row: GREEN,
    ),
    PaneColumn(
        "chain",
        24,
        lambda row, width: figures.name(row.chain, width),
        lambda row: row.chain.casefold() or None,
        share=1.0,
        width_most=80,
        align_left=True,
        is_name=True,
        wanted=lambda rows: any(row.chain for row in rows),
        drop_order=0,
        style=lambda row: DIM,
    ),
)


GPU_COLUMNS = (
    _name_column("gpu", share=0.6, width_most=40),
    PaneColumn("pid", 7, lambda row, _: row.pid[:7], lambda row: row.pid.rjust(20), drop_order=2),
    _size_column("live", "live"),
    _size_column("peak", "peak", style=lambda row: _limit_style(_ratio("peak")(row))),
    PaneColumn(
        "of device",
        9,
        lambda row, width: figures.bar(row.live, row.peak, row.limit, width),
        _ratio("peak"),
        share=0.4,
        width_most=40,
        align_left=True,
        drop_order=4,
        style=lambda row: _limit_style(_ratio("peak")(row)) or GREEN,
    ),
    _size_column("pool", "pool", drop_order=3),
    _size_column("all use", "used"),
    PaneColumn("busy", 5, lambda row, _: percent_text(row.busy), _attribute("busy"), drop_order=1),
)


@dataclass
class DeviceRow:
    """A GPU of one process."""

    name: str
    pid: str
    live: float | None
    peak: float | None
    limit: float | None
    pool: float | None
    used: float | None
    busy: float | None


def device_rows(processes: Iterable[ProcessRow]) -> Iterator[DeviceRow]:
    for process in processes:
        for d in process.devices:
            yield DeviceRow(
                f"{d['device']} {d.get('name') or ''}".rstrip(),
                process.pid,
                d.get("live_bytes"),
                d.get("peak_bytes"),
                d.get("total_bytes"),
                d.get("pool_total_bytes"),
                d.get("used_bytes"),
                None if d.get("utilisation_percent") is None else d["utilisation_percent"] / 100,
            )


def process_columns(picture: Callable[[], Picture]) -> tuple[PaneColumn, ...]:
    """picture: returns the picture that is shown."""

    def history(row: ProcessRow, width: int) -> str:
        return figures.sparkline(picture().rss_history_of(row), width)

    def state(row: ProcessRow, width: int) -> str:
        """The name of a process. If it has gone, first how, and which tasks died with it: that
        must not be cut off."""
        with_it = picture().killed_with(row)
        text = (
            row.name
            if not with_it
            else f"{', '.join(with_it[:3])}{', …' if len(with_it) > 3 else ''} in {row.name}"
        )
        return figures.name(text if row.state == "running" else f"{row.state}: {text}", width)

    return (
        PaneColumn(
            "process",
            12,
            state,
            lambda row: row.name.casefold(),
            share=0.4,
            width_most=60,
            align_left=True,
            is_name=True,
            style=lambda row: {"running": "", "ended": DIM}.get(row.state, RED),
        ),
        PaneColumn("pid", 7, lambda row, _: row.pid[:7], lambda row: row.pid.rjust(20)),
        _size_column("rss", "rss", style=lambda row: _limit_style(_ratio("rss")(row))),
        _size_column("max", "rss_max"),
        PaneColumn(
            "of limit",
            8,
            lambda row, width: figures.bar(row.rss, row.rss_max, row.limit, width),
            _ratio("rss"),
            share=0.2,
            width_most=30,
            align_left=True,
            drop_order=4,
            style=lambda row: _limit_style(_ratio("rss")(row)) or GREEN,
        ),
        _size_column("limit", "limit", drop_order=2),
        PaneColumn(
            "course",
            8,
            history,
            lambda row: None,
            share=0.4,
            width_most=60,
            align_left=True,
            drop_order=3,
        ),
        _count_column("tasks", 5, "running", drop_order=1),
    )


class Pane:
    """One table: its rows in their order, and the first one that is shown."""

    def __init__(self, title: str, columns: Sequence[PaneColumn], sort: str, hint: str) -> None:
        """sort: title of the column to sort by. hint: shown instead of rows, if there are none."""
        self.title, self.columns, self.hint = title, columns, hint
        self._sort, self.descending, self.offset = sort, True, 0
        self.rows: list[Any] = []
        self._filtered = False

    def shown_columns(self) -> list[PaneColumn]:
        return [column for column in self.columns if column.wanted(self.rows)]

    @property
    def sorted_by(self) -> str:
        shown = [column.title for column in self.shown_columns()]
        return self._sort if self._sort in shown else shown[0]

    def move_sort(self, step: int) -> None:
        titles = [column.title for column in self.shown_columns()]
        self._sort = titles[(titles.index(self.sorted_by) + step) % len(titles)]
        self.descending = not any(
            column.title == self._sort and column.is_name for column in self.columns
        )

    def fill(self, given: Iterable[Any], filter_text: str = "") -> None:
        rows = (
            [
                row
                for row in given
                if any(filter_text.casefold() in word.casefold() for word in row.words)
            ]
            if filter_text
            else list(given)
        )
        self.rows, self._filtered = rows, bool(filter_text)
        key = next(column.sort_key for column in self.columns if column.title == self.sorted_by)
        known = [(value, i) for i, row in enumerate(rows) if (value := key(row)) is not None]
        order = [i for _, i in sorted(known, key=lambda pair: pair[0], reverse=self.descending)]
        sorted_ = set(order)
        self.rows = [rows[i] for i in order] + [
            row for i, row in enumerate(rows) if i not in sorted_
        ]

    def scroll(self, step: int, height: int) -> None:
        self.offset = max(0, min(self.offset + step, len(self.rows) - height))

    def widths(self, columns: Sequence[PaneColumn], total: int) -> list[int]:
        """Columns with a share divide what the least widths leave, up to width_most."""
        widths = [column.width for column in columns]
        left = total - sum(widths) - (len(columns) - 1)
        shares = sum(column.share for column in columns)
        for i, column in enumerate(columns):
            if column.share and left > 0:
                widths[i] += min(
                    int(left * column.share / shares), max(0, column.width_most - column.width)
                )
        return widths

    def lines(self, width: int, height: int, focused: bool) -> list[Cells]:
        """The heading and at most height - 1 rows."""
        columns = fitting_columns(self.shown_columns(), width)
        widths = self.widths(columns, width)
        self.scroll(0, height - 1)
        visible = self.rows[self.offset : self.offset + height - 1]
        of = (
            f"{self.offset + 1}–{self.offset + len(visible)} of {len(self.rows):,}"
            if len(visible) < len(self.rows)
            else ""
        )
        found = [self._heading(columns, widths, of, focused)]
        for row in visible:
            found.append(_line(row, columns, widths))
        if not self.rows:
            found.append([("no name has this text in it" if self._filtered else self.hint, DIM)])
        return found

    def _heading(
        self, columns: Sequence[PaneColumn], widths: list[int], of: str, focused: bool
    ) -> Cells:
        line: Cells = []
        for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
            chosen = focused and column.title == self.sorted_by
            title = (f"{self.title} {of}".rstrip() if i == 0 else column.title) + (
                ("▼" if self.descending else "▲") if chosen else ""
            )
            title = title[:width]
            line.append(
                (
                    title.ljust(width) if column.align_left else title.rjust(width),
                    f"{BOLD};{REVERSE}" if chosen else BOLD,
                )
            )
            if i < len(columns) - 1:
                line.append((" ", ""))
        return line


def fitting_columns(columns: Sequence[PaneColumn], width: int) -> Sequence[PaneColumn]:
    """The columns that have room side by side."""
    while len(columns) > 1 and sum(column.width + 1 for column in columns) - 1 > width:
        columns = [
            column
            for column in columns
            if column is not min(columns[1:], key=lambda column: column.drop_order)
        ]
    return columns


def _line(row: Any, columns: Sequence[PaneColumn], widths: list[int]) -> Cells:
    line: Cells = []
    position = 1  # in cells, from 1
    for column, width in zip(columns, widths, strict=True):
        text = (
            column.text(row, width)[: max(width, 0)]
            if not column.is_name
            else column.text(row, width)
        )
        line.append(
            (
                text.ljust(width) if column.align_left else text.rjust(width),
                column.style(row) if column.style else "",
            )
        )
        position += width + 1
        line.append((f"\x1b[{position}G" if column.is_name else " ", ""))
    return line[:-1]
