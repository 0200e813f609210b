"""Read boards, live or dead: what a process does now (Snapshot), what it finished (records), and
whether it is still there.

Covers one board file at a time; dwsr_probe.collector follows many. A board that cannot be read
raises _core.BoardError, whose text for people is `explain`.
"""

import json
import os
import struct
import time
from functools import cache

from dwsr_probe import _core
from dwsr_probe.dataclass import dataclass
from dwsr_probe.origin import Origin
from dwsr_probe.probe import SPAWNED
from dwsr_probe.record import SERIAL, SOURCES, TaskRecord, record_of
from dwsr_probe.total import from_words

SUFFIX = ".board"
_STALE_NS = 2_000_000_000
_EXEC_TAKES_NS = 50_000_000
_SAMPLE = struct.Struct(f"={len(_core.SAMPLE_FIELDS)}Q")
SAMPLE_BYTES = _SAMPLE.size


@dataclass
class Snapshot:
    """One process at one moment: its own row, its running tasks, the probe's live counters by
    name, and its GPUs."""

    process: TaskRecord
    running: list
    live: dict
    devices: list


@dataclass
class Frames:
    """Finished tasks in the board's own form. position: behind them. some: whether any were
    read, all that were left out among them."""

    position: int
    some: bool
    packed: bytes
    count: int
    first_seq: int
    last_seq: int
    last_serial: int
    texts: int  # that they name, at least so many must be on the board


class Board(Origin):
    def __init__(self, path):
        self.path = os.fspath(path)
        self._reader = _core.Reader(path)
        self.header = header = dict(zip(_core.HEADER_FIELDS, self._reader.header(), strict=True))
        texts = {
            n: t.decode("utf-8", "replace")
            for n, t in zip(_core.HEADER_TEXTS, self._reader.texts(), strict=True)
        }
        self.task_name, self.python = texts["task_name"], texts["python"]
        self.start_ticks, self.limit_bytes = header["start_ticks"], header["limit_bytes"]
        self.has_totals = header["version"] >= 6
        self._texts_end, self._addresses_text = 0, b""
        super().__init__(
            process_name(header["pid"], header["epoch_ns"] / 1e9),
            self._reader.layout,
            texts["run"] or None,
            texts["host"],
            header["pid"],
            texts["worker"] or None,
            header["rss_error_bytes"],
            header["epoch_ns"] - header["start_ns"],
        )

    def close(self):
        self._reader.close()

    def live(self):
        return dict(zip(_core.LIVE_FIELDS, self._reader.live(), strict=True))

    def facts_text(self):
        """What the program says about itself, JSON as bytes; empty: nothing."""
        return self._reader.facts()

    def facts(self):
        try:
            found = json.loads(self.facts_text() or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def name(self, facts=None):
        """What people call the process: the name of its one Dask worker, or the one that
        multiprocessing gave it; else its script."""
        facts = self.facts() if facts is None else facts
        workers, given = facts.get("workers"), facts.get("name")
        if (
            self.task_name == SPAWNED
            and isinstance(workers, list)
            and len(workers) == 1
            and isinstance(workers[0], dict)
        ):
            given = f"worker {workers[0].get('name') or workers[0].get('address') or ''}".rstrip()
        return given if isinstance(given, str) and given else self.task_name

    def devices(self):
        """The GPUs that the process has allocated on, each a dict: its number there, name, uuid,
        and the board's fields by name."""
        return [
            {
                "device": number,
                "name": name.decode("utf-8", "replace"),
                "uuid": uuid.decode("utf-8", "replace"),
                **dict(zip(_core.DEVICE_FIELDS[1:], fields[1:], strict=True)),
            }
            for number, fields, name, uuid in self._reader.devices()
        ]

    def worker_of(self, index):
        if index is not None and index >= len(self.addresses):
            self._read_addresses()
        return super().worker_of(index)

    def _read_addresses(self):
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

    def frames(self, position=0, most=100_000, after=0):
        """Finished tasks from `position` on as they are packed: Frames. Those whose seq is not
        above `after` are left out.

        With what it takes to make rows of them: texts and addresses are on the board before the
        task that names them ends."""
        found = Frames(*self._reader.frames(position, most, after))
        if found.count:
            self._read_texts()
            self._read_addresses()
            if found.texts > len(self.texts):
                raise _core.BoardError("damaged")
        return found

    def _read_texts(self):
        new, self._texts_end = self._reader.texts_from(self._texts_end)
        self.texts += new

    def records(self, position=0, most=100_000):
        """Finished tasks from `position` on as reader's tuples, oldest first, at most so many,
        and the next position. Empty: no more."""
        found = self.frames(position, most)
        return self.unpack(found.packed), found.position

    def totals(self):
        """Exact sums of what has ended: a total.Total for each task name. Boards before version
        6 have none: None."""
        if not self.has_totals:
            return None
        found = self._reader.totals()
        self._read_texts()
        return [from_words(words, devices, cells, self.texts) for words, devices, *cells in found]

    def finished(self):
        """Finished tasks as TaskRecords, oldest first."""
        position = 0
        while True:
            raws, position = self.records(position)
            if not raws:
                return
            yield from (record_of(self, raw) for raw in raws)

    def packed_samples(self, index=0):
        """Samples from number `index` on in the board's own form, and the next number. Empty: no
        more."""
        return self._reader.samples(index)

    def samples(self, index=0):
        """(time_ns, rss_bytes, window_peak_bytes, period_ns) from number `index` on, and the
        next number."""
        packed, index = self.packed_samples(index)
        return list(unpack_samples(packed)), index

    def running(self, live=None, everywhere=False):
        """(serial, slot, record) of the running tasks, with the peak of the present window
        folded in."""
        live = live or self.live()
        most = self.header["slot_count"] if everywhere else live["running"] or 0
        records = []
        for slot, raw in self._reader.slots(most):
            record = record_of(self, raw)
            window = (
                live["window_peak_bytes"] if live["window_boundary"] == live["boundary"] else None
            )
            if window is not None and window > (record.rss_peak_bytes or 0):
                record.rss_peak_bytes = window
            records.append((raw[0][SERIAL], slot, record))
        return records

    def process_record(self, live, state):
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
            state=state,
            start=start,
            duration=None if state == "running" else max(0.0, self.epoch_of(end_ns) - start),
            rss_before_bytes=self.header["rss_before_bytes"],
            rss_peak_bytes=live["rss_max_bytes"] or None,
            rss_peak_source="kernel" if live["rss_max_bytes"] else None,
            rss_error_bytes=self.rss_error_bytes,
            overlap=0,
            attribution="exact",
        )

    def snapshot(self):
        live = self.live()
        live["rss_source"] = SOURCES.get(live["rss_source"])
        return Snapshot(
            self.process_record(live, "running"),
            [record for _, _, record in self.running(live)],
            live,
            self.devices(),
        )

    def now_ns(self, live):
        """Now by the board's clock. Clocks of other hosts and containers may not be ours: of
        their boards, the last heartbeat."""
        return (
            time.monotonic_ns()
            if self._is_of_here()
            else live["heartbeat_ns"] or self.header["start_ns"]
        )

    def silent_s(self, live):
        """Seconds since its last sign of life. Dates are compared only for another host's: ours
        may be set meanwhile."""
        last, now = live["heartbeat_ns"] or self.header["start_ns"], time.monotonic_ns()
        if self.host != os.uname().nodename:
            return time.time() - self.epoch_of(last)
        # of an earlier boot: since this one, at least
        return (now - last if now >= last else now) / 1e9

    def is_alive(self, live):
        """The process exists and still is the program that made this board. A closed board of a
        living process counts as alive."""
        # negative: of another machine, or of an earlier boot
        age_ns = time.monotonic_ns() - (live["heartbeat_ns"] or 0)
        stale = not 0 <= age_ns <= max(_STALE_NS, 4 * (live["sampler_period_ns"] or 0))
        if not self._is_of_here():
            # its pid means nothing here: only its heartbeat does
            return live["state"] == 1 and not stale
        if not process_exists(self.pid, self.start_ticks):
            return False
        return live["state"] != 1 or not (stale or self.tried_to_exec(live)) or self._is_mapped()

    def tried_to_exec(self, live):
        """The last sign of life was an attempt to exec another program; the sampler may still
        have run on the way into it."""
        return (
            live["state"] == 1
            and bool(live["exec_ns"])
            and live["exec_ns"] + _EXEC_TAKES_NS >= (live["heartbeat_ns"] or 0)
        )

    def _is_of_here(self):
        return (
            self.header["pid_namespace"] == _own_pid_namespace()
            and self.host == os.uname().nodename
        )

    def _is_mapped(self):
        try:
            # not by name: a board gets that when it is mapped already
            inode = b"%d" % self._reader.inode()
            with open(f"/proc/{self.pid}/maps", "rb") as maps:
                return any(line.split(None, 5)[4] == inode for line in maps)
        except PermissionError:
            return True
        except OSError:
            return False


