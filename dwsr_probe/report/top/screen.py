"""Draws a picture as lines for a screen of a given size; keys change what is shown. terminal.py
writes the lines and reads the keys."""

from __future__ import annotations

import os
import time
from textwrap import wrap
from typing import TYPE_CHECKING

from dwsr_probe.report.top import figures
from dwsr_probe.report.top.panes import (
    BOLD,
    DIM,
    GPU_COLUMNS,
    NAME_COLUMNS,
    RED,
    REVERSE,
    TASK_COLUMNS,
    YELLOW,
    Pane,
    device_rows,
    process_columns,
)
from dwsr_probe.words import count_text, line_of, percent_text

if TYPE_CHECKING:
    from dwsr_probe.report.top.panes import Cells
    from dwsr_probe.report.top.picture import Picture

HELP = (
    ("q, Ctrl-C", "leave"),
    ("p, space", "pause: the screen stays as it is; nothing is lost meanwhile"),
    (
        "/",
        "show only names with this text in them, or in a key or chain; Enter keeps it, Esc shows"
        " all",
    ),
    ("← →, < >", "sort by another column"),
    ("s", "turn the order round"),
    ("↑ ↓, PgUp PgDn, Home End", "scroll (also j k)"),
    ("Tab", "another table: sorted and scrolled by the same keys, and it gets the room"),
    ("?", "this page"),
)
COLUMN_NOTES = (
    (
        "live, peak: bytes that the task itself has allocated now, and at most so far; growth: of"
        " live, over two seconds."
    ),
    (
        "of limit: █ now, ▒ peak, · up to the limit of its process (Dask's, the cgroup's, or the"
        " machine's memory)."
    ),
    "exceeds: probability that the task takes more than its process has left (with --predictor).",
    "median, max: own peaks of the tasks that have ended; the median is of the newest 500.",
)
_FOOT = "q quit  p pause  / filter  ←→ sort  s order  ↑↓ scroll  Tab table  ? help"


