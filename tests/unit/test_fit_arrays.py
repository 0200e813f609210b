"""Arrays of all kinds as sources of blocks, and the function in a form that can be sent."""

import pickle

import numpy as np
import pytest

from dwsr_probe.fit import FitError, arrays
from dwsr_probe.fit.arrays import made_up, open_file, shared_axes, source_of
from dwsr_probe.fit.function import NamedFunction, TooLarge, name_of_function, pickled

SHAPE = 12, 30, 40
X = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
INDEX = slice(3, 7), slice(0, 30), slice(10, 12)


def assert_reads(source, form, stored):
    """The values of a slice, read here and, if the source is sent, from what is sent."""
    assert (source.form, source.stored) == (form, stored)
    assert source.shape == SHAPE and source.dtype == np.float32 and source.nbytes == X.nbytes
    found = source.read(INDEX)
    assert type(found) is np.ndarray and np.array_equal(found, X[INDEX])
    found[:] = 0  # as a function that works in place
    assert np.array_equal(source.read(INDEX), X[INDEX])
    if source.sent is not None:
        assert len(source.sent) < 1 << 20
        assert np.array_equal(pickle.loads(source.sent).read(INDEX), X[INDEX])


def test_numpy():
    source = source_of(X)
    assert_reads(source, arrays.MEMORY, None)
    assert source.sent is None and source_of(source) is source
    assert_reads(source_of(np.asfortranarray(X)), arrays.MEMORY, None)
    frozen = X.copy()
    frozen.flags.writeable = False
    assert_reads(source_of(frozen), arrays.MEMORY, None)


def test_a_masked_array_keeps_its_mask():
    found = source_of(np.ma.masked_less(X, 0)).read(INDEX)
    assert isinstance(found, np.ma.MaskedArray) and (found.mask == (X[INDEX] < 0)).all()


