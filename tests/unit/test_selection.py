"""The shape of a selection, compared with what NumPy returns for it."""

import numpy as np
import pytest

from dwsr_probe._core import shape_of_selection

ARRAY = np.empty((10, 20, 30), np.int8)


@pytest.mark.parametrize(
    "selection",
    [
        (),
        (slice(2, 5),),
        (slice(None), slice(3, 19, 4), slice(-7, None)),
        (slice(8, 2, -2), 3),
        (Ellipsis, slice(0, 7)),
        (0, Ellipsis, np.int64(4)),
        (None, slice(0, 3), Ellipsis, None),
        (slice(5, 5),),
        (slice(0, 100),),
        ([1, 5, 2], slice(0, 4)),
        (slice(0, 2), np.array([4, 4, 4, 4])),
        (1, 2, 3),
    ],
    ids=str,
)
def test_as_numpy(selection):
    assert shape_of_selection(ARRAY.shape, selection) == ARRAY[selection].shape


def test_what_the_selection_alone_does_not_say():
    assert shape_of_selection((10, 20), (np.arange(10) > 3,)) == (None, 20)
    assert shape_of_selection((10, 20), ([True] * 10,)) == (None, 20)
    assert shape_of_selection((10,), (slice(0, 2), slice(0, 2))) is None  # more axes than it has
    assert shape_of_selection((10,), ("name",)) is None
    assert shape_of_selection(None, (slice(0, 4), slice(2, 6, 2))) == (4, 2)
    assert shape_of_selection(None, (slice(4),)) is None
    assert shape_of_selection(None, (Ellipsis,)) is None
