"""Blocks in coroutines, greenlets and generators, which other work of the thread interrupts: right
and exact, or shared without figures of their own."""

import json

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import tasks

MIB = 1 << 20

START = """
import asyncio, contextlib, contextvars, gc, sys, threading, weakref
import numpy as np
import dwsr_probe
from dwsr_probe import task

def fill(mib):
    return np.ones(mib << 20, np.uint8)

def nested():
    with task("outer"):
        a = fill(3)
        with task("inner"):
            b = fill(2)
        del a, b

@contextlib.contextmanager
def measured(name):
    with task(name):
        yield

def fill_stack(stack, name):
    stack.enter_context(task(name))

def helped():
    with measured("manager"):
        a = fill(4)
        with contextlib.ExitStack() as stack:
            stack.enter_context(measured("managed"))
            b = fill(5)
            fill_stack(stack, "stacked")
            c = fill(6)
            with task("innermost"):
                d = fill(7)
            del c, d
        del a, b
"""
NESTED = {"outer": 5, "inner": 2}
HELPED = {"manager": 22, "managed": 18, "stacked": 13, "innermost": 7}


def check(found, truths):
    """truths: name of a block → MiB of its own peak. None: shared, without figures.
    "shared": shared, with figures that may include other work."""
    assert sorted({r["task_name"] for r in found}) == sorted(truths)
    for record in found:
        name, peak = record["task_name"], record["alloc_peak_bytes"]
        print(f"{name:12} {peak} {record['attribution']} {record['attribution_reason']}")
        if truths[name] in (None, "shared"):
            assert record["attribution_reason"] == "coroutine", name
            assert record["attribution"] == "shared" and (peak is None) == (truths[name] is None)
            assert (record["page_faults"] is None) == (peak is None)
        else:
            assert record["attribution"] == "exact", name
            assert abs(peak - truths[name] * MIB) < MIB / 4, name


def run(cli, code, first=""):
    done, records = cli.job(first + START + code)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr and "Exception" not in done.stderr, done.stderr
    return tasks(records)


# -- coroutines

LOOPS = {
    "asyncio": "asyncio.run(main())",
    "uvloop": "import uvloop; uvloop.run(main())",
    "trio": "import trio; Event = trio.Event; trio.run(main)",
}

TOGETHER = """
Event = asyncio.Event

async def together(*functions):
    if "trio" in sys.modules:
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)
    else:
        await asyncio.gather(*(function() for function in functions))
"""

INTERLEAVED = """
@contextlib.asynccontextmanager
async def opened(name):
    with task(name):
        yield

async def main():
    filled, done = [Event(), Event(), Event(), Event()], Event()

    async def ten():
        with task("ten"):
            a = fill(10)
            filled[0].set()
            await done.wait()

    async def hundred():
        await filled[0].wait()
        with task("hundred"):
            a = fill(100)
            filled[1].set()
            await done.wait()

    async def twenty():
        await filled[1].wait()
        async with opened("twenty"), contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(opened("thirty"))
            a = fill(20)
            filled[2].set()
            await done.wait()

    async def forty():
        async for i in numbers():
            await filled[2].wait()

    async def numbers():
        with task("forty"):
            a = fill(40)
            yield 1
            await done.wait()

    async def between():
        await filled[2].wait()
        with task("between"):
            a = fill(7)
        nested()
        helped()
        async with opened("async"):  # entering it does not suspend the coroutine
            a = fill(8)
        with task("error"), contextlib.suppress(ValueError):
            a = fill(9)
            raise ValueError
        done.set()
        async for i in count():
            b = fill(50)

    async def count():
        with task("streamed"):  # what is done with each value is its neighbour's work
            a = fill(2)
            yield 1

    await together(ten, hundred, twenty, forty, between)

{run}
nested()  # afterwards
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_interleaved_coroutines(cli, loop):
    truths = {name: None for name in ("ten", "hundred", "twenty", "thirty", "forty")}
    truths |= {"between": 7, "async": 8, "error": 9, "streamed": "shared", **NESTED, **HELPED}
    check(run(cli, TOGETHER + INTERLEAVED.replace("{run}", LOOPS[loop])), truths)


def test_one_coroutine_without_others(cli):
    """Nothing else has a block. Coroutines that the job drives itself; awaits that do not suspend;
    callbacks; a decorated function."""
    code = """