def test_a_memory_map_is_not_copied_as_a_whole(tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = open_file(str(tmp_path / "x.npy"))
    assert_reads(source, arrays.FILE, None)
    assert source.sent is None


def test_dask():
    da = pytest.importorskip("dask.array")
    source = source_of(da.from_array(X, chunks=(5, 30, 20)))
    assert_reads(source, arrays.DASK, (5, 30, 20))
    assert source.sent is not None


def test_a_dask_array_that_holds_much_data_stays_here(monkeypatch):
    da = pytest.importorskip("dask.array")
    monkeypatch.setattr(arrays, "_SENT_BYTES_MOST", X.nbytes // 2)
    source = source_of(da.from_array(X, chunks=(5, 30, 20)))
    assert source.sent is None
    assert_reads(source, arrays.DASK, (5, 30, 20))


def test_a_dask_array_is_read_through_the_client(monkeypatch):
    """Its graph may hold futures, which no other process has."""
    da = pytest.importorskip("dask.array")
    monkeypatch.setattr(arrays, "running_client", object)
    assert source_of(da.ones(SHAPE)).sent is None and source_of(made_up(SHAPE, "f4")).sent


def test_unknown_chunks_of_dask():
    da = pytest.importorskip("dask.array")
    x = da.from_array(X, chunks=(5, 30, 20))
    with pytest.raises(FitError, match="axis 0 is not known; call compute_chunk_sizes"):
        source_of(x[x[:, 0, 0] > 0])


def test_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "group.zarr"
    group = zarr.open_group(path, mode="w")
    group["x"] = X
    stored = zarr.open_array(
        path / "chunked", mode="w", shape=SHAPE, chunks=(5, 30, 20), dtype="f4"
    )
    stored[:] = X
    source = source_of(stored)
    assert_reads(source, arrays.FILE, (5, 30, 20))
    assert source.sent is not None
    assert_reads(open_file(str(path / "chunked")), arrays.FILE, (5, 30, 20))
    with pytest.raises(FitError, match=r"is a zarr group; name one of its arrays: .*x"):
        open_file(str(path))


def test_zarr_in_memory(monkeypatch):
    zarr = pytest.importorskip("zarr")
    stored = zarr.open_array({}, mode="w", shape=SHAPE, chunks=(5, 30, 20), dtype="f4")
    stored[:] = X
    assert_reads(source_of(stored), arrays.FILE, (5, 30, 20))
    monkeypatch.setattr(arrays, "_SENT_BYTES_MOST", 4096)
    assert source_of(stored).sent is None


def test_h5py(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        source = source_of(file.create_dataset("x", data=X, chunks=(5, 30, 20)))
        assert_reads(source, arrays.FILE, (5, 30, 20))
        assert source.sent is None  # h5py's objects cannot be pickled
        assert source_of(file.create_dataset("whole", data=X)).stored is None


class TestXarray:
    @pytest.fixture
    def opened(self, tmp_path):
        xarray = pytest.importorskip("xarray")
        pytest.importorskip("netCDF4")
        values = xarray.DataArray(X, dims=("t", "y", "x"), name="v")
        chunks = {"v": {"chunksizes": (5, 30, 20)}}
        values.to_netcdf(tmp_path / "x.nc", encoding=chunks, engine="netcdf4")

        def opened(**options):
            with xarray.open_dataset(tmp_path / "x.nc", engine="netcdf4", **options) as dataset:
                return dataset["v"]

        return opened

    def test_in_memory(self, opened):
        xarray = pytest.importorskip("xarray")
        source = source_of(xarray.DataArray(X))
        assert_reads(source, arrays.MEMORY, None)
        assert source.sent is None
        assert_reads(source_of(opened().load()), arrays.MEMORY, None)

    def test_lazily_opened(self, opened):
        values = opened()
        assert_reads(source_of(values), arrays.FILE, (5, 30, 20))
        assert not values.variable._in_memory  # not even by looking at it
        assert_reads(source_of(values.variable), arrays.FILE, (5, 30, 20))

    def test_chunked(self, opened):
        assert_reads(source_of(opened(chunks={"t": 10})), arrays.DASK, (10, 30, 20))

    def test_transposed(self, opened):
        source = source_of(opened().transpose("x", "t", "y"))
        assert source.shape == (40, 12, 30) and source.stored == (20, 5, 30)
        index = INDEX[2], INDEX[0], INDEX[1]
        assert np.array_equal(source.read(index), X.transpose(2, 0, 1)[index])

    @pytest.mark.parametrize("chunks", [None, {}])
    def test_a_dataset_is_no_array(self, opened, chunks):
        with pytest.raises(FitError, match="Dataset is not an array; give a NumPy, Dask"):
            source_of(opened(chunks=chunks).to_dataset())


class Tensor:
    """As of a library whose dtypes are not NumPy's."""

    shape, dtype = (3, 4), "torch.float32"

    def __getitem__(self, index):
        raise AssertionError


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "NoneType is not an array"),
        ([1, 2], "list is not an array"),
        ("x.npy", "str is not an array"),
        (3.0, "float is not an array"),
        (np.float64(3), "has no axes"),
        (np.ones((3, 0)), "axis 1 has length 0: there is nothing to split"),
        (np.array([{}, None]), "Python objects of unknown size"),
        (np.zeros(3, [("a", "O")]), "Python objects of unknown size"),
        (Tensor(), "'torch.float32' is not a NumPy dtype"),
    ],
)
def test_what_is_no_array(given, text):
    with pytest.raises(FitError, match=text):
        source_of(given)


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "c16", "i1", "u8", "?", "M8[s]", "S5", "U3", "f4,i2", ">f8"]
)
def test_made_up_values(dtype):
    source = made_up((7, 5, 9), dtype, (7, 5, 3))
    found = source.read((slice(2, 5), slice(0, 5), slice(1, 9)))
    assert found.shape == (3, 5, 8) and found.dtype == np.dtype(dtype)
    assert source.stored == (7, 5, 3) and source.form == arrays.MADE_UP
    if np.dtype(dtype).kind in "fciu":
        assert len(np.unique(found)) > 10


@pytest.mark.parametrize(
    ("shape", "dtype", "stored", "text"),
    [
        ((3, 0), "f4", None, "axis 1 has length 0"),
        ((3, -1), "f4", None, "axis 1 has length -1"),
        ((3, 4), "float23", None, "'float23' is not a NumPy dtype"),
        ((3, 4), "O", None, "Python objects"),
        ((3, 4), "f4", (3,), "stored chunks have 1 axes, the array has 2"),
        ((3, 4), "f4", (3, 0), "axis 1 has length 0"),
        ((), "f4", None, "has no axes"),
    ],
)
def test_impossible_descriptions(shape, dtype, stored, text):
    with pytest.raises(FitError, match=text):
        made_up(shape, dtype, stored)


@pytest.mark.parametrize("name", ["none.npy", "none.zarr", "text.npy", "text.zarr"])
def test_files_that_cannot_be_read(tmp_path, name):
    pytest.importorskip("zarr")
    if name.startswith("text"):
        (tmp_path / name).write_text("no array")
    with pytest.raises(FitError, match=f"cannot read .*{name}: .*name a .npy file or a zarr array"):
        open_file(str(tmp_path / name))


