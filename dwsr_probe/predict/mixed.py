"""Forecasts for tasks that may be of one of several kinds: a name that means several groups, or a
group with several variants (variants.py). Each kind counts with its share of the tasks seen.

An upper bound of 90 % or more is the largest of the kinds' bounds, not a quantile of the mixture: a
kind of task that is rare so far may be all that comes next. Nothing is promised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.forecast import TRUST, Forecast
from dwsr_probe.predict.mixture import Predictive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_LARGEST_LEVEL = 0.9  # quantiles of this level or more are the largest of all kinds
_ALIKE = 1.1  # up to which ratio groups need the same
_STEPS = 60  # of a bisection


class Possible(NamedTuple):
    """What a task may be. share: of the tasks seen. least_bytes: no bound is less."""

    share: float
    calibrated: Calibrated
    least_bytes: float = 0.0


def joined(parts: Sequence[tuple[float, Predictive]]) -> Predictive:
    """Of shares, and what each of them predicts. Such predictions are not summed by component
    (together.py), so the noise of one task is not kept apart."""
    if len(parts) == 1:
        return parts[0][1]
    return Predictive(
        np.concatenate([share * one.weight for share, one in parts]),
        np.concatenate([one.means for _, one in parts]),
        np.concatenate([one.deviations for _, one in parts]),
    )


class Mixed(Calibrated):
    """Without scores: those of the kinds are in their own bounds."""

    def __init__(self, kinds: Sequence[Possible]) -> None:
        predictive = joined([(kind.share, kind.calibrated.predictive) for kind in kinds])
        super().__init__(predictive, Scores(), Scores())
        self._kinds = kinds

    def quantile(self, q: float) -> float:
        if q >= _LARGEST_LEVEL:
            return max(max(one.least_bytes, one.calibrated.quantile(q)) for one in self._kinds)
        low, high = 0.0, max(one.calibrated.quantile(q) for one in self._kinds)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if self.survival(middle) > 1 - q:
                low = middle
            else:
                high = middle
        return high

    def survival(self, y: float) -> float:
        return sum(
            one.share * (1.0 if y < one.least_bytes else one.calibrated.survival(y))
            for one in self._kinds
        )


def mixed_forecast(task_name: str, forecasts: Sequence[Forecast]) -> Forecast:
    """Of a name that means several groups: their forecasts, weighed by the tasks seen."""
    members = _members(forecasts)
    means = [one.mean for one in members]
    is_mixed = max(means) > _ALIKE * min(means)
    weights = [max(one.n, 1) for one in members]
    shares = [weight / sum(weights) for weight in weights]
    kinds = [
        Possible(share, one.calibrated, one.least_bytes)
        for share, one in zip(shares, members, strict=True)
    ]
    trust = min((one.trust for one in members), key=TRUST.index)
    notes = dict.fromkeys(note for one in members for note in one.notes)
    if len(members) < len(forecasts) and any(one.unseen.tasks for one in forecasts):
        notes["unseen"] = None
    if is_mixed:
        trust, notes["mixture"] = min(trust, "low", key=TRUST.index), None
    outputs = [one.output for one in members]
    return replace(
        members[0],
        task_name=task_name,
        calibrated=Mixed(kinds) if len(kinds) > 1 else kinds[0].calibrated,
        output=outputs[0] if all(one == outputs[0] for one in outputs) else None,
        n=sum(one.n for one in members),
        trust=trust,
        notes=tuple(notes),
        unseen=max((one.unseen for one in forecasts), key=lambda unseen: unseen.share),
        least_bytes=0.0,
        guess_bytes=sum(share * mean for share, mean in zip(shares, means, strict=True)),
        params=tuple(sorted({name for one in members for name in one.params})),
        is_beyond=any(one.is_lower_bound for one in members),
        reserve_most_bytes=max(one.reserve_most_bytes for one in members),
        first_call_bytes=max(one.first_call_bytes for one in members),
        may_be_first=any(one.may_be_first for one in members),
        is_mixed=is_mixed,
    )


def _members(forecasts: Sequence[Forecast]) -> Sequence[Forecast]:
    """Those that say something about the question: not of groups of which nothing is known, nor of
    those that had no inputs like these. Lower bounds count if most tasks have no better."""
    known = [one for one in forecasts if one.n or one.least_bytes or "bounds-only" in one.notes]
    found = [one for one in known if not one.is_beyond] or known or forecasts
    exact = [one for one in found if not one.is_lower_bound]
    if 2 * sum(one.n for one in exact) >= sum(one.n for one in found) and exact:
        return exact
    return found
