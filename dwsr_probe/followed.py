"""One board that is stored step by step: what is stored already, and what is new on the board.

Called by the collector, which follows all boards of a run.
"""

from __future__ import annotations

from dwsr_probe.board import process_limit
from dwsr_probe.record import RSS_PEAK_SOURCES, compiled_from_row
from dwsr_probe.sample import SAMPLE_BYTES
from dwsr_probe.total import News, add_last_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from dwsr_probe.board import Board, Frames, Live
    from dwsr_probe.record import Row, TaskRecord

    class Sink(Protocol):
        """Where the contents of boards go.

        wants_totals: whether totals are put there in every round, not only where records were
        lost.
        """

        wants_totals: bool

        def add_frames(self, board: Board, found: Frames) -> None: ...
        def add_rows(self, rows: list[Row]) -> None: ...
        def add_samples(self, process: str, first: int, packed: bytes, epoch: float) -> None: ...
        def put_process(self, record: TaskRecord, health: dict[str, Any]) -> None: ...
        def put_totals(self, news: News) -> None: ...


_HEALTH_COUNTERS = (
    "samples_written",
    "samples_late",
    "sampler_period_ns",
    "sampler_cpu_ns",
    "resets",
    "reset_gaps",
    "tasks_begun",
    "tasks_dropped",
    "room_for_tasks",
    "ends_unmatched",
    "ends_elsewhere",
    "ends_missing",
    "files_reopened",
    "children_unprobed",
    "dask_hooks",
    "alloc_state",
    "unowned_bytes",
    "untracked_bytes",
    "gpu_hook",
    "gpu_unfollowed",
    "gpu_ooms",
    "pinned_peak_bytes",
    "nvml_state",
)


class FollowedBoard:
    def __init__(self, board: Board) -> None:
        self.board = board
        self.seq = self.sample_index = 0  # up to here it is stored: as in store.StoredProgress
        self.records_lost = self.samples_lost = 0
        self.position = 0  # in the board's ring of records
        self.damaged = False
        self.ended = False  # somebody has stored all of it
        # Of the newest record on the board. The process may have been killed before it cleared the
        # task's slot (last_serial) or counted the task (last_packed).
        self.last_seq = 0
        self.last_serial: int | None = None
        self.last_packed = b""

    def fill_level(self, live: Live) -> float:
        """How much of the fuller ring has not been stored, 0 to 1."""
        header = self.board.header
        records, samples = live["records_head"], live["samples_written"]
        if records is None or samples is None:
            return 0.0
        return max(
            (records - self.position) / header["records_bytes"],
            (samples - self.sample_index) / header["sample_count"],
        )

    def store_records(self, sink: Sink, unpack: bool) -> tuple[int, list[Row]]:
        """Store the new finished tasks as they are packed on the board. Returns their number and,
        if `unpack` is true, their rows.

        Unpacking is left to readers: the parent of a run has 0.6 µs for a record.
        """
        board, stored = self.board, 0
        rows: list[Row] = []
        while True:
            found = board.frames(self.position, after_seq=self.seq)
            self.position = found.position
            if not found.any_read:
                return stored, rows
            self.last_serial, self.last_seq = found.last_serial, found.last_seq
            if not found.count:
                continue
            self.records_lost += found.last_seq - self.seq - found.count
            self.seq, self.last_packed = found.last_seq, found.packed
            sink.add_frames(board, found)
            stored += found.count
            if unpack:
                rows += board.rows(found.packed)

    def store_samples(self, sink: Sink) -> None:
        board = self.board
        while True:
            before = self.sample_index
            packed, self.sample_index = board.packed_samples(before)
            if not packed:
                return
            first = self.sample_index - len(packed) // SAMPLE_BYTES
            self.samples_lost += first - before
            sink.add_samples(board.process, first, packed, board.epoch_of(0))

    def killed_tasks(self, live: Live) -> list[TaskRecord]:
        """Tasks that a dead process left running. Each gets the next seq of the process."""
        board, killed = self.board, []
        end = board.epoch_of(live["heartbeat_ns"] or live["end_ns"] or board.header["start_ns"])
        for task in sorted(board.running(live, all_slots=True), key=lambda task: task.serial):
            if task.serial == self.last_serial:
                continue  # it has a record: the process died before it cleared the slot
            self.seq += 1
            record = task.record
            record.seq, record.state = self.seq, "killed"
            record.duration = max(0.0, end - (record.start or 0.0))
            killed.append(record)
        return killed

    def health(self, live: Live, signal: int | None) -> dict[str, Any]:
        """What a report shows about the probe in this process, and the facts of the program.
        signal: the one that ended the process, if that is known."""
        board = self.board
        health = {
            **{name: live[name] for name in _HEALTH_COUNTERS},
            "rss_peak_source": RSS_PEAK_SOURCES.get(live["rss_source"] or 0),
            "limit_bytes": board.limit_bytes,
            "period_ns": board.header["period_ns"],
            "signal": signal,
            "records_lost": self.records_lost,
            "samples_lost": self.samples_lost,
            "python": board.python,
            "devices": board.devices(),
        }
        return {**board.facts(), **health}  # the program may report anything under our names

    def news(self, rows: list[Row], health: dict[str, Any], alive: bool) -> News:
        """The totals, and the tasks that they do not count.

        rows: of tasks that were killed; for a board without totals, of all tasks.
        """
        totals = self.board.totals()
        if (
            totals is not None
            and not alive
            and max((total.last_seq for total in totals), default=0) < self.last_seq
        ):
            add_last_record(totals, self._last_record())
        return News(
            self.board.process, totals, rows, self.records_lost, process_limit(health), alive
        )

    def _last_record(self) -> TaskRecord:
        """The newest record on the board."""
        if self.last_packed:
            from_row = compiled_from_row()
            return from_row(self.board.rows(self.last_packed)[-1])
        *_, record = self.board.finished()  # another collector has stored it
        return record
