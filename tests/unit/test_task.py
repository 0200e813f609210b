import asyncio
import pickle
import threading

import numpy as np
import pytest

import dwsr_probe
from dwsr_probe import _core
from dwsr_probe.board import Board
from tests.conftest import wait_until


def finished():
    return dwsr_probe.records()


def live():
    return Board(_core.board_path()).live()


def test_a_block_with_inputs_and_output(probe):
    volume = np.zeros((4, 5, 6), np.float32)
    with probe.task("glcm", inputs=[volume, volume], key="('glcm', 0)") as block:
        block.output = volume[0]
    (record,) = finished()
    assert (record.task_name, record.state, record.key, record.overlap, record.attribution) == (
        "glcm",
        "ok",
        "('glcm', 0)",
        0,
        "exact",
    )
    assert record.inputs == [
        {"type": "ndarray", "dtype": "float32", "shape": [4, 5, 6], "nbytes": 480, "count": 2}
    ]
    assert record.input_bytes == 960 and record.output == {
        "type": "ndarray",
        "dtype": "float32",
        "shape": [5, 6],
        "nbytes": 0,
        "logical_bytes": 120,
        "view": True,
    }
    assert record.output_bytes == 0 and record.seq == 1 and record.duration >= 0
    assert (
        record.rss_peak_bytes >= record.rss_before_bytes > 0 and record.rss_peak_source == "kernel"
    )


def test_errors_pass_through_and_are_recorded(probe):
    for error in (ValueError, KeyboardInterrupt, asyncio.CancelledError, SystemExit):
        with pytest.raises(error), probe.task("t"):
            raise error
    assert [r.state for r in finished()] == ["error", "cancelled", "cancelled", "error"]


def test_decorator_takes_inputs_and_output(probe):
    @probe.task("double")
    def double(x, *, y=None):
        """doc"""
        return x + x

    assert double.__name__ == "double" and double.__doc__ == "doc"
    double(np.ones(8), y=np.ones(2))
    (record,) = finished()
    assert [i["shape"] for i in record.inputs] == [[8], [2]] and record.output["nbytes"] == 64


class Filter:
    """Methods of all kinds, decorated."""

    @dwsr_probe.task("method")
    def method(self, x, *, y=None):
        return x

    @classmethod
    @dwsr_probe.task("class method")
    def of_class(cls, x):
        return x

    @staticmethod
    @dwsr_probe.task("static method")
    def static(x, y):
        return x

    @dwsr_probe.task("coroutine")
    async def coroutine(self, x):
        return x

    @dwsr_probe.task("chosen", inputs=[np.ones(3)])
    def chosen(self, x):
        return x


class Median(Filter):
    pass


class Proxy:
    """An object that says of itself what it likes, and runs the job's own code to do so."""

    def __getattribute__(self, name):
        raise RuntimeError("the job's own code ran")

    @dwsr_probe.task("proxy")
    def method(self, x):
        return x


def test_self_is_no_input(probe):
    """Its size cannot be known: with it among the inputs, those of the task would not be known
    either."""
    x = np.ones(8)
    for one in (Filter(), Median()):
        one.method(x, y=np.ones(2))
        one.of_class(x)
        type(one).of_class(x)
        one.static(x, x)
        asyncio.run(one.coroutine(x))
        one.chosen(x)
    Filter.method(Filter(), x)

    class Local:
        @probe.task("local")
        def method(self, x):
            return x

    Local().method(x)
    assert [(r.task_name, [i["shape"] for i in r.inputs], r.input_bytes) for r in finished()] == [
        ("method", [[8], [2]], 80),
        ("class method", [[8]], 64),
        ("class method", [[8]], 64),
        ("static method", [[8]], 128),
        ("coroutine", [[8]], 64),
        ("chosen", [[3]], 24),
    ] * 2 + [("method", [[8]], 64), ("local", [[8]], 64)]


def test_decorated_methods_are_pickled_by_value(probe):
    """As Dask does with what is defined in a notebook."""
    cloudpickle = pytest.importorskip("cloudpickle")
    code = {"task": probe.task, "__name__": "__main__"}
    exec('class Own:\n    @task("own")\n    def method(self, x): return x', code)
    one = code["Own"]()
    one.method(5)
    again = pickle.loads(cloudpickle.dumps(one))
    assert again.method(np.ones(4)).size == 4 and [
        [i["type"] for i in r.inputs] for r in finished()
    ] == [["int"], ["ndarray"]]


def test_a_function_keeps_its_first_argument(probe):
    """Whatever it is called and wherever it is defined, and also if it is an object of the job's
    own class."""

    @probe.task("function")
    def method(self, x=None):
        return x

    class Odd(type):
        def __getattribute__(cls, name):
            raise RuntimeError("the job's own code ran")

    method(Filter())
    method(Odd("Odd", (), {})())
    Filter.static(Odd("Odd", (), {}), 5)
    Filter.static(Proxy(), 5)
    Proxy.method(Proxy(), 5)
    assert [[i["type"] for i in r.inputs] for r in finished()] == [
        ["Filter"],
        ["Odd"],
        ["Odd", "int"],
        ["Proxy", "int"],
        ["int"],
    ]


def test_decorated_coroutine(probe):
    @probe.task("wait")
    async def wait(n):
        await asyncio.sleep(0)
        return n

    async def main():
        return await asyncio.gather(*(wait(i) for i in range(3)))

    assert asyncio.run(main()) == [0, 1, 2]
    assert [(r.state, r.attribution) for r in finished()] == [("ok", "shared")] * 3


