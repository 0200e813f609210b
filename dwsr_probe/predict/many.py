"""Many questions about one group at once: `Model.predict_many`, for programs that compare hundreds
of block shapes.

Questions that differ in the lengths of their arrays alone (columns.py) are answered together, in
NumPy arrays, with the figures that answer.py gives for each. All others are asked one by one: other
inputs, inputs beyond those seen, groups of which only lower bounds are known, and mixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dwsr_probe.predict import normal
from dwsr_probe.predict.answer import (
    BEYOND_RATIO,
    CONSTANT_RATIO,
    HANDLE_BYTES_MOST,
    absurd_bytes,
    is_handle,
    largest_known_bytes,
)
from dwsr_probe.predict.calibration import ABOVE_MEAN_LEVEL, NEARBY_LEVEL, POINTS, with_scores
from dwsr_probe.predict.columns import columns_of
from dwsr_probe.predict.forecast import checked_level
from dwsr_probe.predict.learner import Learner
from dwsr_probe.predict.params import parse_params, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.calibration import Scores, Tails
    from dwsr_probe.predict.columns import Columns
    from dwsr_probe.predict.fitted import Fitted
    from dwsr_probe.predict.forecast import Forecast
    from dwsr_probe.predict.mixture import Mixture
    from dwsr_probe.predict.outputs import OutputGuess
    from dwsr_probe.predict.params import Params
    from dwsr_probe.predict.task import TaskModel

    Floats = NDArray[np.float64]
    Chosen = NDArray[np.bool_]

# Numbers in an array of questions and components, so that it stays in the cache.
_NUMBERS_AT_ONCE = 16_000
# Of the search of a quantile: points from the guess to the next one, how many times further the
# following ones are, and rounds after which intervals are halved.
_STEP, _STEP_GROWTH, _ROUNDS = 4, 4, 8


class Questions(NamedTuple):
    """inputs and params: of each question."""

    inputs: Sequence[Any]
    params: Sequence[Params]

    @classmethod
    def parse(cls, inputs: Iterable[Any], params: Any) -> Questions:
        """params: of all questions, or a list of those of each."""
        inputs = list(inputs)
        if not isinstance(params, (list, tuple)):
            return cls(inputs, [parse_params(params)] * len(inputs))
        if len(params) != len(inputs):
            raise ValueError(f"{len(inputs)} questions have {len(params)} params")
        return cls(
            inputs, [_numbered(place, parse_params, one) for place, one in enumerate(params)]
        )

    def values_of(self, places: NDArray[np.intp], names: Sequence[str]) -> Floats:
        """Of the parameters with these names, for each place."""
        known: dict[Params, list[float]] = {}
        rows = []
        for place in places.tolist():
            params = self.params[place]
            if params not in known:
                known[params] = values_of(params, names)
            rows.append(known[params])
        return np.array(rows)


def _numbered(place: int, call: Callable[[Any], Any], argument: Any) -> Any:
    """The number of the question in messages."""
    try:
        return call(argument)
    except ValueError as error:
        raise ValueError(f"question {place}: {error}") from error


class Forecasts:
    """Bytes of each question, in the order of the questions. mean: expected bytes."""

    def __init__(self, count: int, blocks: Sequence[_Block], others: dict[int, Forecast]) -> None:
        self._blocks, self._others = blocks, others
        self.mean: Floats = np.empty(count)
        for block in blocks:
            self.mean[block.places] = block.mean()
        for place, forecast in others.items():
            self.mean[place] = forecast.mean

    def __len__(self) -> int:
        return len(self.mean)

    def upper(self, q: float = 0.99) -> Floats:
        """The quantile of each: exceeded with probability 1 - q. Infinite for a lower bound."""
        found: Floats = np.empty(len(self.mean))
        checked_level(q)
        for block in self._blocks:
            found[block.places] = block.upper(q)
        for place, forecast in self._others.items():
            found[place] = forecast.upper(q)
        return found


class _Predictives:
    """A Predictive for each question, as rows. sizes: bytes of the inputs."""

    def __init__(
        self,
        mixture: Mixture,
        features: Floats,
        ratios: Floats,
        deviation: Floats,
        sizes: Floats,
        output_guess: OutputGuess | None,
    ) -> None:
        y = mixture.expected(features, ratios[:, None], deviation[:, None])
        self._weight, self._means, self._deviations = mixture.weight, y.mean, np.sqrt(y.variance)
        self._neighbours = mixture.neighbours(output_guess)
        self._sizes = sizes
        self.mean = y.mean @ mixture.weight
        variance = (self._deviations**2 + y.mean**2) @ mixture.weight - self.mean**2
        self.deviation = np.sqrt(np.maximum(variance, 1e-12 * self.mean**2 + 1))

    def quantiles(self, q: float, tails: Tails) -> Floats:
        """As Calibrated.quantile."""
        at_once = max(1, _NUMBERS_AT_ONCE // len(self._weight))
        z = np.empty(len(self.mean))
        for begin in range(0, len(z), at_once):
            some = slice(begin, begin + at_once)
            z[some] = POINTS[self._places(some, q, tails)]
        if q >= ABOVE_MEAN_LEVEL:
            z = np.maximum(z, 0.0)
        found = self.mean + z * self.deviation
        if q >= NEARBY_LEVEL and self._neighbours is not None:
            found = np.maximum(found, self._neighbours.quantiles(self._sizes, q, self.mean))
        return found

    def _places(self, some: slice, q: float, tails: Tails) -> NDArray[np.intp]:
        """The first of POINTS whose level is at least q, of some questions. Each has an interval,
        which becomes smaller: by points further and further from a guess while one end is not
        known, then by interpolation."""
        # A point z is z0 + z * scale standard deviations above the mean of a component.
        deviations = self._deviations[some]
        z0 = (self.mean[some, None] - self._means[some]) / deviations
        scale = self.deviation[some, None] / deviations
        count, last = len(z0), len(POINTS) - 1
        found, rows = np.empty(count, np.intp), np.arange(count)
        low, high = np.zeros(count, np.intp), np.full(count, last)
        level_low, level_high = np.full(count, np.nan), np.full(count, np.nan)
        probe = np.full(count, max(1, min(tails.guess(q), last - 1)))
        step, rounds = _STEP, 0
        while len(rows):
            z = POINTS[probe]
            levels = normal.cdf_of_many(z0 + z[:, None] * scale) @ self._weight
            levels = with_scores(levels, z, tails)
            above = levels >= q
            low, level_low = np.where(above, low, probe), np.where(above, level_low, levels)
            high, level_high = np.where(above, probe, high), np.where(above, levels, level_high)
            if rounds < _ROUNDS:
                between = low + (q - level_low) / (level_high - level_low) * (high - low)
                # Rounded to the side that is not yet near.
                inside = np.where(above, np.floor(between), np.ceil(between))
                outside = np.where(above, probe - step, probe + step)
                probe = np.where(np.isnan(between), outside, inside).astype(np.intp)
            else:
                probe = (low + high) // 2
            probe = np.clip(probe, low + 1, high - 1)
            step, rounds = step * _STEP_GROWTH, rounds + 1
            found[rows] = high
            if not (is_open := high - low > 1).all():
                rows, low, high, probe = rows[is_open], low[is_open], high[is_open], probe[is_open]
                level_low, level_high = level_low[is_open], level_high[is_open]
                z0, scale = z0[is_open], scale[is_open]
        return found


class _Block(NamedTuple):
    """Questions that are answered together. least: as Forecast.least_bytes. is_guess: nothing was
    learned, so that the mean is the median."""

    places: NDArray[np.intp]
    predictives: _Predictives
    tails: Tails
    least: Floats
    is_guess: bool

    def mean(self) -> Floats:
        of = self.predictives
        return np.maximum(self.least, of.quantiles(0.5, self.tails) if self.is_guess else of.mean)

    def upper(self, q: float) -> Floats:
        return np.maximum(np.maximum(self.least, 0.0), self.predictives.quantiles(q, self.tails))


def answer_many(
    tasks: Sequence[TaskModel],
    kind: str,
    questions: Questions,
    pooled_scores: dict[str, Scores],
    ask: Callable[[int], Forecast],
) -> Forecasts:
    """tasks: all groups that are meant. pooled_scores: of all tasks, by kind. ask: answers the
    question at a place."""
    blocks: list[_Block] = []
    task = tasks[0]
    learner = task.learners.get(kind) or Learner(kind)
    if len(tasks) == 1 and not learner.unseen.is_most and not _has_variants(task, kind):
        for columns in columns_of(questions.inputs):
            blocks += _blocks(task, learner, columns, questions, pooled_scores[kind])
    answered = np.zeros(len(questions.inputs), bool)
    for block in blocks:
        answered[block.places] = True
    others = {place: _numbered(place, ask, place) for place in np.flatnonzero(~answered).tolist()}
    return Forecasts(len(answered), blocks, others)


def _has_variants(task: TaskModel, kind: str) -> bool:
    learners = (task.learners.get(one) for one in (kind, "output"))
    return any(one.posterior(task.bounds(one.kind)).variants is not None for one in learners if one)


def _blocks(
    task: TaskModel, learner: Learner, columns: Columns, questions: Questions, pooled: Scores
) -> Iterator[_Block]:
    """Without inputs that are beyond those seen."""
    kind = learner.kind
    output, deviation = np.zeros((2, len(columns.places)))
    guess, is_guessed = None, np.zeros(len(columns.places), bool)
    if kind != "output":
        guess = task.output_guess()
        if guess is not None and guess.is_exact:
            guess = None
        output, deviation, is_guessed = _output(task, columns, questions)
    makes_its_output = kind == "alloc" and learner.makes_its_output()
    fitted = learner.posterior(task.bounds(kind), task.running_bounds(kind))
    features = _features(learner, columns, questions, output)
    for chosen, mixture, is_guess in (
        (chosen & rows, mixture, rows is is_guessed)
        for chosen, mixture in _mixtures(learner, fitted, features)
        for rows in (is_guessed, ~is_guessed)
    ):
        if not chosen.any():
            continue
        given = columns, features, deviation, guess if is_guess else None
        predictives = _predictives(learner, mixture, *given, chosen)
        if (
            beyond := _beyond(task, learner, mixture, columns, features, predictives, chosen)
        ).any():
            chosen[chosen] = ~beyond
            if not chosen.any():
                continue
            predictives = _predictives(learner, mixture, *given, chosen)
        yield _Block(
            columns.places[chosen],
            predictives,
            learner.scoring.scores.beside(pooled),
            output[chosen] if makes_its_output else np.zeros(1),
            not learner.n and not learner.censored,
        )


def _features(learner: Learner, columns: Columns, questions: Questions, output: Floats) -> Floats:
    """As Learner.features."""
    found = columns.features(output)
    if not learner.param_names:
        return found
    params = questions.values_of(columns.places, learner.param_names)
    return np.concatenate((found, params), axis=1)


def _mixtures(
    learner: Learner, fitted: Fitted, features: Floats
) -> Iterator[tuple[Chosen, Mixture]]:
    """Which questions each mixture answers."""
    rest = np.ones(len(features), bool)
    for mixture in (fitted.with_params, fitted.of_numbers, fitted.plain):
        if mixture is not None:
            chosen = rest & mixture.knows(features)
            if chosen.any():
                rest &= ~chosen
                yield chosen, learner.mixture(fitted, features[chosen.argmax()])


def _predictives(
    learner: Learner,
    mixture: Mixture,
    columns: Columns,
    features: Floats,
    deviation: Floats,
    output_guess: OutputGuess | None,
    chosen: Chosen,
) -> _Predictives:
    """As Learner.predictive."""
    if learner.has_unseen_axes(columns.first):
        mixture = mixture.without_axes
    sizes = columns.total()[chosen]
    ratios = sizes / learner.largest_bytes if learner.largest_bytes else np.ones(len(sizes))
    return _Predictives(mixture, features[chosen], ratios, deviation[chosen], sizes, output_guess)


def _beyond(
    task: TaskModel,
    learner: Learner,
    mixture: Mixture,
    columns: Columns,
    features: Floats,
    predictives: _Predictives,
    chosen: Chosen,
) -> Chosen:
    """As answer.py's."""
    asked, known = columns.total()[chosen], largest_known_bytes(task, learner)
    found = np.zeros(len(asked), bool)
    if not learner.n:
        return found
    ratios = (asked / known if known else np.ones(len(asked)))[:, None]
    of_sizes = mixture.size_ratio(features[chosen], ratios).ravel()
    is_far = of_sizes > BEYOND_RATIO
    if is_far.any():
        found = is_far & (predictives.mean > CONSTANT_RATIO * learner.largest_peak())
    found |= (of_sizes <= 1) & (predictives.mean > absurd_bytes(task, learner, mixture))
    for row in np.flatnonzero(~is_far & (asked <= HANDLE_BYTES_MOST)).tolist():
        found[row] |= is_handle(learner, int(asked[row]), columns.first)
    return found


def _output(
    task: TaskModel, columns: Columns, questions: Questions
) -> tuple[Floats, Floats, Chosen]:
    """As TaskModel.estimate_output: bytes and their standard deviation; and whether they are
    guessed."""
    found = columns.output_bytes(task.output)
    deviations = np.zeros(len(found))
    unknown = np.isnan(found)
    if not unknown.any():
        return found, deviations, unknown
    found[unknown] = 0.0
    learner, ratio = task.learners.get("output"), task.returned_ratio
    if learner is not None and learner.n:
        features = _features(learner, columns, questions, np.zeros(len(found)))
        for chosen, mixture in _mixtures(learner, learner.posterior(), features):
            chosen &= unknown
            by_size = _predictives(learner, mixture, columns, features, deviations, None, chosen)
            found[chosen] = np.maximum(np.rint(ratio * by_size.mean), 0.0)
            deviations[chosen] = ratio * by_size.deviation
    return found, deviations, unknown
