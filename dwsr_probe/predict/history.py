"""Learn from the records of a whole run: the one sampling of a run, and the one loop that feeds it
to a model. Used by `dwsr-probe predict`, by the report's views and by `dwsr_probe.load(...).model`:
all of them learn the same sample, so they print the same bounds.

A model needs some hundred tasks of a group (group.py), not all of them: learning takes about
0.3 ms for a record, the model keeps 72 cases and the calibration 500 scores. The sample of
each group has

- tasks that finished (or still run), evenly spread over the run, so that a change is seen;
- tasks that ended early (killed, failed, cancelled), evenly as well, up to a quarter as many: they
  are lower bounds, and a group that only ever fails must not push out the finished ones;
- the task with the largest inputs, in whatever state: forecasts are mostly wanted for its size.

Records of all groups are learned in the order of their arrival, because a forecast is scored
against the record that follows it.

Standard library only until something is learned: the parent of a run loads this module to sample
while it reads, and loads numpy only if a task was killed.
"""

from __future__ import annotations

from collections import defaultdict, namedtuple

from dwsr_probe.predict.group import group_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from dwsr_probe.predict.blocks import VaryingAxes
    from dwsr_probe.predict.model import Model

# Finished tasks of each group: as many as there are scores in the calibration. If there are many
# groups, fewer of each, so that a view of any run is there within about a second.
SAMPLE_MOST = 500
_SAMPLE_OF_ALL_GROUPS, _SAMPLE_LEAST = 3000, 10