def unpack_samples(packed):
    """(time_ns, rss_bytes, window_peak_bytes, period_ns) of each; a size that could not be read
    is None."""
    for time_ns, rss, peak, period_ns in _SAMPLE.iter_unpack(packed):
        yield time_ns, rss if rss < 1 << 63 else None, peak if peak < 1 << 63 else None, period_ns


def process_limit(health):
    """What a process may hold: its cgroup's or machine's limit, or that of the one Dask worker
    in it, whichever is less.

    health: with limit_bytes and the facts, which are the job's own words.
    """
    limits, workers = [health.get("limit_bytes")], health.get("workers")
    if isinstance(workers, list) and len(workers) == 1 and isinstance(workers[0], dict):
        limits.append(workers[0].get("memory_limit_bytes"))
    return min((n for n in limits if type(n) is int and n > 0), default=None)


def process_name(pid, start):
    """The contract's `process`: pid and the moment when its measurement began. After exec a
    process has two."""
    return f"{pid}-{int(start * 1e6)}"


def start_ticks(pid):
    """When a process started, by the kernel's clock; None if there is none, or it has ended and
    waits for its parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def process_exists(pid, ticks):
    return ticks is not None and start_ticks(pid) == ticks


@cache
def _own_pid_namespace():
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def explain(path, error):
    """One line for people about a _core.BoardError."""
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


def list_boards(directory):
    """Paths of the board files in a directory, oldest process first by name; none if there is no
    such directory."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.path for entry in entries if entry.name.endswith(SUFFIX))
    except OSError:
        return []


def created(path):
    """When a board was made, in epoch seconds, by its name; 0 if that says nothing."""
    try:
        return int(os.path.basename(path).removesuffix(SUFFIX).rpartition("-")[2]) / 1e6
    except ValueError:
        return 0.0


def snapshot():
    """This process now, as its own board shows it; None without a probe."""
    path = _core.board_path()
    return Board(path).snapshot() if path else None


def records():
    """The finished tasks of this process that its board still holds (at least 8,192 of the
    newest), oldest first."""
    path = _core.board_path()
    return list(Board(path).finished()) if path else []