class Screen:
    def __init__(self, picture: Picture) -> None:
        self._live_picture, self.picture = picture, picture
        self.filter, self.editing, self.helping = "", False, False
        self.panes = (
            Pane(
                "process",
                process_columns(lambda: self.picture),
                "rss",
                "no process with a probe here; start one with: dwsr-probe run python job.py",
            ),
            Pane("gpu", GPU_COLUMNS, "peak", ""),
            Pane("task", TASK_COLUMNS, "peak", "no task runs"),
            Pane("name", NAME_COLUMNS, "max", "no task has ended"),
        )
        self._focus, self._height = 2, 1
        self._colour = "NO_COLOR" not in os.environ

    @property
    def paused(self) -> bool:
        return self.picture is not self._live_picture

    # -- keys

    def handle_key(self, key: str) -> bool:
        """Handles a key; False: leave."""
        if self.editing:
            self._edit(key)
        elif self.helping:
            self.helping = False
            return key != "q"
        elif key == "q":
            return False
        else:
            self._run_command(key)
        return True

    def _edit(self, key: str) -> None:
        if key == "enter":
            self.editing = False
        elif key == "escape":
            self.editing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.filter) < 200:
            self.filter += key

    def _run_command(self, key: str) -> None:
        pane = self.panes[self._focus]
        page = max(1, self._height - 1)
        scrolls = {
            "up": -1,
            "k": -1,
            "down": 1,
            "j": 1,
            "page up": -page,
            "page down": page,
            "home": -len(pane.rows),
            "end": len(pane.rows),
        }
        if key in scrolls:
            pane.scroll(scrolls[key], page)
        elif key in ("left", "<", "right", ">"):
            pane.move_sort(1 if key in ("right", ">") else -1)
        elif key == "s":
            pane.descending = not pane.descending
        elif key in ("p", " "):
            self.picture = self._live_picture if self.paused else self._live_picture.frozen()
        elif key == "/":
            self.editing = True
        elif key == "escape":
            self.filter = ""
        elif key == "?":
            self.helping = True
        elif key == "tab":
            self._focus = next(
                i % 4
                for i in range(self._focus + 1, self._focus + 5)
                if i % 4 != 1 or self.panes[1].rows
            )

    # -- lines

    def lines(self, width: int, height: int) -> list[str]:
        """Exactly `height` of them, none wider than `width`: text with colours."""
        if self.helping:
            lines = _help(width)
        else:
            self._fill()
            lines = self._head(width)[: max(1, height - 3)]
            for pane, rows in self._heights(height - len(lines) - 1):
                lines += pane.lines(width, rows, pane is self.panes[self._focus])
            lines = lines[: height - 1]
            lines += [[]] * (height - 1 - len(lines)) + [self._foot()]
        return [self._painted(line, width) for line in (lines + [[]] * height)[:height]]

    def _fill(self) -> None:
        processes, gpus, tasks, names = self.panes
        processes.fill(self.picture.processes)
        gpus.fill(device_rows(self.picture.moment.processes))
        tasks.fill(self.picture.moment.tasks, self.filter)
        names.fill(self.picture.names.values(), self.filter)
        if self._focus == 1 and not gpus.rows:
            self._focus = 2

    def _heights(self, height: int) -> list[tuple[Pane, int]]:
        """The panes that are shown, with the lines that each gets. The chosen pane gets lines
        first, then the others in turn. On a low screen the chosen pane is alone."""
        chosen = self.panes[self._focus]
        shown = [
            pane
            for pane in self.panes
            if pane is chosen or (height >= 12 and (pane.rows or pane.hint))
        ]
        needs = {id(pane): 1 + max(1, len(pane.rows)) for pane in shown}
        heights = {
            id(pane): min(needs[id(pane)], 1 + max(1, height // 5))
            for pane in shown
            if pane is not chosen
        }
        self._height = heights[id(chosen)] = max(
            2, min(needs[id(chosen)], height - sum(heights.values()))
        )
        for pane in shown:
            heights[id(pane)] = min(
                needs[id(pane)], heights[id(pane)] + max(0, height - sum(heights.values()))
            )
        return [(pane, heights[id(pane)]) for pane in shown]

    def _head(self, width: int) -> list[Cells]:
        picture, moment = self.picture, self.picture.moment
        said, style = (
            (moment.trouble, RED)
            if moment.trouble
            else (
                (moment.job_end, YELLOW)
                if moment.job_end
                else ("PAUSED" if self.paused else "", YELLOW)
            )
        )
        if said and self.paused and said != "PAUSED":
            said = f"PAUSED; {said}"
        first = [
            ("dwsr-probe top", BOLD),
            (
                (
                    f"  {line_of(picture.title, width)} "
                    f" {time.strftime('%H:%M:%S', time.localtime(picture.date))}"
                ),
                "",
            ),
        ]
        more = f" and {moment.processes_dropped} more" if moment.processes_dropped else ""
        second = [
            (
                (
                    f"{count_text(len(moment.processes), 'process', 'processes', '1')}{more},"
                    f" {count_text(len(moment.tasks), 'task', 'tasks', '1')} running,"
                    f" {picture.done:,} done"
                ),
                "",
            ),
            (f", {picture.failed:,} failed" if picture.failed else "", RED),
            (" (still reading)" if moment.behind else "", DIM),
        ]
        rss = f"rss {figures.size(picture.rss)}, headroom {figures.size(picture.headroom)}  "
        third = [
            (rss, ""),
            (figures.sparkline(picture.rss_history, min(60, max(0, width - len(rss) - 1))), ""),
        ]
        lines = [first, second, third, self._health()]
        if said:
            lines.insert(1, [(line_of(said, 2 * width), f"{style};{REVERSE}")])
        return lines

    def _health(self) -> Cells:
        picture, moment = self.picture, self.picture.moment
        dropped = sum(p.tasks_dropped for p in moment.processes)
        parts = [
            (
                (
                    f"sampler: {percent_text(picture.late_share)} late,"
                    f" {percent_text(picture.sampler_cpu)} of a core"
                ),
                DIM,
            ),
            (
                f"; {count_text(moment.records_lost, 'record', 'records', '1')} lost",
                YELLOW if moment.records_lost else DIM,
            ),
        ]
        if dropped:
            parts.append(
                (f"; {count_text(round(dropped), 'task', 'tasks', '1')} without a slot", YELLOW)
            )
        if moment.boards_unreadable:
            parts.append(
                (
                    f"; {count_text(moment.boards_unreadable, 'board', 'boards', '1')} unreadable",
                    YELLOW,
                )
            )
        if fallbacks := sorted({kind for p in moment.processes for kind in p.fallbacks}):
            parts.append(
                (
                    f"; works less well: {line_of(', '.join(fallbacks), 60)} (dwsr-probe doctor)",
                    YELLOW,
                )
            )
        return parts

    def _foot(self) -> Cells:
        if self.editing:
            return [
                ("/", BOLD),
                (line_of(self.filter, 200), ""),
                ("▏ Enter keeps it, Esc shows all", DIM),
            ]
        return [
            *(
                [("only ", DIM), (line_of(self.filter, 30), YELLOW), ("  ", "")]
                if self.filter
                else ()
            ),
            (_FOOT, DIM),
        ]

    def _painted(self, line: Cells, width: int) -> str:
        """With colours, cut to the width in cells; our own escape sequences take no cell."""
        parts, left = [], width
        for text, style in line:
            # to a column: the cells before it are counted in its name's width and one more
            if text.startswith("\x1b"):
                parts.append(text)
                left -= 1
                continue
            cells = figures.cell_len(text)
            if cells > left:
                text = figures.set_cell_size(text, max(0, left))
            left -= cells
            parts.append(f"\x1b[{style}m{text}\x1b[0m" if style and text and self._colour else text)
            if left <= 0:
                break
        return "".join(parts)


def _help(width: int) -> list[Cells]:
    """The page of help; fits into 80×24."""
    lines: list[Cells] = [[("dwsr-probe top", BOLD), ("  any key: back", DIM)], []]
    for keys, does in HELP:
        parts = wrap(does, max(10, width - 26))
        lines += [
            [(f"{keys if i == 0 else '':26}", BOLD), (part, "")] for i, part in enumerate(parts)
        ]
    return [
        *lines,
        [],
        *(
            [(part, "")]
            for text in COLUMN_NOTES
            for part in wrap(text, max(10, width), subsequent_indent="  ")
        ),
    ]


def plain_line(picture: Picture) -> str:
    """The picture in one line, for logs."""
    moment = picture.moment
    words = [
        time.strftime("%H:%M:%S", time.localtime(picture.date)),
        count_text(len(moment.processes), "process", "processes", "1"),
        f"{len(moment.tasks):,} running",
        f"{picture.done:,} done" + (" (still reading)" if moment.behind else ""),
        f"{picture.failed:,} failed",
        f"rss {figures.size(picture.rss)}",
        f"headroom {figures.size(picture.headroom)}",
    ]
    largest = max(moment.tasks, key=lambda task: task.peak or 0, default=None)
    if largest:
        words.append(
            f"largest {line_of(largest.name, 60)}: peak {figures.size(largest.peak)} live"
            f" {figures.size(largest.live)} {figures.duration(largest.seconds)}"
            f" {figures.growth(largest.rate)}".rstrip()
        )
    riskiest = max(
        (task for task in moment.tasks if task.overrun_ratio is not None),
        key=lambda task: task.overrun_ratio or 0.0,
        default=None,
    )
    if riskiest:
        words.append(
            f"{line_of(riskiest.name, 60)} exceeds its room with"
            f" {percent_text(riskiest.overrun_ratio)}"
        )
    words += [
        f"{process.state}: {line_of(process.name, 40)} {process.pid}"
        for process in picture.processes
        if process.state not in ("running", "ended")
    ][:3]
    words += [
        f"late {percent_text(picture.late_share)}",
        f"lost {moment.records_lost:,}",
        *filter(None, (moment.job_end, line_of(moment.trouble, 200))),
    ]
    return "; ".join(words)
