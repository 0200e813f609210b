"""Read one board file, of a living or a dead process: what the process does now (Snapshot), what
it has finished (records, totals), and whether it still exists.

dwsr_probe.collector follows all boards of a run. A board that cannot be read raises
_core.BoardError; `explain` gives its text for people.
"""

from __future__ import annotations

import json
import os
import time

from dwsr_probe import _core
from dwsr_probe.dataclass import NamedTuple, dataclass
from dwsr_probe.origin import Origin
from dwsr_probe.probe import SPAWNED_NAME
from dwsr_probe.process import own_pid_namespace, process_exists, process_key
from dwsr_probe.record import RSS_PEAK_SOURCES, SERIAL_INDEX, TaskRecord, record_of
from dwsr_probe.sample import unpack_samples
from dwsr_probe.total import from_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from dwsr_probe.record import Raw
    from dwsr_probe.sample import Sample
    from dwsr_probe.total import Total

    Header = dict[str, Any]  # HEADER_FIELDS of csrc/board_layout.h
    Live = dict[str, int | None]  # LIVE_FIELDS; None: not known
    Facts = dict[str, Any]  # what the program reports about itself, as JSON
    Device = dict[str, Any]

SUFFIX = ".board"
_STALE_NS = 2_000_000_000  # without a heartbeat
_EXEC_TAKES_NS = 50_000_000


@dataclass
class Snapshot:
    """One process at one moment. process: the record of the process itself. live: the probe's
    counters by name."""

    process: TaskRecord
    running: list[TaskRecord]
    live: dict[str, Any]
    devices: list[Device]


@dataclass
class Frames:
    """Finished tasks as they are packed on the board.

    position: where the next read begins. any_read: whether any frames were read, including those
    that were left out because they are known already.
    """

    position: int
    any_read: bool
    packed: bytes
    count: int
    first_seq: int
    last_seq: int
    last_serial: int
    texts_needed: int  # so many texts must be on the board for the frames to be unpacked


class RunningSlot(NamedTuple):
    """A slot of the board with a running task. serial: order of begin in its process. slot: the
    number of the slot."""

    serial: int
    slot: int
    record: TaskRecord


