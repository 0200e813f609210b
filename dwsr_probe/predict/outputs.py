"""What a task will return, where it matters for its peak: bytes known by a rule for their shape, or
estimated by the learner of outputs. task.py makes the estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.mixed import joined
from dwsr_probe.predict.sizes import FUNCTION_COUNT, with_output

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dwsr_probe.predict.case import CaseTable
    from dwsr_probe.predict.fitted import Fitted
    from dwsr_probe.predict.learner import Learner
    from dwsr_probe.predict.params import Given

    Floats = NDArray[np.float64]


class OutputEstimate(NamedTuple):
    """params: names of the parameters that the output depends on. misses_params: they were not
    given. guess: how it was estimated; None if it is known, or such estimates have been right."""

    bytes: int
    deviation: float = 0.0  # standard deviation; 0 where the shape is known
    params: tuple[str, ...] = ()
    misses_params: bool = False
    guess: OutputGuess | None = None

    @property
    def noise(self) -> float:
        """Relative standard deviation."""
        return self.deviation / self.bytes if self.bytes else 0.0


# For the features of the output itself, and where nothing is known of it.
NO_OUTPUT = OutputEstimate(0)


class OutputGuess(NamedTuple):
    """learner: of the bytes that outputs keep. fitted: its posterior. ratio: of the bytes by the
    shapes of outputs, which size functions are of, to those that are kept. is_exact: the estimates
    of practically all tasks were right."""

    learner: Learner
    fitted: Fitted
    ratio: float
    is_exact: bool = False

    def of(self, given: Given, output_kind: str = "") -> OutputEstimate:
        """Of a task. output_kind: "" if it is not known."""
        learner, fitted = self.learner, self.fitted
        predictive = joined(learner.shares(fitted, given, NO_OUTPUT, output_kind))
        return OutputEstimate(
            max(0, round(self.ratio * predictive.mean)),
            self.ratio * predictive.deviation,
            learner.params_of(fitted),
            fitted.misses_params(learner.features(given, 0)),
            None if self.is_exact else self,
        )

    def of_cases(self, table: CaseTable) -> Floats:
        """What would have been estimated of tasks that have run: their size features with these
        outputs."""
        fitted = self.fitted
        if table.variants and len({*table.variants}) == 1:
            (part, *others) = fitted.parts(*table.variants[0])
            fitted = fitted if others else part.fitted
        features = with_output(table.features, np.zeros(1))
        outputs = fitted.plain.means_of(features)
        names = features.shape[1] - FUNCTION_COUNT
        if fitted.with_params is not None and names == len(self.learner.param_names):
            known = fitted.with_params.knows(features)
            outputs = np.where(known, fitted.with_params.means_of(features), outputs)
        return with_output(table.features, np.maximum(self.ratio * outputs, 0.0))