@pytest.mark.parametrize(
    ("shape", "shared"),
    [
        ((10, 20, 30), {0: 0, 1: 1, 2: 2}),
        ((30,), {2: 0}),
        ((20, 30), {1: 0, 2: 1}),
        ((20, 1), {1: 0}),
        ((20,), {}),
        ((1, 20, 30), {1: 1, 2: 2}),
    ],
)
def test_axes_that_other_arrays_share(shape, shared):
    assert shared_axes((10, 20, 30), shape) == shared


class TestFunction:
    def test_names(self):
        import functools

        class Callable:
            def __call__(self, x):
                return x

            def method(self, x):
                return x

        assert name_of_function(np.sqrt) == "sqrt"
        assert name_of_function(functools.partial(functools.partial(np.add, 1), 2)) == "add"
        assert name_of_function(Callable()) == "Callable"
        assert name_of_function(Callable().method) == "method"
        assert name_of_function(NamedFunction("job:envelope")) == "envelope"

        class Everything:
            """Has every attribute, as unittest.mock.Mock has."""

            def __getattr__(self, name):
                return self

        assert name_of_function(Everything()) == "Everything"

    def test_pickled(self):
        factor = 3
        found = pickle.loads(pickled(lambda x: factor * x, 1 << 20))
        assert found(2) == 6

    def test_what_cannot_be_pickled(self):
        import threading

        lock = threading.Lock()
        with pytest.raises(FitError, match=r"cannot send the function .*lock"):
            pickled(lambda x: lock, 1 << 20)

    def test_what_is_too_large(self):
        data = np.zeros(1 << 20)
        with pytest.raises(TooLarge, match=r"more than 1.0 MiB of data; give large arrays as"):
            pickled(lambda x: x + data, 1 << 20)
        assert pickled(lambda x: x + data, 16 << 20)

    def test_without_cloudpickle(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
        assert pickle.loads(pickled(np.sqrt, 1 << 20)) is np.sqrt
        with pytest.raises(FitError, match="pip install cloudpickle"):
            pickled(lambda x: x, 1 << 20)

        def scripted(x):
            return x

        scripted.__module__, scripted.__qualname__ = "__main__", "scripted"
        with pytest.raises(FitError, match="script or a notebook; pip install cloudpickle"):
            pickled(scripted, 1 << 20)

    @pytest.fixture
    def job(self, tmp_path, monkeypatch):
        monkeypatch.setattr("sys.path", list(__import__("sys").path))
        monkeypatch.setattr("sys.modules", dict(__import__("sys").modules))
        (tmp_path / "beside_job.py").write_text("FACTOR = 2\n")
        text = "from beside_job import FACTOR\ndef f(x, more=0): return FACTOR * x + more\n"
        text += "class C:\n    @staticmethod\n    def g(x): return x\nnumber = 3\n"
        for name in ("job.py", "json.py", "my-job.py"):
            (tmp_path / name).write_text(text)
        return tmp_path

    @pytest.mark.parametrize("name", ["job.py", "json.py", "my-job.py"])
    def test_named_by_a_file(self, job, name):
        """Also one that is called like a module that is loaded already."""
        import json

        assert NamedFunction(f"{job / name}:f").load()(5) == 10
        assert NamedFunction(f"{job / name}:f", {"more": 1}).load()(5) == 11
        assert NamedFunction(f"{job / name}:C.g").load()(5) == 5
        assert __import__("sys").modules["json"] is json

    def test_named_by_a_module(self, job, monkeypatch):
        monkeypatch.chdir(job)
        assert NamedFunction("job:f").load()(5) == 10
        assert NamedFunction("os.path:join").load()("a", "b") == "a/b"

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("job.py:none", "job.py has no none"),
            ("job.py:C.none", "has no C.none"),
            ("job.py:number", "number of .*job.py is a int, no function"),
            ("none.py:f", "there is no file .*none.py"),
        ],
    )
    def test_what_is_not_there(self, job, text, error):
        with pytest.raises(FitError, match=error):
            NamedFunction(str(job / text)).load()

    @pytest.mark.parametrize("text", ["envelope", ":f", "job:", ""])
    def test_what_names_no_function(self, text):
        with pytest.raises(FitError, match="write module:function or "):
            NamedFunction(text)
