"""A living process as its board shows it at one moment: limit, headroom, devices, Dask workers and
running tasks.

The one definition of a living process's limit and headroom. Dask workers and `run`'s parent load
this file, so it imports nothing that is slow to import.
"""

from __future__ import annotations

from dwsr_probe import _core
from dwsr_probe.board import Board, process_limit
from dwsr_probe.record import TaskRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from dataclasses import dataclass, field
    from typing import Any
else:
    from dwsr_probe.dataclass import dataclass, field

_WORKER_FIELDS = {
    "address": str,
    "name": str,
    "http": str,
    "memory_limit_bytes": int,
    "managed_bytes": int,
    "spilled_bytes": int,
}
# What becomes of a record in the model inside a worker (worker_model/). expected: a repeat that
# says nothing new. skipped_...: for want of CPU time. lost: overwritten before it was read.
# refused: impossible figures.
MODEL_OUTCOMES = (
    "learned",
    "expected",
    "skipped_early",
    "skipped_new",
    "skipped_surprising",
    "skipped_repeat",
    "lost",
    "refused",
)
MODEL_FIGURES = (*MODEL_OUTCOMES, "questions", "unanswered", "cpu_seconds", "failed")
_WORKERS_NAMED_MOST = 4  # in one text
_NVML_STATES = {number: state for state, number in _core.NVML_STATES.items()}


@dataclass
class RunningTask:
    """A task that runs. pid: of its LivingProcess. slot: its number on the board."""

    pid: str
    slot: str
    record: TaskRecord
    seconds: float


@dataclass
class LivingProcess:
    """pid: a text that no other process shown beside it has. live and header: the board's fields
    by name. devices: of Board.devices(). workers: facts of its Dask workers, checked. worker_model:
    MODEL_FIGURES of the model in its workers; {} if there is none."""

    pid: str
    identity: str  # `process` of its records
    program: str
    run: str
    user: str
    python: str
    live: dict[str, Any]
    header: dict[str, Any]
    devices: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    running: list[RunningTask]
    worker_model: dict[str, float] = field(default_factory=dict)

    @property
    def limit_bytes(self) -> int | None:
        """The least of its worker's limit (if it has one worker) and the cgroup's or machine's."""
        return process_limit({"limit_bytes": self.header["limit_bytes"], "workers": self.workers})

    @property
    def headroom_bytes(self) -> int | None:
        """What the process may still take: the least that its cgroups and its machine have left,
        as its board says, and its worker's limit minus the resident size. None: not known."""
        left, resident = self.live["headroom_bytes"], self.live["rss_bytes"]
        worker_limit = self.workers[0].get("memory_limit_bytes") if len(self.workers) == 1 else None
        if not worker_limit or resident is None:
            return left
        below_limit = max(0, worker_limit - resident)
        return below_limit if left is None else min(left, below_limit)

    @property
    def fallbacks(self) -> dict[str, int]:
        """Parts of the probe by name; 1: the part works less well than it should."""
        live = self.live
        state = {
            "rss": live["rss_source"] == _core.RSS_SAMPLED,
            "alloc": live["alloc_state"] == _core.ALLOC_UNAVAILABLE,
            "dask": live["dask_hooks"] == _core.DASK_HOOKS_TRANSITIONS,
        }
        if live["gpu_hook"]:
            state |= {
                "cupy": live["gpu_hook"] == _core.GPU_HOOK_OFF,
                "nvml": _NVML_STATES.get(live["nvml_state"]) not in ("ok", "none"),
            }
        if self.worker_model:
            state["worker_model"] = bool(self.worker_model.get("failed"))
        return {name: int(bool(value)) for name, value in state.items()}

    def workers_text(self, field: str) -> str:
        """One field of the first workers, separated by commas."""
        return ",".join(str(w.get(field) or "") for w in self.workers[:_WORKERS_NAMED_MOST])


@dataclass
class LivingProcesses:
    """Behind one port, or in some directories."""

    processes: list[LivingProcess]
    dropped: int = 0  # further living processes, which are not in the list
    unreadable: int = 0  # boards that are damaged or of another version


def read_process(
    board: Board, live: dict[str, Any], pid: str | None = None, user: str = "", tasks: bool = True
) -> LivingProcess:
    """The process of a board; _core.BoardError if the board cannot be read any more.

    live: the board's live counters. pid: a name for the process, if its number is not unique.
    tasks: with the running tasks, which are most of the work.
    """
    facts = board.facts()
    pid = pid or str(board.pid)
    now = board.epoch_of(board.now_ns(live))  # by the board's clock, which nobody sets
    return LivingProcess(
        pid=pid,
        identity=board.process,
        program=board.name(facts),
        run=board.run or "",
        user=user,
        python=board.python,
        live=live,
        header=board.header,
        devices=board.devices(),
        workers=checked_workers(facts.get("workers")),
        running=[
            RunningTask(pid, str(slot), record, max(0.0, now - (record.start or now)))
            for _, slot, record in sorted(
                board.running(live) if tasks else (), key=lambda found: found[1]
            )
        ],
        worker_model=_checked_figures(facts.get("worker_model")),
    )


def least_headroom_bytes(processes: Iterable[LivingProcess]) -> int | None:
    """Of all processes of which it is known."""
    return min(
        (left for process in processes if (left := process.headroom_bytes) is not None),
        default=None,
    )


def _checked_figures(found: Any) -> dict[str, float]:
    """Of MODEL_FIGURES, those that are numbers. Boards of other users may say anything."""
    if not isinstance(found, dict):
        return {}
    return {
        name: found[name]
        for name in MODEL_FIGURES
        if type(found.get(name)) in (int, float) and 0 <= found[name] < 1 << 63
    }


def checked_workers(found: Any) -> list[dict[str, Any]]:
    """The known facts of each Dask worker that have the right type. Boards of other users may say
    anything."""
    if not isinstance(found, list):
        return []
    return [
        {
            name: worker[name]
            for name, kind in _WORKER_FIELDS.items()
            if isinstance(worker.get(name), kind) and (kind is str or 0 <= worker[name] < 1 << 63)
        }
        for worker in found
        if isinstance(worker, dict)
    ]