class Suspend:
    def __await__(self):
        yield

async def driven(name="driven"):
    with task(name):
        a = fill(2)
        await Suspend()

coroutine = driven()
coroutine.send(None)
b = fill(30)
with contextlib.suppress(StopIteration):
    coroutine.send(None)
closed = driven()
closed.send(None)
closed.close()

async def ready(mib):
    return fill(mib)

@task("decorated")
async def decorated(mib, suspend):
    a = fill(mib)
    await asyncio.sleep(0) if suspend else await ready(1)

async def main():
    with task("awaits"):
        a = await ready(3)
    with task("suspended"):
        a = fill(4)
        await asyncio.sleep(0)
    with task("driven in a loop"):
        a = await ready(1)
        inner = driven("driven by a coroutine")
        inner.send(None)
        b = fill(30)
        with contextlib.suppress(StopIteration):
            inner.send(None)
    del a, b
    with task("other context"):  # is entered and left, and the coroutine runs on
        a = fill(2)
        contextvars.copy_context().run(nested)
    await decorated(5, False)
    await together(decorated)
    loop, called = asyncio.get_running_loop(), asyncio.Event()

    def one():
        with task("callback"):
            a = fill(6)
        across.__enter__()
        loop.call_soon(two)

    def two():
        nested()
        across.__exit__(None, None, None)
        called.set()

    across = task("across")
    loop.call_soon(one)
    await called.wait()

async def together(decorated):
    with task("around"):
        await decorated(5, True)

with task("all"):
    asyncio.run(main())
"""
    found = run(cli, code)
    decorated = [r for r in found if r["task_name"] == "decorated"]
    check(decorated[:1], {"decorated": 6})
    check(decorated[1:], {"decorated": None})
    driven = [r for r in found if r["task_name"] == "driven"]
    check(driven[:1], {"driven": "shared"})
    check(driven[1:], {"driven": None})
    truths = {"awaits": 3, "suspended": None, "callback": 6, "across": None, "around": None}
    others = [r for r in found if r["task_name"] not in ("decorated", "driven")]
    truths |= {"driven in a loop": 33, "driven by a coroutine": "shared", "other context": 7}
    check(others, {**truths, "all": 33, **NESTED})


# -- greenlets

GREENLETS = """
main = greenlet.getcurrent()

def block(name, mib):
    with task(name):
        a = fill(mib)
        main.switch()
        b = fill(1)

def driver():
    for name, mib in ("ten", 10), ("hundred", 100), ("lonely", 4):
        yield greenlet.greenlet(lambda name=name, mib=mib: block(name, mib))

ten, hundred, lonely = driver()
ten.switch()
hundred.switch()
with task("between"):
    a = fill(7)
nested()
ten.switch()
hundred.switch()
lonely.switch()
a = fill(30)
lonely.switch()
greenlet.greenlet(nested).switch()
greenlet.greenlet(helped).switch()
with task("loop"):  # greenlet is imported, but nothing switches to another one
    asyncio.run(asyncio.sleep(0))
    a = fill(2)
killed = greenlet.greenlet(lambda: block("killed", 5))
killed.switch()
del killed
"""


def test_greenlets(cli):
    truths = {"ten": None, "hundred": None, "lonely": None, "killed": None, "between": 7, "loop": 2}
    check(run(cli, "import greenlet" + GREENLETS), {**truths, **NESTED, **HELPED})


GEVENT = """
import gevent, gevent.event, gevent.lock
filled, done = gevent.event.Event(), gevent.event.Event()

def ten():
    with task("ten"):
        a = fill(10)
        filled.set()
        done.wait()

def hundred():
    filled.wait()
    with task("hundred"):
        a = fill(100)
        gevent.sleep(0)
        nested()
        helped()
        gevent.sleep(0)
    done.set()

with task("around"):
    gevent.joinall([gevent.spawn(ten), gevent.spawn(hundred)], raise_error=True)
with task("main"):
    a = fill(7)
with task("waits"):
    gevent.sleep(0)
"""


@pytest.mark.parametrize("patch", ("", "from gevent import monkey; monkey.patch_all()"))
def test_gevent(cli, patch):
    truths = {name: None for name in ("ten", "hundred", "around", "waits")}
    check(run(cli, GEVENT, patch), {**truths, "main": 7, **NESTED, **HELPED})


# -- generators


def test_generators(cli):
    code = """
