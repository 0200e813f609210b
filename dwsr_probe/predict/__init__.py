"""The model alone: predict the peak of a task from the shapes of its inputs, from the first
observation on. docs/model.md.

    model = Model()
    model.learn(record)  # finished, running, killed
    forecast = model.predict(inputs, "gaussian_filter")
    forecast.mean, forecast.upper(0.99), forecast.output, forecast.trust

To be read in this order: `sizes` (what a peak may be proportional to), `derived` (such functions
that are found in the data), `cases` (what is kept of exact values), `posterior`, `mixture`,
`calibration`, `censored` (values of tasks that ended early), `learner` (one kind of memory of one
task name), `shapes` (of the output), `task` (one task name), `records` (what is used of a record),
`model`, `forecast`, `together` (several tasks at once), `many` and `columns` (many questions at
once). Then `history` (learn from a run) and `blocks` (inputs at another volume).

The names below are loaded when they are first used, because `history` samples in processes that
never need numpy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dwsr_probe.predict.forecast import Forecast, Round
    from dwsr_probe.predict.model import KINDS, Model

__all__ = ["KINDS", "Forecast", "Model", "Round"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dwsr_probe.predict import forecast, model

    globals().update(
        KINDS=model.KINDS, Forecast=forecast.Forecast, Model=model.Model, Round=forecast.Round
    )
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
