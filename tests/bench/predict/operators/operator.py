"""What an operator is, and its shapes and inputs. The modules of this package have the operators,
by library; measure.py runs them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tests.bench.predict.groups import SMALL

COUNT = 20
M = 1 << 20


def ladder(axes, low, high, seed, least=4):
    """COUNT shapes of `axes` axes with `low` to `high` elements: 1, 2 and 4 times `low`, then a
    geometric row from five times the smallest on. Sides are up to four times each other."""
    chance, shapes = np.random.default_rng(seed), []
    for elements in [low, 2 * low, 4 * low, *np.geomspace(5 * low, high, COUNT - SMALL)]:
        sides = np.exp(chance.uniform(0, np.log(4), axes))
        shapes.append(
            tuple(
                max(least, round(side)) for side in sides * (elements / sides.prod()) ** (1 / axes)
            )
        )
    return shapes


def row_ladder(low, high, columns):
    """COUNT shapes rows × columns with `low` to `high` rows. columns: of number i."""
    rows = [low, 2 * low, 4 * low, *np.geomspace(5 * low, high, COUNT - SMALL)]
    return [(int(n), columns(i)) for i, n in enumerate(rows)]


ROWS = row_ladder(20_000, 1_000_000, lambda i: 2 + i * 7 % 6)


def arrays(shape, chance):
    return [chance.random(shape, dtype=np.float32)]


def table(shape, chance):
    """Rows × columns of float64, and a key of whole numbers: about a hundred rows each."""
    frame = pd.DataFrame(chance.random(shape), columns=[f"c{i}" for i in range(shape[1])])
    frame["key"] = chance.integers(0, max(2, shape[0] // 100), shape[0])
    return [frame]


@dataclass(frozen=True)
class Operator:
    """params: arguments by name, which the record has as `params`. values: further values of the
    one parameter. grows: the axes of `shapes` that are longer where inputs are 30 and 300 times
    larger; (): such inputs are not affordable. degree: input bytes grow with the scale of these
    axes to this power."""

    name: str
    function: Callable
    shapes: list
    make: Callable = arrays  # (shape, chance) → inputs
    params: dict = field(default_factory=dict)
    values: tuple = ()
    grows: tuple = ()
    degree: int = 0

    def scaled(self, scale):
        """The smallest shape with input bytes times `scale`."""
        if not self.grows:
            return None
        factor = scale ** (1 / self.degree)
        return tuple(
            max(1, round(length * factor)) if axis in self.grows else length
            for axis, length in enumerate(self.shapes[0])
        )


def one(name, function, axes=3, low=M // 8, high=8 * M, shapes=None, grows=None, **others):
    """An operator with a ladder of its own: the seed is its name."""
    shapes = shapes or ladder(axes, low, high, sum(map(ord, name)))
    grows = tuple(range(len(shapes[0]))) if grows is None else grows
    return Operator(name, function, shapes, grows=grows, **{"degree": len(grows), **others})
