"""A measured figure and its verdict against a goal. For the budgets (tests/bench/budgets.py)."""

from dataclasses import dataclass

from tests.bench import median, spread


class NotMeasured(Exception):
    """A figure cannot be had on this machine; the text says why."""


@dataclass
class Figure:
    """values: one of each round. least: from the least of each kind of run, which is freer of the
    machine's noise; None where there are no two kinds. said: what else belongs to the figure."""

    values: list
    least: float | None = None
    said: str = ""

    def text(self, digits=2):
        values = spread(self.values, digits)
        if len(set(self.values)) == 1:
            values = f"{self.values[0]:.{digits}f}"
        return f"{values}; {self.said}" if self.said else values

    def verdict(self, goal):
        """The least of each decides where there is one; a median that disagrees is mentioned."""
        if goal is None:
            return "no goal"
        by_median = _word(median(self.values), goal)
        decided = by_median if self.least is None else _word(self.least, goal)
        return decided if decided == by_median else f"{decided}; the median is {by_median}"


def _word(value, goal):
    return "met" if value <= goal else "above"


def difference(bare, probed, scale=1.0, said=""):
    """How much more the probed runs took than the bare ones beside them."""
    more = [(b - a) * scale for a, b in zip(bare, probed, strict=True)]
    return Figure(more, (min(probed) - min(bare)) * scale, said)
