"""What is known of one task name: a learner per kind of memory, the shape of what it returns,
and those that run now. model.py has one per name."""

from heapq import nsmallest

from dwsr_probe.predict.learner import FLOORS, MOST_RUNNING
from dwsr_probe.predict.posterior import Term
from dwsr_probe.predict.shapes import OutputShape
from dwsr_probe.predict.sizes import sizes


class Task:
    def __init__(self):
        self.learners = {}  # by kind
        self.output = OutputShape()
        self.open = {}  # running: identity -> (arrays, {kind: bytes})
        self._kept, self._running = {}, {}  # lower bounds by kind as terms, made when asked for

    def changed(self):
        """Another exact value, bound or output: what was concluded from them no longer holds.
        Sizes of bounds look at the output, so it is for all kinds."""
        self._kept.clear()
        self._running.clear()
        for learner in self.learners.values():
            learner.forget_conclusions()

    def run(self, identity, running):
        """running: (arrays, {kind: bytes}), or None: it ended."""
        if running is None:
            self.open.pop(identity, None)
        else:
            self.open[identity] = running
        self._running.clear()

    def output_bytes(self, arrays):
        """What it will return and how sure that is (mean, deviation), for the size functions
        that look at it."""
        if found := self.output.predict(arrays):
            return found["nbytes"], 0.0
        learner = self.learners.get("output")
        if learner is None or not learner.n:
            return 0, 0.0
        at = sizes(arrays, 0)
        guess = learner.expects(learner.posterior(), arrays, at)
        return max(0, round(guess.mean)), guess.deviation

    def sizes(self, kind, arrays):
        return sizes(arrays, 0 if kind == "output" else self.output_bytes(arrays)[0])

    def kept(self, kind):
        """The learner's lower bounds, as terms."""
        if kind not in self._kept:
            self._kept[kind] = (
                [
                    Term(self.sizes(kind, arrays), bound, near)
                    for arrays, bound, near in self.learners[kind].killed
                ]
                if kind in self.learners
                else []
            )
        return self._kept[kind]

    def running(self, kind, without=None):
        """The lower bounds of running tasks that say most, as terms: of thousands, those that
        need most for their inputs."""
        if kind not in self._running:
            floor = FLOORS[kind]
            ranked = nsmallest(
                MOST_RUNNING + 1,
                (
                    (
                        -figures[kind] / (sum(array.nbytes for array in arrays) + floor),
                        figures[kind],
                        identity,
                        arrays,
                    )
                    for identity, (arrays, figures) in self.open.items()
                    if kind in figures
                ),
                key=lambda given: given[:2],
            )
            self._running[kind] = [
                (identity, Term(self.sizes(kind, arrays), bound))
                for _, bound, identity, arrays in ranked
            ]
        return [term for identity, term in self._running[kind] if identity != without][
            :MOST_RUNNING
        ]