class Board(Origin):
    """An open board. It can be read while its process writes it, and after the process died."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._reader = _core.BoardReader(path)
        header: Header = dict(zip(_core.HEADER_FIELDS, self._reader.header(), strict=True))
        self.header = header
        texts = {
            n: t.decode("utf-8", "replace")
            for n, t in zip(_core.HEADER_TEXTS, self._reader.texts(), strict=True)
        }
        self.task_name, self.python = texts["task_name"], texts["python"]
        self.start_ticks: int | None = header["start_ticks"]
        self.limit_bytes: int | None = header["limit_bytes"]
        self.has_totals = header["version"] >= 6
        self._texts_end, self._addresses_text = 0, b""
        super().__init__(
            process_key(header["pid"], header["epoch_ns"] / 1e9),
            self._reader.layout,
            run=texts["run"] or None,
            host=texts["host"],
            pid=header["pid"],
            worker=texts["worker"] or None,
            rss_error_bytes=header["rss_error_bytes"],
            clock_epoch_ns=header["epoch_ns"] - header["start_ns"],
        )

    def close(self) -> None:
        self._reader.close()

    def live(self) -> Live:
        """The probe's counters as they are now."""
        return dict(zip(_core.LIVE_FIELDS, self._reader.live(), strict=True))

    def facts_text(self) -> bytes:
        """What the program reports about itself, as JSON; empty: nothing."""
        return self._reader.facts()

    def facts(self) -> Facts:
        try:
            found = json.loads(self.facts_text() or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def name(self, facts: Facts | None = None) -> str:
        """The name of the process for people: of its only Dask worker, or the name that
        multiprocessing gave it, or else its script."""
        facts = self.facts() if facts is None else facts
        workers, given = facts.get("workers"), facts.get("name")
        if (
            self.task_name == SPAWNED_NAME
            and isinstance(workers, list)
            and len(workers) == 1
            and isinstance(workers[0], dict)
        ):
            given = f"worker {workers[0].get('name') or workers[0].get('address') or ''}".rstrip()
        return given if isinstance(given, str) and given else self.task_name

    def devices(self) -> list[Device]:
        """The GPUs that the process has allocated on. Each is a dict: its number in the process
        (device), name, uuid, and DEVICE_FIELDS."""
        return [
            {
                "device": number,
                "name": name.decode("utf-8", "replace"),
                "uuid": uuid.decode("utf-8", "replace"),
                **dict(zip(_core.DEVICE_FIELDS[1:], fields[1:], strict=True)),
            }
            for number, fields, name, uuid in self._reader.devices()
        ]

    def worker_of(self, index: int | None) -> str | None:
        if index is not None and index >= len(self.addresses):
            self._read_addresses()
        return super().worker_of(index)

    def _read_addresses(self) -> None:
        text = self.facts_text()
        if text != self._addresses_text:
            found = self.facts().get("workers")
            addresses = (
                [w.get("address") if isinstance(w, dict) else None for w in found]
                if isinstance(found, list)
                else []
            )
            self.addresses = [
                address if isinstance(address, str) else None for address in addresses
            ]
            self._addresses_text = text

    def frames(self, position: int = 0, most: int = 100_000, after_seq: int = 0) -> Frames:
        """Finished tasks from `position` on, without those whose seq is not above `after_seq`.

        Also reads the texts and addresses that rows of them need. These are on the board before
        the task that refers to them ends.
        """
        found = Frames(*self._reader.frames(position, most, after_seq))
        if found.count:
            self._read_texts()
            self._read_addresses()
            if found.texts_needed > len(self.texts):
                raise _core.BoardError("damaged")
        return found

    def _read_texts(self) -> None:
        new, self._texts_end = self._reader.texts_from(self._texts_end)
        self.texts += new

    def raw_records(self, position: int = 0, most: int = 100_000) -> tuple[list[Raw], int]:
        """At most `most` finished tasks from `position` on as raw tuples, oldest first, and the
        position behind them. An empty list: there are no more."""
        found = self.frames(position, most)
        return self.unpack(found.packed), found.position

    def totals(self) -> list[Total] | None:
        """Exact sums of the tasks that have ended, for each task name. Boards before version 6
        have none: None."""
        if not self.has_totals:
            return None
        found = self._reader.totals()
        self._read_texts()
        return [from_words(words, devices, cells, self.texts) for words, devices, *cells in found]

    def finished(self) -> Iterator[TaskRecord]:
        """Finished tasks, oldest first."""
        position = 0
        while True:
            raws, position = self.raw_records(position)
            if not raws:
                return
            yield from (record_of(self, raw) for raw in raws)

    def packed_samples(self, index: int = 0) -> tuple[bytes, int]:
        """Samples from number `index` on as they are packed on the board, and the number behind
        them. Empty: there are no more."""
        return self._reader.samples(index)

    def samples(self, index: int = 0) -> tuple[list[Sample], int]:
        """Samples from number `index` on, and the number behind them."""
        packed, index = self.packed_samples(index)
        return list(unpack_samples(packed)), index

    def running(self, live: Live | None = None, all_slots: bool = False) -> list[RunningSlot]:
        """The running tasks. Their peaks include the peak of the present window.

        all_slots: search every slot, because the counter of a dead process may be wrong.
        """
        live = live or self.live()
        most = self.header["slot_count"] if all_slots else live["running"] or 0
        found = []
        for slot, raw in self._reader.slots(most):
            record = record_of(self, raw)
            window = (
                live["window_peak_bytes"] if live["window_boundary"] == live["boundary"] else None
            )
            if window is not None and window > (record.rss_peak_bytes or 0):
                record.rss_peak_bytes = window
            found.append(RunningSlot(raw[0][SERIAL_INDEX] or 0, slot, record))
        return found

    def process_record(self, live: Live, state: str | None) -> TaskRecord:
        end_ns = live["end_ns"] or live["heartbeat_ns"] or self.header["start_ns"]
        start = self.epoch_of(self.header["start_ns"])
        return TaskRecord(
            kind="process",
            run=self.run,
            host=self.host,
            pid=self.pid,
            process=self.process,
            worker=self.worker,
            thread=self.pid,
            task_name=self.name(),
            state=state,  # type: ignore[arg-type]  # None: nothing says how the process ended
            start=start,
            duration=None if state == "running" else max(0.0, self.epoch_of(end_ns) - start),
            rss_before_bytes=self.header["rss_before_bytes"],
            rss_peak_bytes=live["rss_max_bytes"] or None,
            rss_peak_source="kernel" if live["rss_max_bytes"] else None,
            rss_error_bytes=self.rss_error_bytes,
            overlap=0,
            attribution="exact",
        )

    def snapshot(self) -> Snapshot:
        live = self.live()
        return Snapshot(
            self.process_record(live, "running"),
            [task.record for task in self.running(live)],
            {**live, "rss_source": RSS_PEAK_SOURCES.get(live["rss_source"] or 0)},
            self.devices(),
        )

    def now_ns(self, live: Live) -> int:
        """The present time of the board's clock. For a board of another host or container, whose
        clock may differ from ours, it is the last heartbeat."""
        return (
            time.monotonic_ns()
            if self._is_local()
            else live["heartbeat_ns"] or self.header["start_ns"]
        )

    def silent_s(self, live: Live) -> float:
        """Seconds since the last heartbeat. Dates are compared only for boards of another host,
        because this machine's date may have been set in between."""
        last, now = live["heartbeat_ns"] or self.header["start_ns"], time.monotonic_ns()
        if self.host != os.uname().nodename:
            return time.time() - self.epoch_of(last)
        # a heartbeat in the future is of an earlier boot: at least the time since this boot
        return (now - last if now >= last else now) / 1e9

    def is_alive(self, live: Live) -> bool:
        """Whether the process exists and still runs the program that made this board. A closed
        board of a living process counts as alive."""
        # negative for a board of another machine or of an earlier boot
        age_ns = time.monotonic_ns() - (live["heartbeat_ns"] or 0)
        stale = not 0 <= age_ns <= max(_STALE_NS, 4 * (live["sampler_period_ns"] or 0))
        if not self._is_local():
            # a pid of another host or container means nothing here
            return live["state"] == _core.BOARD_OPEN and not stale
        if not process_exists(self.pid, self.start_ticks):
            return False
        closed = live["state"] != _core.BOARD_OPEN
        return closed or not (stale or self.tried_to_exec(live)) or self._is_mapped()

    def tried_to_exec(self, live: Live) -> bool:
        """Whether the process called exec and has written no heartbeat since, except in the first
        50 ms: the sampler may still run for a moment on the way into exec."""
        exec_ns = live["exec_ns"] or 0
        return (
            live["state"] == _core.BOARD_OPEN
            and exec_ns > 0
            and exec_ns + _EXEC_TAKES_NS >= (live["heartbeat_ns"] or 0)
        )

    def _is_local(self) -> bool:
        return (
            self.header["pid_namespace"] == own_pid_namespace() and self.host == os.uname().nodename
        )

    def _is_mapped(self) -> bool:
        """Whether the process still has the board in its memory."""
        try:
            # by inode: a board gets its name after it was mapped
            inode = b"%d" % self._reader.inode()
            with open(f"/proc/{self.pid}/maps", "rb") as maps:
                return any(line.split(None, 5)[4] == inode for line in maps)
        except PermissionError:
            return True
        except OSError:
            return False


def process_limit(health: Mapping[str, Any]) -> int | None:
    """The memory limit of a process: the least of its cgroup's, the machine's, and that of the
    only Dask worker in it.

    health: limit_bytes and the facts, which the job reports and which may be anything.
    """
    limits, workers = [health.get("limit_bytes")], health.get("workers")
    if isinstance(workers, list) and len(workers) == 1 and isinstance(workers[0], dict):
        limits.append(workers[0].get("memory_limit_bytes"))
    return min((n for n in limits if type(n) is int and n > 0), default=None)


def explain(path: str | os.PathLike[str], error: _core.BoardError) -> str:
    """One line for people about a board that cannot be read."""
    reason = {
        "not ready": "its process has not finished creating it, or died doing so",
        "foreign": "it is not a board of dwsr-probe",
        "version": (
            f"it has version {error.detail}, this dwsr-probe knows versions"
            f" {_core.BOARD_VERSION_OLDEST} to {_core.BOARD_VERSION}"
        ),
        "damaged": "it was overwritten or damaged",
        "cut short": "it was cut short",
        "unreadable": os.strerror(error.detail or 0),
    }[error.reason]
    return f"cannot read the board {path}: {reason}"


def list_boards(directory: str | os.PathLike[str]) -> list[str]:
    """Paths of the board files in a directory, sorted; none if there is no such directory."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.path for entry in entries if entry.name.endswith(SUFFIX))
    except OSError:
        return []


def created_at(path: str) -> float:
    """When a board was made, in epoch seconds, from its file name; 0 if the name has no date."""
    try:
        return int(os.path.basename(path).removesuffix(SUFFIX).rpartition("-")[2]) / 1e6
    except ValueError:
        return 0.0


def snapshot() -> Snapshot | None:
    """This process now, as its own board shows it; None without a probe."""
    path = _core.board_path()
    return Board(path).snapshot() if path else None


def records() -> list[TaskRecord]:
    """The finished tasks of this process that its board still holds (at least 8,192 of the
    newest), oldest first."""
    path = _core.board_path()
    return list(Board(path).finished()) if path else []
