"""What is kept of one kind of memory of one task name: the sums of exact values, lower bounds,
scores, a sample of shapes. model.py has one per name and kind."""

import math
import zlib

import numpy as np

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.posterior import Sums, posterior
from dwsr_probe.predict.sizes import BY_SHAPE, INPUTS, MOST_BYTES, arrays_of, axes_of, whole

# Bytes below which a difference means nothing: an arena of Python's, pages, the GPU pool's
# granularity, an object's header.
FLOORS = {"alloc": 512 << 10, "rss": 1 << 20, "gpu": 4096, "output": 512}
_MEMORY = 1000.0  # exact values that count; older ones fade
_AFTER_A_CHANGE = 0.5
_MOST_BOUNDS, MOST_RUNNING, _MOST_SHAPES = 32, 16, 64
_MOST_NUMBERS = 2048  # in the bounds of a learner
_MOST_AXES = 8
_FEW = 3  # exact values before a forecast is scored: with fewer it says little
# before it counts in full: until then its deviation is a guess, and one surprise would widen bounds
# twentyfold for long
_MANY = 20
_SURE = 0.999  # a bound that everything seen implies
_CANNOT_BE = 1e-4  # one that contradicts it: little of the past counts then


class Learner:
    def __init__(self, kind):
        self.kind = kind
        self.sums = Sums(FLOORS[kind])
        self.scores = Scores()
        self.killed = []  # (arrays, bytes, near)
        # hash -> [input bytes, count, sum, sum of squares]: those with the smallest hashes,
        # whatever their order
        self.shapes = {}
        self.n = 0  # exact values, ever
        self.shared = 0  # of them not this task's alone
        self.largest_bytes = 0  # of inputs
        self.axes = set()  # how many the largest inputs had
        self.drift = 0.0  # smoothed score: far from zero when forecasts are wrong on one side
        self.changed_at = None  # n when it was last seen to have changed
        # the posterior that scores, renewed as n grows by half: predict must not change it
        self._scoring = None
        self._renew_at = 0
        self._fresh = self._with_running = None

    # -- learn

    def learn(self, arrays, at, y, asked, output_deviation, kept, others):
        """An exact value. at, asked: sizes as they were, and as they would have been asked for.
        kept: gives the lower bounds as terms. others: scores of all tasks. Returns (predicted,
        bound, actual, reward, n) once there are enough to compare."""
        scored = None
        if self.n >= _FEW:
            if self._scoring is None or self.n >= self._renew_at:
                self._scoring, self._renew_at = self._conclude(kept()), self.n * 1.5
            predictive = self.expects(self._scoring, arrays, asked, output_deviation)
            scored = (
                predictive.mean,
                float(Calibrated(predictive, self.scores, others).quantile(0.99)),
                y,
                predictive.log_density(y) + math.log(max(y, 1)),
                self.n,
            )
            self._score(predictive, y, others)
        self.sums.add(at, y)
        self.n += 1
        if self.sums.n > _MEMORY:
            self.sums.scale(_MEMORY / self.sums.n)
        input_bytes = int(at[INPUTS])
        self.largest_bytes = max(self.largest_bytes, input_bytes)
        if (axes := axes_of(arrays)) is not None and len(self.axes) < _MOST_AXES:
            self.axes.add(axes)
        self._sample(arrays, input_bytes, y)
        self.forget_conclusions()
        return scored

    def _score(self, predictive, y, others):
        z = (y - predictive.mean) / predictive.deviation
        weight = min(1.0, self.n / _MANY)
        self.scores.add(z, weight)
        others.add(z, weight)
        self.drift = 0.7 * self.drift + 0.3 * max(-6.0, min(6.0, z))
        if abs(self.drift) > 4:
            self._change(others)

    def _change(self, others):
        """It no longer needs what it did: little of the past counts."""
        self.scores.forget_surprises(others)
        self.sums = self.sums.scaled(_AFTER_A_CHANGE)
        self.shapes = {}
        self.drift, self.changed_at, self._renew_at = 0.0, self.n, 0

    def learn_bound(self, arrays, at, bound, near, kept, others):
        """A lower bound that stays. Returns as learn does."""
        predictive = self.expects(self.posterior(kept), arrays, at)
        share = float(predictive.above(bound))
        scored = (
            predictive.mean,
            float(Calibrated(predictive, self.scores, others).quantile(0.99)),
            bound,
            math.log(max(share, 1e-300)),
            self.n,
        )
        if self.n >= _FEW and share < _CANNOT_BE:
            self._change(others)
        self.killed.append((arrays, float(bound), near))
        self.killed = _undominated(self.killed)
        if near or share < _SURE:
            self._scoring = None
        self.forget_conclusions()
        return scored

    def _sample(self, arrays, input_bytes, y):
        key = zlib.crc32(repr(arrays).encode())
        kept = self.shapes.get(key)
        if kept is None:
            if len(self.shapes) >= _MOST_SHAPES:
                if key > (most := max(self.shapes)):
                    return
                del self.shapes[most]
            kept = self.shapes[key] = [input_bytes, 0, 0.0, 0.0]
        kept[1] += 1
        kept[2] += y
        kept[3] += y * y

    # -- ask

    def posterior(self, kept=(), running=()):
        """Given lower bounds of tasks that were killed, and of tasks that run."""
        if self._fresh is None:
            self._fresh = self._conclude(kept)
        if not running:
            return self._fresh
        if self._with_running is None or [*map(id, self._with_running[0])] != [*map(id, running)]:
            telling, least = self._telling(self._fresh, running)
            sums = (
                self.sums.scaled(_AFTER_A_CHANGE)
                if self.n >= _FEW and least < _CANNOT_BE
                else self.sums
            )
            self._with_running = (
                running,
                (posterior(sums, [*kept, *telling]) if telling else self._fresh),
            )
        return self._with_running[1]

    def _conclude(self, kept):
        mixture = posterior(self.sums)
        telling, _ = self._telling(mixture, kept) if kept else ([], 1.0)
        return posterior(self.sums, telling) if telling else mixture

    def _telling(self, mixture, terms):
        """Those that are not implied, and the least of all shares."""
        shares = mixture.shares_above(terms, [self.beyond(term.sizes) for term in terms])
        return [
            term for term, share in zip(terms, shares, strict=True) if term.near or share < _SURE
        ], shares.min()

    def forget_conclusions(self):
        self._fresh = self._with_running = None

    def expects(self, mixture, arrays, at, output_deviation=0.0):
        """What is forecast for these inputs, and their sizes."""
        if self.misses_shape(arrays):
            mixture = mixture.without(BY_SHAPE)
        return mixture.predict(at, self.beyond(at), output_deviation)

    def beyond(self, at):
        """How many times larger than anything seen."""
        return at[INPUTS] / self.largest_bytes if self.largest_bytes else 1.0

    def misses_shape(self, arrays):
        """Has the largest input as many axes as never before, or none, of a task that was seen
        with some? Functions of single axes would mean something else."""
        return bool(arrays and self.axes) and axes_of(arrays) not in self.axes

    def seen(self):
        return sorted(
            (input_bytes, total / count, count)
            for input_bytes, count, total, _ in self.shapes.values()
        )

    def value_noise(self):
        """Relative deviation among tasks of the very same shapes; None if too few recurred."""
        free = squares = 0.0
        for _, count, total, square in self.shapes.values():
            mean = total / count
            if count > 1 and mean > 0:
                free += count - 1
                squares += max(0.0, square - total * mean) / (mean * mean + self.sums.floor**2)
        return math.sqrt(squares / free) if free >= 3 else None

    def trust(self, arrays, mixture):
        """A word, and the reasons why it is no better."""
        noise, sigma = self.value_noise(), mixture.sigma_mean
        input_bytes = sum(array.nbytes for array in arrays)
        notes = []
        if self.n == 0 and self.killed:
            notes.append("bounds-only")
        if noise is not None and noise > 0.05:
            notes.append("value-dependent")
        elif self.n >= 5 and sigma > 0.05:
            notes.append("non-linear")
        if self.changed_at is not None and self.n - self.changed_at < 20:
            notes.append("drifting")
        if self.n and input_bytes > 1.5 * self.largest_bytes:
            notes.append("extrapolating")
        if 2 * self.shared > self.n > 0:
            notes.append("shared")
        if not arrays:
            notes.append("no-inputs")
        if self.misses_shape(arrays):
            notes.append("no-shape")
        if self.scores.n < 99:
            notes.append("uncalibrated")
        if self.n == 0:
            return ("low" if self.killed else "none"), tuple(notes)
        doubts = set(notes) & {"value-dependent", "non-linear", "drifting", "shared", "no-shape"}
        if (
            self.n < _FEW
            or sigma > 0.2
            or ("no-shape" in notes and mixture.share_of(BY_SHAPE) > 0.5)
        ):
            return "low", tuple(notes)
        return ("fair" if doubts or self.n < 10 else "good"), tuple(notes)

    # -- keep

    def merge(self, other):
        self.sums.merge(other.sums)
        if self.sums.n > _MEMORY:
            self.sums.scale(_MEMORY / self.sums.n)
        self.scores.merge(other.scores)
        self.killed = _undominated(self.killed + other.killed)
        for key, (input_bytes, count, total, square) in other.shapes.items():
            kept = self.shapes.setdefault(key, [input_bytes, 0, 0.0, 0.0])
            kept[1:] = kept[1] + count, kept[2] + total, kept[3] + square
        self.shapes = dict(sorted(self.shapes.items())[:_MOST_SHAPES])
        since = min(
            (
                learner.n - learner.changed_at
                for learner in (self, other)
                if learner.changed_at is not None
            ),
            default=None,
        )
        self.n += other.n
        self.changed_at = None if since is None else self.n - since
        self.shared += other.shared
        self.largest_bytes = max(self.largest_bytes, other.largest_bytes)
        self.axes = set(sorted(self.axes | other.axes)[:_MOST_AXES])
        self._scoring = None
        self.forget_conclusions()

    def to_dict(self):
        return {
            "scalars": self.sums.scalars.tolist(),
            "vectors": self.sums.vectors.tolist(),
            "scores": self.scores.counts.tolist(),
            "killed": [[arrays, bound, near] for arrays, bound, near in self.killed],
            "shapes": {str(key): kept for key, kept in self.shapes.items()},
            "n": self.n,
            "shared": self.shared,
            "largest_bytes": self.largest_bytes,
            "axes": sorted(self.axes),
            "drift": self.drift,
            "changed_at": self.changed_at,
        }

    @classmethod
    def from_dict(cls, kind, kept):
        """ValueError where it cannot be what to_dict gave: a forecast from it would be no
        number."""
        self = cls(kind)
        for ours, name in (
            (self.sums.scalars, "scalars"),
            (self.sums.vectors, "vectors"),
            (self.scores.counts, "scores"),
        ):
            ours[...] = numbers(kept[name], ours.shape, name)
        if not self.sums.could_be():
            raise ValueError("a damaged model: sums of no values")
        for arrays, bound, near in kept["killed"]:
            given = arrays_of(
                [
                    {"shape": shape, "nbytes": whole(nbytes, "bytes"), "dtype": dtype}
                    for shape, nbytes, dtype in arrays
                ]
            )
            self.killed.append((given, float(whole(bound, "a bound")), bool(near)))
        self.killed = _undominated(self.killed)
        for key, (input_bytes, count, *moments) in sorted(
            kept["shapes"].items(), key=lambda item: int(item[0])
        )[:_MOST_SHAPES]:
            self.shapes[int(key)] = [
                whole(input_bytes, "input bytes", math.inf),
                max(1, whole(count, "a count")),
                *numbers(moments, (2,), "shapes").tolist(),
            ]
        self.n, self.shared, self.largest_bytes = (
            whole(kept["n"], "n"),
            whole(kept["shared"], "shared"),
            whole(kept["largest_bytes"], "largest_bytes", 64 * MOST_BYTES),
        )
        self.axes = {whole(axes, "axes") for axes in kept["axes"][:_MOST_AXES]}
        self.drift = float(np.clip(kept["drift"], -6.0, 6.0))
        self.changed_at = (
            None if kept["changed_at"] is None else whole(kept["changed_at"], "changed_at")
        )
        if math.isnan(self.drift) or (self.n > 0) != (self.sums.n > 0):
            raise ValueError("a damaged model: n")
        return self


