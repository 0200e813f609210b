"""The model: two verbs, learn(record) and predict(inputs, task_name). One learner per task name
and kind of memory; numpy and scipy only.

Finished tasks are exact values, killed and failed ones lower bounds that are kept, running ones
open bounds that are replaced as their peak rises and dropped when they end. What
is kept is bounded: sums, a few bounds, a sample of shapes. Order of arrival does not matter for
what is forecast, but for forgetting (past _MEMORY values of a task, or when it changed) and for
the calibration, which compares each value with the forecast before it. Predict changes nothing.
Nothing here is for several threads at once.
"""

import json
import os
import tempfile
from collections import OrderedDict
from functools import partial

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.forecast import Forecast, Round
from dwsr_probe.predict.learner import FLOORS, Learner, numbers
from dwsr_probe.predict.shapes import OutputShape
from dwsr_probe.predict.sizes import FUNCTIONS, Array, arrays_of, sizes, text, whole
from dwsr_probe.predict.task import Task

KINDS = tuple(FLOORS)
FORMAT, VERSION = "dwsr-probe model", 1
_MOST_NAMES, _MOST_OPEN = 1024, 4096
_NAME_MOST = 10_000
_ENDED_EARLY = ("error", "cancelled", "killed")
_STATES = ("ok", "running", *_ENDED_EARLY)


