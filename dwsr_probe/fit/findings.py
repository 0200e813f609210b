"""What the trials of a function show beside their figures: memory that it keeps, that depends on
values, or that is not in proportion to the block. And what a model says of this."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dwsr_probe.fit.arrays import MADE_UP
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.steps import Bend
from dwsr_probe.words import bytes_text, shape_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dwsr_probe.fit.trials import TriedCall
    from dwsr_probe.predict import Forecast, Model

_LEAK_SHARE, _LEAK_LEAST_BYTES = 0.02, 128 << 10
_SAME_SHARE = 0.02  # by which two blocks of one shape may differ
_BENT = 1.25  # bound over mean at the largest of three trials: 1.02 to 1.15 if they are on a line
_EXPONENT_LEAST = 1.05
_FIRST_SHARE, _FIRST_LEAST_BYTES = 0.02, 1 << 20
_DOUBTS = {  # notes of a forecast that make the bound of a plan wider or less certain
    "value-dependent": "memory depends on values: tasks with the same shapes differ; the bound is"
    " wider",
    "non-linear": "memory is not in proportion to the size of the block: the bound is wider",
    "drifting": "newer tasks differ from older ones",
    "shared": "figures of several tasks at once could not be separated",
    "unseen": "own peaks may miss memory",
    "one-size": "all tasks seen had inputs of one size: other sizes are a guess",
    "params": "memory depends on a parameter whose value is not given",
    "no-shape": "no input with this number of axes was seen",
}


def differs(trial: TriedCall) -> bool:
    """Whether two blocks of one shape needed different memory."""
    if trial.other_need_bytes is None:
        return False
    allowed = _SAME_SHARE * max(trial.need_bytes, trial.input_bytes)
    return abs(trial.need_bytes - trial.other_need_bytes) > allowed


def refuse_leaks(name: str, tried: Sequence[TriedCall], array_bytes: int) -> None:
    """FitError for a function that keeps memory after each call: it fills the worker, whatever the
    block is."""
    kept = [
        trial.kept_bytes
        for trial in tried
        if trial.kept_bytes > max(_LEAK_LEAST_BYTES, _LEAK_SHARE * trial.input_bytes)
    ]
    if len(kept) < len(tried):
        return
    sizes = sum(trial.input_bytes for trial in tried)
    total = sum(kept) / sizes * array_bytes
    raise FitError(
        f"{name} keeps memory after each call ({bytes_text(sum(kept))} after blocks of"
        f" {bytes_text(sizes)}): about {bytes_text(total)} by the end of the job, whatever the"
        " block is; find what it stores (a cache, a global list) first"
    )


def first_call_bytes(tried: Sequence[TriedCall]) -> float:
    """What the first task in each thread takes in addition; 0 if it is not worth a word."""
    found = max(trial.first_call_bytes for trial in tried)
    least = max(_FIRST_LEAST_BYTES, _FIRST_SHARE * tried[0].need_bytes)
    return float(found) if found > least else 0.0


def bend_of(tried: Sequence[TriedCall], model: Model, name: str) -> Bend | None:
    """How memory grows faster than the block; None if it does not."""
    if not _is_bent(tried, model, name) or any(differs(trial) for trial in tried):
        return None
    before, last = tried[-2:]
    size = math.log(last.input_bytes / before.input_bytes)
    exponent = math.log(last.need_bytes / max(1, before.need_bytes)) / size if size > 0 else 1.0
    if exponent < _EXPONENT_LEAST:
        return None
    return Bend(float(last.input_bytes), float(last.need_bytes), exponent)


def _is_bent(tried: Sequence[TriedCall], model: Model, name: str) -> bool:
    """Two trials are always on a line."""
    if len(tried) < 3:
        return False
    forecast = model.predict(tried[-1].record["inputs"], name)
    wider = forecast.upper(0.99) - forecast.mean
    return wider > max((_BENT - 1) * forecast.mean, _SAME_SHARE * tried[-1].input_bytes)


def trial_notes(
    tried: Sequence[TriedCall], model: Model, name: str, form: str, first_call: float
) -> list[str]:
    return list(_notes(tried, model, name, form, first_call))


def doubts(forecast: Forecast) -> list[str]:
    """What makes a forecast less sure, in words."""
    return [_DOUBTS[note] for note in forecast.notes if note in _DOUBTS]


def _notes(
    tried: Sequence[TriedCall], model: Model, name: str, form: str, first_call: float
) -> Iterator[str]:
    unequal = [trial for trial in tried if differs(trial)]
    if unequal:
        least, most = sorted((unequal[-1].need_bytes, unequal[-1].other_need_bytes or 0))
        yield (
            f"memory depends on values: two blocks of {shape_text(unequal[-1].shape)} needed"
            f" {bytes_text(least)} and {bytes_text(most)}; the bound is wider, and other places of"
            " the array may need more"
        )
    elif _is_bent(tried, model, name):
        yield (
            "memory is not in proportion to the size of the block: the bound is wider, and blocks"
            " far larger than those tried may need more"
        )
    if form == MADE_UP:
        yield "blocks of random values were tried; real data may need more or less memory"
    reasons = {trial.reason for trial in tried if trial.reason}
    if reasons:
        yield (
            f"own peaks may miss memory ({', '.join(sorted(reasons))}): the growth of the process"
            " was used"
        )
    if first_call:
        yield f"the first task in each thread takes {bytes_text(first_call)} more"