def numbers(values, shape, what):
    """Of a file: an array of numbers from zero on, or ValueError."""
    found = np.array(values, dtype=float)
    if found.shape != shape or not np.isfinite(found.sum()) or (found < 0).any():
        raise ValueError(f"a damaged model: {what}")
    return found


def _undominated(bounds):
    """Without those that another one implies: more bytes from smaller inputs. Few, in an order
    of their own."""
    kept, most = [], {False: -1.0, True: -1.0}
    for arrays, bound, near in sorted(
        bounds,
        key=lambda given: (sum(a.nbytes for a in given[0]), -given[1], given[2], repr(given[0])),
    ):
        if bound > most[near]:
            most[near] = bound
            kept.append((arrays, bound, near))
    if len(kept) > _MOST_BOUNDS or sum(map(_numbers, kept)) > _MOST_NUMBERS:
        kept, room = (
            sorted(kept, key=lambda given: -given[1] / (1 + sum(a.nbytes for a in given[0])))[
                :_MOST_BOUNDS
            ],
            _MOST_NUMBERS,
        )
        kept = [given for given in kept if (room := room - _numbers(given)) >= 0] or kept[:1]
    return kept


def _numbers(bound):
    """How many a bound keeps: of thousands of names, with tens of inputs of tens of axes each,
    they would be gigabytes."""
    return sum(3 + len(array.shape or ()) for array in bound[0])
