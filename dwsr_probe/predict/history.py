"""Learn from the records of a whole run: the one sampling of a run, and the one loop that feeds it
to a model. Used by `dwsr-probe predict`, by the report's views and by `dwsr_probe.load(...).model`.

A model needs some hundred tasks of a name, not all of them: learning takes about 0.3 ms for a
record, the model weights 1,000 values and the calibration 500 scores. The sample of each name has

- tasks that finished (or still run), evenly spread over the run, so that a change is seen;
- tasks that ended early (killed, failed, cancelled), evenly as well, up to a quarter as many: they
  are lower bounds, and a task name that only ever fails must not push out the finished ones;
- the task with the largest inputs, in whatever state: forecasts are mostly wanted for its size.

Records of all names are learned in the order of their arrival, because a forecast is scored
against the record that follows it.

Standard library only until something is learned: the parent of a run loads this module to sample
while it reads, and loads numpy only if a task was killed.
"""

from __future__ import annotations

from collections import defaultdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from dwsr_probe.predict.blocks import VaryingAxes
    from dwsr_probe.predict.model import Model

# Finished tasks of each name: as many as there are scores in the calibration.
SAMPLE_MOST = 500


class _EvenSample:
    """At most `most` records of a stream of unknown length, evenly spread.

    Holds less than 2 * `most` records. When it would hold more, it drops every second one, and from
    then on keeps only every second one of those that it would have kept."""

    __slots__ = ("_count", "_kept", "_most", "_stride")

    def __init__(self, most: int) -> None:
        self._most, self._stride, self._count = most, 1, 0
        self._kept: list[tuple[int, Any]] = []

    def add(self, arrival: int, record: Any) -> None:
        if self._count % self._stride == 0:
            self._kept.append((arrival, record))
            if len(self._kept) >= 2 * self._most:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self._count += 1

    def chosen(self) -> list[tuple[int, Any]]:
        kept, most = self._kept, self._most
        return kept if len(kept) <= most else [kept[i * len(kept) // most] for i in range(most)]


class _NameSample:
    """The sample of one task name."""

    __slots__ = ("ended_early", "finished", "largest", "largest_bytes")

    def __init__(self, most: int) -> None:
        self.finished = _EvenSample(most)
        self.ended_early = _EvenSample(max(1, most // 4))
        self.largest: tuple[int, Any] | None = None
        self.largest_bytes = -1

    def chosen(self) -> dict[int, Any]:
        found = dict(self.finished.chosen() + self.ended_early.chosen())
        if self.largest is not None:
            found.setdefault(*self.largest)
        return found


class RunSample:
    """The sample of a run, taken in one pass: `add` each record, then `learn`."""

    def __init__(self, most: int = SAMPLE_MOST) -> None:
        self._most, self._arrived = most, 0
        self._names: dict[str, _NameSample] = {}

    def add(self, record: Any) -> None:
        """record: a TaskRecord, or a dict with the same fields."""
        if isinstance(record, dict):
            name, state = record.get("task_name", ""), record.get("state", "ok")
            size = known_input_bytes(record) or 0
        else:
            name, state, size = record.task_name, record.state, record.known_input_bytes or 0
        sample = self._names.get(name)
        if sample is None:
            sample = self._names[name] = _NameSample(self._most)
        self._arrived = arrival = self._arrived + 1
        (sample.finished if state in ("ok", "running") else sample.ended_early).add(arrival, record)
        if size >= sample.largest_bytes:
            sample.largest_bytes, sample.largest = size, (arrival, record)

    def largest_input_bytes(self, task_name: str) -> int:
        """Of the inputs whose size is known; 0 if no task had any."""
        sample = self._names.get(task_name)
        return sample.largest_bytes if sample is not None else 0

    def chosen(self, task_names: Iterable[str] | None = None) -> list[Any]:
        """The records to learn from, of these names or of all, in the order of their arrival."""
        names = self._names if task_names is None else task_names
        found: dict[int, Any] = {}
        for name in names:
            if name in self._names:
                found.update(self._names[name].chosen())
        return [found[arrival] for arrival in sorted(found)]

    def learn(
        self,
        task_names: Iterable[str] | None = None,
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> LearnedRun:
        """A model of these names, or of all. progress: called with the records learned so far, and
        their number. ImportError where numpy or scipy are not installed."""
        learned = LearnedRun()
        records = self.chosen(task_names)
        for done, record in enumerate(records, 1):
            learned.add(record)
            if done % 64 == 0:
                progress(done, len(records))
        return learned


class LearnedRun:
    """model: of a run's sample. largest_inputs: by task name, of the task with the largest inputs.
    varying_axes: by task name, the axes along which the inputs differ. refused: number of
    records that were left out because of impossible figures."""

    def __init__(self) -> None:
        from dwsr_probe.predict.blocks import VaryingAxes
        from dwsr_probe.predict.model import Model

        self.model: Model = Model()
        self.largest_inputs: dict[str, list[dict[str, Any]]] = {}
        self.varying_axes: dict[str, VaryingAxes] = defaultdict(VaryingAxes)
        self.refused = 0
        self._largest_bytes: dict[str, int] = {}

    def add(self, record: Any) -> None:
        try:
            self.model.learn(record)
        except ValueError:
            self.refused += 1
            return
        name, inputs = (
            (record["task_name"], record.get("inputs"))
            if isinstance(record, dict)
            else (record.task_name, record.inputs)
        )
        inputs, size = inputs or [], known_input_bytes(record) or 0
        self.varying_axes[name].add(inputs)
        if size >= self._largest_bytes.get(name, -1):
            self._largest_bytes[name], self.largest_inputs[name] = size, inputs


def learn_run(records: Iterable[Any], most: int = SAMPLE_MOST) -> LearnedRun:
    """Learn from a run. records: each a TaskRecord or a dict with the same fields, in the order in
    which the tasks ended. most: finished tasks of each name."""
    sample = RunSample(most)
    for record in records:
        sample.add(record)
    return sample.learn()


def known_input_bytes(record: Any) -> int | None:
    """Bytes of all inputs, or of those whose size is known; None if none is known."""
    if not isinstance(record, dict):
        return record.known_input_bytes
    if record.get("input_bytes") is not None:
        return record["input_bytes"]
    known = [
        given["nbytes"]
        for given in record.get("inputs") or []
        if isinstance(given, dict) and isinstance(given.get("nbytes"), int)
    ]
    return sum(known) if known else None