def block(name, mib):
    with task(name):
        a = fill(mib)
        yield
        b = fill(1)

ten, hundred = block("ten", 10), block("hundred", 100)
next(ten)
next(hundred)
with task("between"):
    a = fill(7)
for generator in ten, hundred:
    list(generator)
lonely = block("lonely", 4)
next(lonely)
a = fill(30)
list(lonely)

closed, collected, cycle = block("closed", 4), block("collected", 4), block("cycle", 4)
for generator in closed, collected, cycle:
    next(generator)
    generator = None
closed.close()
del collected
around = [cycle]
around.append(around)
del cycle, around
gc.collect()

def thrown():
    try:
        yield from block("thrown", 4)
    except ValueError:
        pass
    yield

generator = thrown()
next(generator)
generator.throw(ValueError)

def loads():
    for i in range(3):
        with task("load"):  # left before the value is handed over
            a = fill(6)
        yield a

for a in loads():
    with task("use"):
        b = fill(2)
sum(load.nbytes for load in loads())
list(map(lambda load: nested(), loads()))

def stack_in_generator():
    helped()
    yield

list(stack_in_generator())
with task("whole"):
    with contextlib.ExitStack() as stack:
        opened = block("opened", 3)
        next(opened)
        nested()
        list(opened)
    a = fill(9)

class Data:
    pass

def holds(name):
    data = Data()
    kept.append(weakref.ref(data))
    with task(name):
        yield

kept = []
generator = holds("held")
next(generator)
del generator  # nothing of ours keeps the generator or its frame
assert kept[0]() is None
"""
    shared = ("ten", "hundred", "closed", "collected", "cycle", "opened", "held")
    truths = {**dict.fromkeys(shared), "lonely": "shared", "thrown": "shared", "between": 7}
    truths |= {"load": 6, "use": 2, "whole": 9, **NESTED, **HELPED}
    check(run(cli, code), truths)


def test_yield_in_an_exception_handler(cli):
    """Python 3.12 and later put handlers at the end of a function's code: behind the end of a block
    that contains the handler. Other handlers are there, too."""
    code = """
def fail():
    raise ValueError

def suspended():
    with task("except"):
        try:
            fail()
        except ValueError:
            yield
    with task("finally"):
        try:
            fail()
        except TypeError:
            pass
        finally:
            yield
            return

def in_handler():
    try:
        fail()
    except ValueError:
        with task("handler"):
            a = fill(2)
        yield

def fails():
    for i in range(2):
        try:
            with task("fails"):
                a = fill(3)
                fail()
        except ValueError:
            yield

def recovers():
    while True:
        with task("recovers"):
            a = [fill(1) for _ in range(2)]
            try:
                with contextlib.suppress(TypeError):
                    fail()
            except ValueError:
                a += [fill(2)]
            else:
                break
        try:
            yield
        except GeneratorExit:
            return

def early():
    for i in range(3):
        with task("early"):
            a = fill(5)
            if i == 1:
                continue
            if i == 2:
                return
        yield

def across():
    block = task("across")
    for i in range(2):
        if i:
            block.__exit__(None, None, None)
            return
        block.__enter__()
        yield

def enter(block):
    block.__enter__()

def leave(block):
    block.__exit__(None, None, None)

def helpers():
    for i in range(100):  # often enough for Python to specialize the calls
        block = task("helpers")
        enter(block)
        if i > 50:
            yield
        leave(block)

for generator in suspended(), in_handler(), fails(), early(), across(), helpers():
    for _ in generator:
        a = fill(50)
        del a
generator = recovers()
next(generator), next(generator)
generator.close()
"""
    truths = dict.fromkeys(("except", "finally", "across", "helpers"), "shared")
    truths |= {"handler": 2, "fails": 3, "recovers": 4, "early": 5}
    check(run(cli, code), truths)


def test_context_managers(cli):
    """Those that are made of generators, in all ways that contextlib offers."""
    code = """
class Stack(contextlib.ExitStack):
    pass

@measured("decorator")
def decorated():
    return fill(3).sum()

@contextlib.contextmanager
def twice():
    with measured("first"), measured("second"):
        a = fill(2)
        yield

