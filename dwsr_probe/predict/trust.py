"""How far a forecast can be trusted, as a word, and notes on why it is no better. Called by
answer.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dwsr_probe.predict.scoring import SCORED_FROM

if TYPE_CHECKING:
    from dwsr_probe.predict.learner import Learner
    from dwsr_probe.predict.sizes import Arrays, Features
    from dwsr_probe.predict.variants import Part

# Beyond so many times the largest inputs seen, trust is fair at most; beyond its square, low.
_FAR_RATIO = 10.0
_UNSEEN_SHARE = 0.01  # of tasks whose own peak may miss memory; up to it the 99 % bound holds


def trust_of(
    learner: Learner, arrays: Arrays, features: Features, part: Part, output_noise: float
) -> tuple[str, tuple[str, ...]]:
    """A word of forecast.TRUST, and notes on why it is no better. part: what answers.
    output_noise: relative standard deviation of the output, where its bytes are an estimate."""
    fitted, n = part.fitted, learner.n if part.n is None else part.n
    mixture, first_calls = learner.mixture(fitted, features), learner.settled.first_calls
    noise, sigma = learner.noise_deviation(), mixture.sigma_mean
    size_ratio = mixture.size_ratio(features, learner.size_ratio(features, part.largest_bytes))
    notes = []
    if learner.n == 0 and learner.censored:
        notes.append("bounds-only")
    # Not where the output or a parameter explains the difference.
    if noise is not None and noise > 0.05 and max(sigma, output_noise) > 0.05:
        notes.append("value-dependent")
    elif learner.n >= 5 and sigma > 0.05:
        notes.append("non-linear")
    if learner.scoring.changed_at is not None and learner.n - learner.scoring.changed_at < 20:
        notes.append("drifting")
    if learner.n and size_ratio > 1.5:
        notes.append("extrapolating")
    grows_by_inputs = arrays and fitted.with_params is None
    if learner.n > 1 and grows_by_inputs and learner.cases.has_one_size():
        notes.append("one-size")
    if 2 * learner.shared_count > learner.n > 0:
        notes.append("shared")
    if learner.unseen.share > _UNSEEN_SHARE:
        notes.append("unseen")
    if first_calls.tasks:
        notes.append("first-calls")
    if not arrays:
        notes.append("no-inputs")
    if learner.has_unseen_axes(arrays):
        notes.append("no-shape")
    if fitted.misses_params(features):
        notes.append("params")
    if learner.scoring.scores.n < 99:
        notes.append("uncalibrated")
    if learner.n == 0:
        return ("low" if learner.censored else "none"), tuple(notes)
    doubts = {
        "value-dependent",
        "non-linear",
        "drifting",
        "shared",
        "unseen",
        "no-shape",
        "one-size",
        "params",
    }
    far = size_ratio > _FAR_RATIO
    if far:
        doubts.add("extrapolating")
    if (
        n < SCORED_FROM
        or sigma > 0.2
        or (far and "one-size" in notes)
        or size_ratio > _FAR_RATIO**2
        or ("no-shape" in notes and mixture.probability_of_axes() > 0.5)
    ):
        return "low", tuple(notes)
    return ("fair" if doubts & {*notes} or n < 10 else "good"), tuple(notes)
