"""The shape of a selection, compared with what NumPy returns for it."""

import json

import numpy as np
import pytest

from dwsr_probe._core import describe_output, shape_of_selection, walk_task

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


def test_the_library_of_netcdf_is_not_asked(tmp_path):
    """Its functions let the GIL go, and another thread may be reading: that would crash."""
    netcdf = pytest.importorskip("netCDF4")
    getter = pytest.importorskip("dask.array.core").getter
    from dask._task_spec import Task

    with netcdf.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 8)
        variable = file.createVariable("v", "f4", ("x",))
    # The shape of a closed file raises. What is known is the dtype and the selection.
    text = walk_task(Task("key", getter, variable, (slice(2, 6),)))[0]
    (given,) = json.loads(text)
    assert (given["shape"], given["dtype"], given["nbytes"]) == ([4], "float32", 16)
    assert given["lazy"] and json.loads(describe_output(variable)[0])["shape"] is None
