"""Answer one question from what is known of a group of tasks. model.py finds the group."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.predict.forecast import TRUST, Forecast
from dwsr_probe.predict.learner import Learner
from dwsr_probe.predict.mixed import joined
from dwsr_probe.predict.mixture import certain
from dwsr_probe.predict.outputs import NO_OUTPUT, OutputEstimate
from dwsr_probe.predict.sizes import axis_count, input_bytes, parse_inputs
from dwsr_probe.predict.trust import trust_of
from dwsr_probe.predict.variant import output_kind_of
from dwsr_probe.predict.variants import Part

if TYPE_CHECKING:
    from dwsr_probe.predict.calibration import Scores
    from dwsr_probe.predict.mixture import Mixture, Predictive
    from dwsr_probe.predict.params import Given
    from dwsr_probe.predict.records import Identity
    from dwsr_probe.predict.sizes import Arrays, Features
    from dwsr_probe.predict.task import TaskModel

_WIDE_BOUND = 2.0  # a bound of so many times the mean or more is not trusted
_BOUND_NOTES = ("value-dependent", "non-linear", "uncalibrated")  # on the width of an upper bound
# Inputs so many times larger or smaller than any seen are of another kind: a block beside a handle.
BEYOND_RATIO = 1000.0
ABSURD_RATIO = 10.0  # of a forecast for sizes that were seen to the largest peak
HANDLE_BYTES_MOST = 4096  # of inputs that may be handles of files and the like
CONSTANT_RATIO = 2.0  # a forecast up to so many times the largest peak seen was not extrapolated


class Asked(NamedTuple):
    """task_name: as it was asked for. output: what the task returns, if the caller knows. running:
    the task in question runs; its own lower bound is left out."""

    task_name: str
    kind: str
    given: Given
    output: dict[str, Any] | None = None
    running: Identity | None = None


def answer(task: TaskModel, asked: Asked, pooled_scores: dict[str, Scores]) -> Forecast:
    """pooled_scores: of all tasks, by kind."""
    given, kind = asked.given, asked.kind
    output, estimate = _output(task, asked)
    learner = of_kind = task.learners.get(kind) or Learner(kind)
    unseen, least = of_kind.unseen, 0.0
    if unseen.is_most:  # own peaks say too little: what the process grew by says more
        learner = task.learners.get("rss") or Learner("rss")
        least = of_kind.least_bytes(given.arrays)
    elif kind == "alloc" and learner.makes_its_output():
        least = float(estimate.bytes)
    fitted = learner.posterior(
        task.bounds(learner.kind), task.running_bounds(learner.kind, asked.running)
    )
    features = learner.features(given, estimate.bytes)
    output_kind = output_kind_of(asked.output)
    shares = learner.shares(fitted, given, estimate, output_kind)
    is_beyond = not unseen.is_most and _is_beyond(
        task, learner, given, learner.mixture(fitted, features), features, joined(shares)
    )
    if is_beyond:
        known = max(learner.least_bytes(given.arrays), float(estimate.bytes))
        least = known or learner.largest_peak()
        shares = [(1.0, certain(least))]
    calibrated = learner.calibrated(shares, pooled_scores[learner.kind])
    part = Part(1.0, fitted)
    if fitted.variants is not None and len(shares) == 1 and not is_beyond:
        (part,) = fitted.parts(axis_count(given.arrays), output_kind)
    trust, notes = trust_of(learner, given.arrays, features, part, estimate.noise)
    if len(shares) > 1:
        trust, notes = min(trust, "low", key=TRUST.index), (*notes, "mixture")
    params = learner.params_of(fitted)
    if estimate.params:
        params = tuple(sorted({*params, *estimate.params}))
    if estimate.misses_params and "params" not in notes:
        trust, notes = min(trust, "fair", key=TRUST.index), (*notes, "params")
    if unseen.is_most:
        trust = min(trust, "low", key=TRUST.index)
        notes = (*(note for note in notes if note not in _BOUND_NOTES), "unseen")
    if is_beyond:
        trust, notes = "none", (*(note for note in notes if note not in _BOUND_NOTES), "beyond")
    forecast = Forecast(
        asked.task_name,
        kind,
        calibrated,
        output,
        learner.n,
        trust,
        notes,
        unseen,
        least,
        # A guess that is open to one side: its mean would be one of few improbable large needs.
        float(calibrated.quantile(0.5)) if trust == "none" and not is_beyond else None,
        params,
        is_beyond,
        math.inf if unseen.is_most else learner.reserve_most(given),
        learner.settled.first_calls.bytes,
        asked.running is not None and task.threads.is_new(asked.running),
        len(shares) > 1 or learner.may_be_several(fitted),
    )
    if trust == "good" and forecast.upper(0.99) > _WIDE_BOUND * forecast.mean:
        forecast = replace(forecast, trust="fair")
    return forecast


def _is_beyond(
    task: TaskModel,
    learner: Learner,
    given: Given,
    mixture: Mixture,
    features: Features,
    predictive: Predictive,
) -> bool:
    """Whether these inputs are a thousand times larger than any that something is known of, or
    smaller and of another kind, and the answer would be extrapolated; or the answer is absurd."""
    if not learner.n:
        return False
    asked, largest = input_bytes(given.arrays), largest_known_bytes(task, learner)
    ratio = mixture.size_ratio(features, asked / largest if largest else 1.0)
    if ratio > BEYOND_RATIO:
        return predictive.mean > CONSTANT_RATIO * learner.largest_peak()
    if ratio <= 1 and predictive.mean > absurd_bytes(task, learner, mixture):
        return True
    return is_handle(learner, asked, given.arrays)


def absurd_bytes(task: TaskModel, learner: Learner, mixture: Mixture) -> float:
    """No forecast for sizes that were seen is larger: a fit may have taken a byte of output, or of
    whatever else was tiny so far, for a gigabyte. Lower bounds may say so rightly."""
    if mixture.cases is None or learner.censored or task.running:
        return math.inf
    return ABSURD_RATIO * max(float(mixture.cases.mean.max()), learner.floor)


def largest_known_bytes(task: TaskModel, learner: Learner) -> int:
    """Of the inputs of finished, killed and running tasks."""
    running = task.running.values() if task.running else ()
    return max(
        learner.largest_bytes,
        max((value.input_bytes for value in learner.censored), default=0),
        max((input_bytes(one.given.arrays) for one in running), default=0),
    )


def is_handle(learner: Learner, asked_bytes: int, arrays: Arrays) -> bool:
    """Whether these inputs are a thousand times smaller than any seen, and of another kind."""
    return (
        0 < asked_bytes <= HANDLE_BYTES_MOST
        and asked_bytes * BEYOND_RATIO < learner.least_input_bytes()
        and learner.has_unseen_axes(arrays)
    )


def _output(task: TaskModel, asked: Asked) -> tuple[dict[str, Any] | None, OutputEstimate]:
    """What the task will return, and its bytes for the size functions."""
    given, output = asked.given, asked.output
    if output is not None and (known := parse_inputs([output])):
        estimate = OutputEstimate(known[0].nbytes)
    else:
        output = task.output.predict(given.arrays)
        estimate = NO_OUTPUT if asked.kind == "output" else task.estimate_of(output, given)
    return output, NO_OUTPUT if asked.kind == "output" else estimate