@contextlib.contextmanager
def stacked():
    with Stack() as stack:
        stack.enter_context(twice())
        fill_stack(stack, "third")
        yield stack.pop_all()

decorated()
helped()
with stacked() as stack:
    a = fill(4)
    with stack:
        nested()
with contextlib.suppress(ValueError), measured("error"):
    a = fill(8)
    raise ValueError
def in_thread():
    helped()
    with twice():
        nested()
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
"""
    found = run(cli, code)
    assert {r["attribution"] for r in found} == {"exact"}
    truths = {"decorator": 3, "error": 8, **NESTED, **HELPED}
    check([r for r in found if r["task_name"] in truths], truths)


# -- threads, restarts


def test_threads(cli):
    """Loops in several threads; a block that ends in another thread; a generator that two threads
    drive."""
    code = """
gate = threading.Barrier(3)

def loop(name, mib):
    async def main():
        async def suspended():
            with task(name):
                a = fill(mib)
                await asyncio.sleep(0)

        async def alone():
            with task(f"{name} alone"):
                gate.wait()
                a = fill(mib)
                gate.wait()
            nested()

        await asyncio.gather(suspended(), alone())

    asyncio.run(main())

threads = [threading.Thread(target=loop, args=(f"loop {n}", n)) for n in (1, 2, 3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

def elsewhere(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()

plain = task("plain")
plain.__enter__()
a = fill(5)
elsewhere(plain.__exit__, None, None, None)

def block():
    with task("moved"):
        a = fill(4)
        yield

moved = block()
next(moved)
elsewhere(list, moved)
nested()
"""
    truths = {f"loop {n}": None for n in (1, 2, 3)} | {f"loop {n} alone": n for n in (1, 2, 3)}
    check(run(cli, code), {**truths, "plain": 5, "moved": None, **NESTED})


def test_the_probe_stops_and_the_process_forks_in_between(cli):
    code = """
import os
from dwsr_probe import _core

def block(name):
    with task(name):
        a = fill(3)
        yield

first, second, third = block("first"), block("second"), block("third")
next(first)
next(second)
pid = os.fork()
if pid == 0:  # blocks of the parent process end without effect
    list(first)
    nested()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
dwsr_probe.stop()
list(first)
dwsr_probe.start()
next(third)
list(second)
nested()
list(third)
print(sorted((r.task_name, r.attribution, r.alloc_peak_bytes is None)
             for r in dwsr_probe.records()))
dwsr_probe.stop()
"""
    done, _ = cli.job(START + code)
    assert done.returncode == 0, done.stderr
    expected = [("inner", "exact", False), ("outer", "exact", False), ("third", "shared", True)]
    assert done.stdout.strip() == str(expected)


def test_what_cannot_be_known_is_shared(cli):
    """A module named greenlet that is not the library. The job runs on."""
    code = """
import types

def raises():
    raise RuntimeError

with task("early"):
    a = fill(3)
    sys.modules["greenlet"] = types.SimpleNamespace(getcurrent=raises)
    with task("unknown"):
        b = fill(2)
"""
    check(run(cli, code), {"early": 5, "unknown": None})


# -- Jupyter

NOTEBOOK = [
    START + "assert dwsr_probe.start()",
    """
with task("cell"):
    a = fill(10)
    print("shown")
    display(1)
nested()
helped()
""",
    "%%time\nwith task('timed'): b = fill(4)",
    "across = task('across'); across.__enter__(); a = fill(5)",
    "across.__exit__(None, None, None)",
    """
with task("awaits"):
    a = fill(6)
    await asyncio.sleep(0)
""",
    """
async def other():
    with task("other"):
        a = fill(20)
        await asyncio.Event().wait()

background = asyncio.ensure_future(other())
await asyncio.sleep(0)
""",
    "with task('beside'): a = fill(7)",
    "background.cancel()",
    """
from dataclasses import asdict
import json
print(json.dumps([asdict(r) for r in dwsr_probe.records()], default=str))
""",
]


def test_notebook_cells(board_dir):
    """Every cell runs in a coroutine of the kernel."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code) for code in NOTEBOOK]
    )
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    found = json.loads(notebook.cells[-1].outputs[0]["text"])
    truths = {"cell": 10, "timed": 4, "beside": 7, "across": None, "awaits": None, "other": None}
    check(found, {**truths, **NESTED, **HELPED})