def test_nesting_and_reuse_of_one_object(probe):
    again = probe.task("again")
    with again, again, probe.task("inner"):
        pass
    assert [r.task_name for r in finished()] == ["inner", "again", "again"]
    assert live()["running"] == 0


def test_one_object_in_many_threads(probe):
    shared, gate = probe.task("shared"), threading.Barrier(8)

    def work():
        for _ in range(50):
            with shared:
                gate.wait(600)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(finished()) == 400 and live()["ends_elsewhere"] == 0
    assert max(r.overlap for r in finished()) == 7


def test_misuse_is_counted_and_harmless(probe):
    block = probe.task("a")
    block.__exit__(None, None, None)  # never entered
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    block.__exit__(None, None, None)
    assert live()["ends_elsewhere"] == 1

    def leave_open():
        probe.task("left").__enter__()

    thread = threading.Thread(target=leave_open)
    thread.start()
    thread.join()
    wait_until(
        lambda: live()["ends_missing"] == 1,
        "the end of the thread itself, which join does not wait for",
    )
    assert live()["running"] == 0
    assert [r.state for r in finished()] == ["ok", "cancelled"]


HOSTILE = [
    "",
    "a\nb",
    "q\"'\\",
    "nul\0nul",
    "emoji 🛢️",
    "x" * 10_000,
    "é" * 5_000,
    "\ud800 surrogate",
    b"\xff\xfe raw",
    "\x1b[31mred",
    "[bold]m[/]",
    "‮rtl",
    42,
    None,
    ("tuple", 1),
    "{}%s$HOME`",
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: repr(n)[:20])
def test_hostile_names(probe, name):
    with probe.task(name, key=name):
        pass
    (record,) = finished()
    assert len(record.task_name.encode("utf-8")) <= 3 * 256  # invalid bytes become U+FFFD
    assert record.to_json().isascii() and "\n" not in record.to_json()


def test_inputs_that_cannot_be_described_do_not_reach_the_job(probe):
    class Lazy:
        shape, nbytes = (1 << 40, 1 << 30), 1 << 70

    with probe.task("lazy", inputs=[Lazy()]) as block:
        block.output = Lazy()
    assert (
        finished()[0].input_bytes is None
        and finished()[0].output_bytes is None
        and live()["running"] == 0
    )


def test_arrays_are_not_kept_alive(probe):
    import weakref

    class Array:
        pass

    for active in (True, False):
        if not active:
            probe.stop()
        value, result = Array(), Array()
        gone, kept = weakref.ref(value), weakref.ref(result)
        block = probe.task("x", inputs=[value])
        with block:
            del value
            assert gone() is None  # inside the block already
            block.output = result
            del result
        assert kept() is None


def test_a_block_in_a_coroutine_is_shared(probe):
    async def main():
        with probe.task("t"):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert finished()[0].attribution == "shared"


def test_a_child_forked_after_stop_is_not_probed(probe):
    import os

    probe.stop()
    pid = os.fork()
    if pid == 0:
        os._exit(int(_core.active()))
    assert os.waitpid(pid, 0)[1] == 0


def test_a_name_whose_str_raises(probe):
    class Bad:
        def __str__(self):
            raise RuntimeError

    with probe.task(Bad()):
        pass
    assert finished()[0].task_name == "Bad"


def test_a_function_is_not_a_name():
    with pytest.raises(TypeError, match="needs a name"):

        @dwsr_probe.task
        def work():
            pass


def test_without_a_probe_nothing_happens():
    assert not _core.active() and dwsr_probe.snapshot() is None and dwsr_probe.records() == []
    with dwsr_probe.task("x", inputs=[object()]) as block:
        block.output = 1

    @dwsr_probe.task("f")
    def f(x):
        return x + 1

    assert f(1) == 2
    dwsr_probe.stop()


def test_snapshot_shows_what_runs(probe):
    with probe.task("outer"), probe.task("inner"):
        now = probe.snapshot()
    assert [(r.task_name, r.state, r.seq, r.duration) for r in now.running] == [
        ("outer", "running", None, None),
        ("inner", "running", None, None),
    ]
    assert (
        now.process.kind == "process"
        and now.process.rss_peak_bytes > 0
        and now.live["rss_source"] == "kernel"
    )


def test_start_is_idempotent_and_restart_is_a_new_board(probe):
    first = _core.board_path()
    assert probe.start() and _core.board_path() == first
    with probe.task("across"):
        probe.stop()
        assert probe.start()
    assert finished() == [] and live()["ends_unmatched"] == 0  # that task ended with its own board


@pytest.mark.parametrize("block", [None, 5, "name"])
def test_only_a_block_can_be_adopted(block):
    with pytest.raises(TypeError):
        dwsr_probe.adopt(block)


def test_page_faults_are_the_threads_own(probe):
    import mmap

    pages = 2000
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as block:
        block.madvise(mmap.MADV_NOHUGEPAGE)
        with probe.task("touches"):
            for page in range(pages):
                block[page * mmap.PAGESIZE] = 1
        with probe.task("touches again"):
            for page in range(pages):
                block[page * mmap.PAGESIZE] = 2
    first, again = probe.records()
    assert pages <= first.page_faults < pages + 500 and again.page_faults < 500
    assert 0 <= first.major_page_faults <= first.page_faults
