"""Running tasks: the probability that each one exceeds the room its process has left for it, and
when. Fed by the service with each update of a target; read by /running and the metrics.

Room of a task: its own live bytes plus the headroom of its process, as if its neighbours stood
still. A task whose allocations are not accounted is followed by the growth of its process instead;
so is one whose own figures may miss memory, if it runs alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.live.wire import TaskIdentity, task_identity
from dwsr_probe.predict.group import group_of
from dwsr_probe.record import misses_memory

if TYPE_CHECKING:
    from dwsr_probe.predict import Model
    from dwsr_probe.serve.targets import TargetUpdate

PACE_S, POINTS_MOST = 30.0, 64  # of the window in which a task's pace is measured
SERIES_MOST = 256  # running tasks that have series of their own
GROWTH_LEAST = 1.01  # a peak that grew by less is neither learned nor forecast anew
# A probability is computed anew after this time in any case: the model has learned meanwhile.
RECOMPUTE_S = 5.0


@dataclass(frozen=True)
class OverrunForecast:
    """One running task. slot: a small number among the running tasks of its process, used again
    after the task has ended. Thread identifiers as labels would create new series without end."""

    task: TaskIdentity
    target: str
    pid: int | None
    slot: str
    task_name: str
    operation: str | None
    chain: list[str] | None
    room_bytes: float
    probability: float  # of exceeding room_bytes
    seconds: float | None  # until then at the present pace; None: the task does not grow


class Need(NamedTuple):
    """What a running task has taken. kind: of forecast, alloc or rss."""

    kind: str
    peak_bytes: float
    now_bytes: float


class CachedProbability(NamedTuple):
    """A probability and what it was computed for."""

    when: float
    peak_bytes: float
    room_bytes: float
    probability: float


class Track:
    """One running task over the updates in which it appeared."""

    def __init__(self, slot: int = 0) -> None:
        self.slot = slot
        self.points: deque[tuple[float, float]] = deque(maxlen=POINTS_MOST)  # when, peak so far
        self.updates = 0
        self.learned_bytes = -1.0  # the peak that the model learned last; -1: none
        self._cached: CachedProbability | None = None

    @property
    def is_learned(self) -> bool:
        return self.learned_bytes >= 0

    def add(self, now: float, peak: float) -> None:
        self.updates += 1
        while self.points and self.points[0][0] < now - PACE_S:
            self.points.popleft()
        self.points.append((now, peak))

    def seconds_until(self, room: float) -> float | None:
        """At the pace from the first to the last point of the window; None for a peak that does
        not grow."""
        (first, low), (last, high) = self.points[0], self.points[-1]
        if high >= room:
            return 0.0
        return (room - high) * (last - first) / (high - low) if high > low else None

    def probability(
        self, now: float, peak: float, room: float, compute: Callable[[], float]
    ) -> float:
        """Computed anew if peak or room have changed by 1 %: each computation takes about a
        millisecond, and there may be a thousand tasks."""
        old = self._cached
        if (
            old is None
            or now >= old.when + RECOMPUTE_S
            or peak > GROWTH_LEAST * old.peak_bytes
            or not 1 / GROWTH_LEAST < (room + 1) / (old.room_bytes + 1) < GROWTH_LEAST
        ):
            self._cached = old = CachedProbability(now, peak, room, compute())
        return old.probability

    def should_learn(self, peak: float) -> bool:
        """Whether the model should learn this lower bound. A task that was seen once only may
        have ended by now: most tasks are short."""
        return self.updates > 1 and peak > GROWTH_LEAST * self.learned_bytes


def need_of(record: dict[str, Any]) -> Need | None:
    """None: not known."""
    own_peak, live = _bytes(record, "alloc_peak_bytes"), _bytes(record, "alloc_end_bytes")
    own = None if own_peak is None or live is None else Need("alloc", own_peak, live)
    peak, before = _bytes(record, "rss_peak_bytes"), _bytes(record, "rss_before_bytes")
    resident = _bytes(record, "process_resident_bytes")
    if peak is None or before is None or resident is None:
        return own
    growth = Need("rss", max(0, peak - before), max(0, resident - before))
    if own is None:
        return growth
    if not record.get("overlap") and misses_memory(record.get("attribution_reason")):
        return Need(
            "alloc",
            max(own.peak_bytes, growth.peak_bytes),
            max(own.now_bytes, growth.now_bytes),
        )
    return own


def _probability(model: Model, record: dict[str, Any], need: Need, room: float) -> float:
    group = group_of(record["task_name"], record.get("operation"), record.get("chain"))
    forecast = model.predict(
        record["inputs"], group, kind=need.kind, running=record, params=record.get("params")
    )
    return float(forecast.exceeds(room, need.peak_bytes))


def _bytes(record: dict[str, Any], name: str) -> float | None:
    """A valid number of bytes, or None."""
    value: Any = record.get(name)
    return value if type(value) in (int, float) and 0 <= value < 1 << 62 else None


class OverrunForecasts:
    """Of the running tasks of all targets."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[TaskIdentity, Track]] = {}  # by target
        self._forecasts: dict[str, dict[TaskIdentity, OverrunForecast]] = {}  # by target

    def update(
        self, target: str, update: TargetUpdate, model: Model, now: float
    ) -> tuple[list[dict[str, Any]], set[str | None]]:
        """Replaces what runs at a target. Returns the records that the model should learn, and
        the processes whose running tasks the model must forget first: one of their tasks has
        vanished without a record of its end."""
        before, tracks = self._tracks.get(target, {}), {}
        forecasts: dict[TaskIdentity, OverrunForecast] = {}
        learn: list[dict[str, Any]] = []
        slots = {
            (task.process, before[task].slot)
            for task in (task_identity(record.get) for record in update.running)
            if task in before
        }
        for record in update.running:
            task, need = task_identity(record.get), need_of(record)
            if need is None:
                continue
            track = before.get(task)
            if track is None:
                track = Track(next(n for n in count() if (task.process, n) not in slots))
            tracks[task] = track
            slots.add((task.process, track.slot))
            track.add(now, need.peak_bytes)
            if track.should_learn(need.peak_bytes):
                track.learned_bytes = need.peak_bytes
                learn.append(record)
            if (headroom := _bytes(record, "process_headroom_bytes")) is None:
                continue
            room = need.now_bytes + headroom
            try:
                probability = track.probability(
                    now, need.peak_bytes, room, partial(_probability, model, record, need, room)
                )
            except (ValueError, TypeError, KeyError):  # the inputs are not valid
                continue
            forecasts[task] = OverrunForecast(
                task,
                target,
                record.get("pid"),
                str(track.slot),
                record["task_name"],
                record.get("operation"),
                record.get("chain"),
                room,
                probability,
                track.seconds_until(room),
            )
        self._tracks[target], self._forecasts[target] = tracks, forecasts
        vanished = {
            task.process
            for task, track in before.items()
            if task not in tracks and task not in update.ended and track.is_learned
        }
        # The model forgets a process's running tasks together: it learns those that still run
        # again.
        chosen = {task_identity(record.get) for record in learn}
        learn += [
            record
            for record in update.running
            if record["process"] in vanished
            and (task := task_identity(record.get)) not in chosen
            and task in tracks
            and tracks[task].is_learned
        ]
        return learn, vanished

    def drop(self, target: str) -> set[str | None]:
        """The target has gone. Returns the processes whose running tasks the model has learned."""
        self._forecasts.pop(target, None)
        tracks = self._tracks.pop(target, {})
        return {task.process for task, track in tracks.items() if track.is_learned}

    def most_probable(self, most: int = SERIES_MOST) -> list[OverrunForecast]:
        """Each task once, though two targets may report it; the most probable overruns first."""
        once = {
            task: forecast
            for target in sorted(self._forecasts)
            for task, forecast in self._forecasts[target].items()
        }
        return sorted(once.values(), key=lambda forecast: -forecast.probability)[:most]