class Model:
    def __init__(self):
        self._tasks = OrderedDict()  # the one learned last is at the end
        self._scores = {kind: Scores() for kind in KINDS}  # of all tasks
        self._open = OrderedDict()  # identity -> task name
        self._ended = OrderedDict()  # identities of those that ended last
        self.evicted = 0  # names that made room for others

    # -- learn

    def learn(self, record):
        """One record, finished or running, as TaskRecord or dict. Returns the rounds: what had
        been forecast, beside what came. ValueError for figures that cannot be."""
        get = _getter(record)
        name, state = get("task_name"), get("state", "ok")
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_MOST:
            raise ValueError(
                f"task name is {str(name)[:60]!r}, not a text of 1 to {_NAME_MOST:,} characters"
            )
        if state not in _STATES:
            raise ValueError(f"state is {str(state)[:60]!r}, not one of {', '.join(_STATES)}")
        if get("kind", "task") != "task":
            return []
        arrays = _with_rest(
            arrays_of(get("inputs") or []), get("input_bytes"), get("inputs_omitted") or 0
        )
        figures = _figures(get)
        output, output_bytes = _output(get("output")), figures.get("output", 0)
        requests = _failed_requests(get("oom")) if state == "error" else {}
        identity = _identity(get)
        # Nothing is refused beyond this line, so that a refused record changes nothing.
        if state == "running":
            figures.pop("output", None)
            # else nothing would ever close it
            if identity is not None and identity not in self._ended:
                self._run(identity, name, arrays, figures)
            return []
        if identity is not None:
            self._end(identity)
        task = self._task(name)
        if state in _ENDED_EARLY:
            figures.pop("output", None)
            return self._learn_bounds(task, name, arrays, figures, requests)
        rounds = []
        # what predict would have gone by: forecasts are not scored by what they could not know
        guess, deviation = task.output_bytes(arrays)
        for kind, y in figures.items():
            learner = task.learners.setdefault(kind, Learner(kind))
            at, asked = (
                sizes(arrays, 0 if kind == "output" else given) for given in (output_bytes, guess)
            )
            if (
                scored := learner.learn(
                    arrays,
                    at,
                    y,
                    asked,
                    0.0 if kind == "output" else deviation,
                    partial(task.kept, kind),
                    self._scores[kind],
                )
            ) is not None:
                rounds.append(Round(name, kind, *scored))
        if get("attribution") == "shared" and "alloc" in task.learners:
            task.learners["alloc"].shared += 1
        if output:
            task.output.learn(arrays, output)
        task.changed()
        return rounds

    def _learn_bounds(self, task, name, arrays, figures, requests):
        rounds = []
        for kind in sorted(figures.keys() | requests.keys()):
            bound, near = max((figures.get(kind, 0), False), (requests.get(kind, 0), True))
            if bound <= 0:
                continue
            learner = task.learners.setdefault(kind, Learner(kind))
            rounds.append(
                Round(
                    name,
                    kind,
                    *learner.learn_bound(
                        arrays,
                        task.sizes(kind, arrays),
                        bound,
                        near,
                        task.kept(kind),
                        self._scores[kind],
                    ),
                    censored=True,
                )
            )
        task.changed()
        return rounds

    def _task(self, name):
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = Task()
            while len(self._tasks) > _MOST_NAMES:
                _, gone = self._tasks.popitem(last=False)
                for identity in gone.open:
                    self._open.pop(identity, None)
                self.evicted += 1
        self._tasks.move_to_end(name)
        return task

    def _run(self, identity, name, arrays, figures):
        self._close(identity)  # under another name, perhaps
        self._task(name).run(identity, (arrays, figures))
        self._open[identity] = name
        while len(self._open) > _MOST_OPEN:
            self._close(next(iter(self._open)))

    def _end(self, identity):
        """Remembered for a while: of two ways to tell of a process the slower may say that it
        runs when it has ended."""
        self._close(identity)
        self._ended[identity] = None
        while len(self._ended) > _MOST_OPEN:
            self._ended.popitem(last=False)

    def _close(self, identity):
        name = self._open.pop(identity, None)
        if name is not None and name in self._tasks:
            self._tasks[name].run(identity, None)

    def forget_running(self, process=None):
        """Open bounds of a process that went away, or of all."""
        for identity in [
            identity for identity in self._open if process is None or identity[0] == process
        ]:
            self._close(identity)

    # -- predict

    def predict(self, inputs, task_name, kind="alloc", output=None, running=None):
        """What a task of this name would need for these inputs. output: what it returns, where
        the caller knows. running: the record of this very task, if it runs, whose own bound is
        left out (Forecast.exceeds takes it as `above`)."""
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
        if not isinstance(task_name, str):
            raise ValueError(f"task name is {str(task_name)[:60]!r}, not a text")
        arrays = arrays_of(inputs)
        task = self._tasks.get(task_name) or Task()
        if output is not None:
            (given,) = arrays_of([output]) or (Array(None, 0),)
            at, deviation = sizes(arrays, 0 if kind == "output" else given.nbytes), 0.0
        else:
            output = task.output.predict(arrays)
            output_bytes, deviation = (0, 0.0) if kind == "output" else task.output_bytes(arrays)
            at = sizes(arrays, output_bytes)
        learner = task.learners.get(kind) or Learner(kind)
        without = _identity(_getter(running)) if running else None
        mixture = learner.posterior(task.kept(kind), task.running(kind, without))
        calibrated = Calibrated(
            learner.expects(mixture, arrays, at, deviation), learner.scores, self._scores[kind]
        )
        trust, notes = learner.trust(arrays, mixture)
        return Forecast(task_name, kind, calibrated, output, learner.n, trust, notes)

    def names(self):
        return sorted(self._tasks)

    def kinds(self, task_name):
        return [
            kind
            for kind in KINDS
            if task_name in self._tasks and kind in self._tasks[task_name].learners
        ]

    def seen(self, task_name, kind="alloc"):
        """(input bytes, mean peak, count) of some shapes, smallest first."""
        learner = self._tasks[task_name].learners.get(kind) if task_name in self._tasks else None
        return learner.seen() if learner else []

    # -- keep

    def merge(self, other):
        """What another model learned from other records; running tasks of both."""
        if other is self:
            raise ValueError("a model merged with itself would count everything twice")
        for identity in other._ended:
            self._end(identity)
        for name, theirs in other._tasks.items():
            task = self._task(name)
            for kind, learner in theirs.learners.items():
                task.learners.setdefault(kind, Learner(kind)).merge(learner)
            task.output.merge(theirs.output)
            task.changed()
            for identity, running in theirs.open.items():
                if identity not in self._ended:
                    self._run(identity, name, *running)
        self.evicted += other.evicted
        for kind in KINDS:
            self._scores[kind].merge(other._scores[kind])

    def to_dict(self):
        """Everything but the running tasks, which tell themselves again."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "functions": [name for name, _ in FUNCTIONS],
            "evicted": self.evicted,
            "scores": {kind: scores.counts.tolist() for kind, scores in self._scores.items()},
            "tasks": {
                name: {
                    "learners": {
                        kind: learner.to_dict() for kind, learner in task.learners.items()
                    },
                    "output": task.output.to_dict(),
                }
                for name, task in self._tasks.items()
            },
        }

    @classmethod
    def from_dict(cls, kept):
        if not isinstance(kept, dict) or kept.get("format") != FORMAT:
            raise ValueError("not a model of dwsr-probe")
        if kept.get("version") != VERSION or kept.get("functions") != [
            name for name, _ in FUNCTIONS
        ]:
            raise ValueError("a model of another version of dwsr-probe; learn again from the runs")
        self = cls()
        try:
            self.evicted = whole(kept["evicted"], "evicted")
            for kind in KINDS:
                self._scores[kind] = Scores(
                    numbers(kept["scores"][kind], Scores().counts.shape, "scores")
                )
            if len(kept["tasks"]) > _MOST_NAMES or not all(
                0 < len(name) <= _NAME_MOST for name in kept["tasks"]
            ):
                raise ValueError("a damaged model: task names")
            for name, values in kept["tasks"].items():
                task = self._tasks[name] = Task()
                task.learners = {
                    kind: Learner.from_dict(kind, values["learners"][kind])
                    for kind in values["learners"]
                }
                task.output = OutputShape.from_dict(values["output"])
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"a damaged model: {error!r}") from error
        return self

    def save(self, path):
        """Atomically: a reader, or a crash, finds the old one or the new one. A link stays one."""
        path = os.path.realpath(path)
        handle, temporary = tempfile.mkstemp(
            dir=os.path.dirname(path), prefix=os.path.basename(path) + "."
        )
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.to_dict(), file, separators=(",", ":"), allow_nan=False)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as file:
            try:
                kept = json.load(file)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: not a model of dwsr-probe ({error})") from error
        try:
            return cls.from_dict(kept)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _getter(record):
    return (
        record.get
        if isinstance(record, dict)
        else lambda name, otherwise=None: getattr(record, name, otherwise)
    )


def _identity(get):
    """Of a task as it runs and ends: (process, thread, start); None if the record does not say."""
    identity = get("process"), get("thread"), get("start")
    for part in identity:
        if part is not None and (not isinstance(part, (str, int, float)) or part != part):
            raise ValueError(
                f"process, thread or start is {str(part)[:60]!r}, not a text or a number"
            )
    return None if identity[0] is None or identity[2] is None else identity


def _output(given):
    """As the record has it, checked as an input is; None if it has none."""
    if not given:
        return None
    (array,) = arrays_of([given]) or (Array(None, 0),)
    return {
        "type": text(given.get("type")),
        "dtype": array.dtype,
        "shape": array.shape,
        "nbytes": array.nbytes,
    }


def _with_rest(arrays, input_bytes, omitted):
    """Inputs that the record had no room for are one more, of bytes alone."""
    if not omitted or input_bytes is None:
        return arrays
    rest = whole(input_bytes, "input_bytes") - sum(array.nbytes for array in arrays)
    return (*arrays, Array(None, rest)) if rest > 0 else arrays


def _figures(get):
    """{kind: bytes} of what the record has."""
    found = {"alloc": get("alloc_peak_bytes"), "output": get("output_bytes")}
    if get("overlap") in (0, None):  # beside others, the process's growth is not this task's
        before, peak = get("rss_before_bytes"), get("rss_peak_bytes")
        if before is not None and peak is not None:
            found["rss"] = max(0, whole(peak, "rss_peak_bytes") - whole(before, "rss_before_bytes"))
    if devices := get("gpu"):
        if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
            raise ValueError(f"gpu is {devices!r}, not a list of devices")
        found["gpu"] = max(
            whole(device.get("peak_bytes") or 0, "gpu.peak_bytes") for device in devices
        )
    return {
        kind: whole(value, f"{kind} peak") for kind, value in found.items() if value is not None
    }


def _failed_requests(oom):
    """{kind: bytes} that were live and asked for when an allocation failed."""
    if not isinstance(oom, dict) or oom.get("requested_bytes") is None:
        return {}
    kind = (
        "gpu"
        if str(oom.get("where", "")).startswith("gpu")
        else "alloc"
        if oom.get("where") == "host"
        else None
    )
    return (
        {
            kind: (
                whole(oom["requested_bytes"], "oom.requested_bytes")
                + whole(oom.get("live_bytes") or 0, "oom.live_bytes")
            )
        }
        if kind
        else {}
    )
