"""Forecasts from the model of a run, for the page's curves and the verdict's advice.

Needs the predict extra. Without it there is no outlook, and the views leave forecasts out. Runs are
sampled in predict/history.py; predict/blocks.py has larger and smaller blocks.
"""

from __future__ import annotations

from functools import cached_property

from dwsr_probe.dataclass import dataclass
from dwsr_probe.predict.group import group_of
from dwsr_probe.words import inputs_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dwsr_probe.fit.plan import Plan
    from dwsr_probe.predict import Forecast
    from dwsr_probe.predict.history import LearnedRun, RunSample
    from dwsr_probe.record import TaskRecord
    from dwsr_probe.store import Store

_SCALES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)


@dataclass
class Curve:
    """Forecasts for a range of sizes: input bytes, and the mean, 1 % and 99 % quantiles at each.
    learned: number of tasks."""

    input_bytes: list
    mean: list
    low: list
    high: list
    trust: str
    learned: int


class Outlook:
    """The model of one run. name: the text of a group (predict/group.py). Without
    numpy, `from_sample` returns None."""

    def __init__(self, learned: LearnedRun, store: Store | None = None) -> None:
        """store: the run; without it there is no plan."""
        self._model, self._varying_axes = learned.model, learned.varying_axes
        self._largest = learned.largest
        self._learned, self._store = learned, store

    @classmethod
    def from_sample(
        cls,
        sample: RunSample,
        progress: Callable[[int, int], object] = lambda done, total: None,
        store: Store | None = None,
    ) -> Outlook | None:
        try:
            return cls(sample.learn(progress), store)
        except ImportError:
            return None

    @cached_property
    def plan(self) -> Plan | None:
        """The block to use, as `dwsr-probe fit RUN` names it; None if none can be named."""
        if self._store is None:
            return None
        from dwsr_probe.fit.job import plan_of_run

        return plan_of_run(self._store, self._learned)

    def at_scale(self, name: str, scale: float, kind: str = "alloc") -> Forecast | None:
        """Forecast for `scale` times the volume of the largest inputs seen; None for a name without
        sized inputs, or not learned, or whose own peaks may miss memory."""
        return self._forecast(name, self._scaled(name, scale), kind, self._params(name))

    def for_task(self, record: TaskRecord, kind: str = "alloc") -> Forecast | None:
        """What the task of this record needs, or would have needed; None as in `at_scale`."""
        inputs = record.inputs if record.known_input_bytes else []
        group = group_of(record.task_name, record.operation, record.chain)
        return self._forecast(group.text, inputs, kind, record.params)

    def inputs_text(self, name: str, scale: float) -> str:
        """The largest inputs at another scale, as people write them."""
        return inputs_text(self._scaled(name, scale))

    def curve(self, name: str, kind: str = "alloc") -> Curve | None:
        from dwsr_probe.predict.blocks import input_bytes

        largest = self.at_scale(name, 1.0, kind)
        if largest is None:
            return None
        blocks = [self._scaled(name, scale) for scale in _SCALES]
        forecasts = [
            self._model.predict(inputs, name, kind, params=self._params(name)) for inputs in blocks
        ]
        return Curve(
            [input_bytes(inputs) for inputs in blocks],
            [forecast.mean for forecast in forecasts],
            [forecast.upper(0.01) for forecast in forecasts],
            [forecast.upper(0.99) for forecast in forecasts],
            largest.trust,
            largest.n,
        )

    def largest_scale(self, name: str, room_bytes: float, kind: str = "alloc") -> float | None:
        """How many times the volume of the largest inputs still fits into so many bytes with 99 %;
        None if that cannot be said."""
        from dwsr_probe.predict.blocks import largest_scale

        if self.at_scale(name, 1.0, kind) is None:
            return None
        largest, varying_axes = self._largest[name], self._varying_axes.get(name)
        return largest_scale(
            self._model, name, largest.inputs, room_bytes, kind, varying_axes, largest.params
        )

    def _params(self, name: str) -> dict | None:
        return self._largest[name].params if name in self._largest else None

    def _forecast(self, name: str, inputs: list, kind: str, params: dict | None) -> Forecast | None:
        if not inputs or kind not in self._model.kinds(name):
            return None
        forecast = self._model.predict(inputs, name, kind, params=params)
        return forecast if forecast.n and not forecast.is_lower_bound else None

    def _scaled(self, name: str, scale: float) -> list:
        """[] where the inputs have no known size."""
        from dwsr_probe.predict.blocks import input_bytes, scaled

        inputs = self._largest[name].inputs if name in self._largest else []
        return scaled(inputs, scale, self._varying_axes.get(name)) if input_bytes(inputs) else []
