"""Budgets of single parts: an allocation, a fork, a start, a board, a record. Functions of Runs,
called by the rows of tests/bench/budgets.py."""

import os
import shutil
from pathlib import Path

from tests.bench import PY, forks, gpu, in_fresh_python, startup
from tests.bench.figure import Figure, NotMeasured, difference

CUPY = Path(".venv-cupy-13/bin/python")
POOL = "MemoryPool, cached"  # of gpu.once
DEVICES = 8


def cupy_python():
    if not CUPY.exists():
        raise NotMeasured("CuPy venv is missing; make .venv-cupy-13/.installed makes it")
    return str(CUPY.absolute())


def malloc_pair(size, count):
    def more(runs):
        code = f"from tests.bench.accounting_parts import pairs; print(*pairs({size}, {count}))"
        rows = [in_fresh_python(code) for _ in range(runs.rounds(9, 2))]
        bare, ours = zip(*rows, strict=True)
        return difference(bare, ours, said=f"bare {min(bare):.1f} ns")

    return more


def cupy_pair(runs):
    python, hook = cupy_python(), gpu.compile_hook()
    try:
        version, results = gpu.results_of(python, hook, runs.rounds(15, 3))
    finally:
        shutil.rmtree(hook)
    found = results[POOL]
    return difference(found["bare"], found["hook"], 1e-3, f"CuPy {version} on the stand-in")


def fork(mib):
    """Medians of each process; the least of all forks."""

    def more(runs):
        bare, probed = forks.in_turn(mib, runs.rounds(9, 2))
        (bare, bare_least, _), (ours, least, _) = (
            zip(*rows, strict=True) for rows in (bare, probed)
        )
        figure = difference(bare, ours)
        return Figure(figure.values, min(least) - min(bare_least))

    return more


def _start(runs, column):
    rounds = runs.rounds(40, 5)
    bare, probed = startup.in_turn(rounds)
    return difference([row[column] for row in bare], [row[column] for row in probed])


def start_time(runs):
    return _start(runs, 0)


def start_resident(runs):
    return _start(runs, 2)


def board_sizes():
    """Prints bytes of the board's files: of this process, which has a task, and of what a forked
    child without a task adds. In a fresh process."""
    import dwsr_probe

    def files():
        folder = Path(os.environ["DWSR_PROBE_BOARD_DIR"])
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    assert dwsr_probe.start()
    with dwsr_probe.task("board"):
        own = files()
    print(own, flush=True)
    child = os.fork()
    if child == 0:
        print(files() - own, flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def _board(which):
    code = "from tests.bench.budget_parts import board_sizes; board_sizes()"
    return Figure([in_fresh_python(code)[which] / 2**20])


def board_with_tasks(runs):
    return _board(0)


def board_of_child(runs):
    return _board(1)


def longest_record(devices=0):
    """Prints the bytes that the longest task takes in the ring of records. In a fresh process.

    devices: GPUs of the stand-in that the task allocates on.
    """
    if devices:
        from tests import standin

        standin.start(devices=devices)
        import cupy
    import numpy as np

    import dwsr_probe

    assert dwsr_probe.start(period_ms=1000)
    text, most = "x" * 10_000, 0
    wide = np.zeros((1,) * 32, [(f"field_{n}" * 4, np.float64) for n in range(40)])
    several = [np.zeros((1 + n % 2,) * 24) for n in range(300)]

    def head():
        return dwsr_probe.snapshot().live["records_head"]

    for name in ("x", text):
        for key in (None, text):
            for inputs in ([], [wide], several):
                for output in (None, wide, several[0]):
                    before = head()
                    try:
                        with dwsr_probe.task(name, inputs, key=key) as block:
                            held = []
                            for device in range(devices):
                                with cupy.cuda.Device(device):
                                    held.append(cupy.cuda.alloc(1 << 20))
                            block.output = output
                            np.empty(1 << 50)  # the record has what could not be had
                    except MemoryError:
                        pass
                    most = max(most, head() - before)
    print(most)


def record_bytes(runs):
    """A record that lies across the end of the ring would look longer: so few do not reach it."""
    call = "from tests.bench.budget_parts import longest_record; longest_record({})"
    try:
        python, devices = cupy_python(), DEVICES
    except NotMeasured:
        python, devices = PY, 0
    (found,) = in_fresh_python(call.format(devices), python=python)
    return Figure([found / 1024], said=f"with {devices} GPUs" if devices else "no GPU")