class LargestTask(namedtuple("LargestTask", ("inputs", "params"), defaults=((), None))):
    """Inputs and parameters of the task with the largest inputs of its group."""

    __slots__ = ()
    if TYPE_CHECKING:
        inputs: list[dict[str, Any]]
        params: dict[str, float] | None


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

    def chosen(self, most: int) -> list[tuple[int, Any]]:
        kept = self._kept
        return kept if len(kept) <= most else [kept[i * len(kept) // most] for i in range(most)]


class _GroupSample:
    """The sample of one group. text: of the group."""

    __slots__ = ("ended_early", "finished", "largest", "largest_bytes", "text")

    def __init__(self, text: str, most: int) -> None:
        self.text = text
        self.finished = _EvenSample(most)
        self.ended_early = _EvenSample(max(1, most // 4))
        self.largest: tuple[int, Any] | None = None
        self.largest_bytes = -1

    def chosen(self, most: int) -> dict[int, Any]:
        found = dict(self.finished.chosen(most) + self.ended_early.chosen(max(1, most // 4)))
        if self.largest is not None:
            found.setdefault(*self.largest)
        return found


class RunSample:
    """The sample of a run, taken in one pass: `add` each record, then `learn`."""

    def __init__(self, most: int = SAMPLE_MOST) -> None:
        self._most, self._arrived = most, 0
        self._groups: dict[str, _GroupSample] = {}  # by the group's text
        # The same by the fields of records: a text would have to be made for each record.
        self._by_fields: dict[tuple[Any, ...], _GroupSample] = {}

    def add(self, record: Any) -> None:
        """record: a TaskRecord, or a dict with the same fields."""
        names, state = _names_of(record)
        fields = (*names[:2], *(names[2] or ()))
        sample = self._by_fields.get(fields)
        if sample is None:
            text = group_of(*names).text
            sample = self._groups.get(text) or _GroupSample(text, self._most)
            self._groups[text] = self._by_fields[fields] = sample
        size = known_input_bytes(record) or 0
        self._arrived = arrival = self._arrived + 1
        (sample.finished if state in ("ok", "running") else sample.ended_early).add(arrival, record)
        if size >= sample.largest_bytes:
            sample.largest_bytes, sample.largest = size, (arrival, record)

    def largest_input_bytes(self, text: str) -> int:
        """Of the inputs whose size is known; 0 if no task had any. text: of the group."""
        sample = self._groups.get(text)
        return sample.largest_bytes if sample is not None else 0

    def chosen(self) -> list[Any]:
        """The records to learn from, in the order of their arrival."""
        of_each = max(_SAMPLE_LEAST, _SAMPLE_OF_ALL_GROUPS // max(1, len(self._groups)))
        found: dict[int, Any] = {}
        for group in self._groups.values():
            found.update(group.chosen(min(self._most, of_each)))
        return [found[arrival] for arrival in sorted(found)]

    def learn(
        self,
        progress: Callable[[int, int], object] = lambda done, total: None,
        model: Model | None = None,
    ) -> LearnedRun:
        """progress: called with the records learned so far, and their number. model: learns the
        sample in addition to what it knows. ImportError where numpy is not installed."""
        learned = LearnedRun(model)
        records = self.chosen()
        for done, record in enumerate(records, 1):
            learned.add(record)
            if done % 64 == 0:
                progress(done, len(records))
        return learned


class LearnedRun:
    """model: of a run's sample. largest, varying_axes (along which the inputs differ): by the text
    of a group. refused: number of records that were left out because of impossible figures."""

    def __init__(self, model: Model | None = None) -> None:
        from dwsr_probe.predict.blocks import VaryingAxes
        from dwsr_probe.predict.model import Model

        self.model: Model = model or Model()
        self.largest: dict[str, LargestTask] = {}
        self.varying_axes: dict[str, VaryingAxes] = defaultdict(VaryingAxes)
        self.refused = 0
        self._largest_bytes: dict[str, tuple[int, int]] = {}  # of inputs; own peak

    def add(self, record: Any) -> None:
        try:
            self.model.learn(record)
        except ValueError:
            self.refused += 1
            return
        names, state = _names_of(record)
        text, inputs = group_of(*names).text, _inputs_of(record)
        if state != "ok" and self.model.reads_late(text):
            return  # what the task read is not known: it has not ended well
        size = known_input_bytes(record) or 0, _field(record, "alloc_peak_bytes") or 0
        self.varying_axes[text].add(inputs)
        if size >= self._largest_bytes.get(text, (-1, 0)):
            self._largest_bytes[text] = size
            self.largest[text] = LargestTask(inputs, _field(record, "params"))


def learn_run(records: Iterable[Any], most: int = SAMPLE_MOST) -> LearnedRun:
    """Learn from a run. records: each a TaskRecord or a dict with the same fields, in the order in
    which the tasks ended. most: finished tasks of each group."""
    sample = RunSample(most)
    for record in records:
        sample.add(record)
    return sample.learn()


def _names_of(record: Any) -> tuple[tuple[str, str | None, list[str] | None], str]:
    """((task name, operation, chain), state) of a TaskRecord or dict."""
    if isinstance(record, dict):
        name, operation, chain = (record.get(n) for n in ("task_name", "operation", "chain"))
        state = record.get("state", "ok")
    else:
        name, operation, chain = record.task_name, record.operation, record.chain
        state = record.state
    if chain and not all(isinstance(function, str) for function in chain):
        chain = None  # damaged, and refused by the model
    return (name or "", operation, chain), state


def _inputs_of(record: Any) -> list[dict[str, Any]]:
    return _field(record, "inputs") or []


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else getattr(record, name)


def known_input_bytes(record: Any) -> int | None:
    """Bytes of all inputs, or of those whose size is known, as the model counts (sizes.py); None if
    none is known."""
    total = _field(record, "input_bytes")
    inputs = [given for given in _inputs_of(record) if isinstance(given, dict)]
    if total is not None:
        for given in inputs:
            if "logical_bytes" in given:
                break
        else:
            return total
    sizes = [
        size * (given.get("count") or 1)
        for given in inputs
        if isinstance(size := given.get("logical_bytes") or given.get("nbytes"), int)
    ]
    # The total is larger if some inputs were omitted.
    return max(sum(sizes), total or 0) if sizes or total is not None else None
