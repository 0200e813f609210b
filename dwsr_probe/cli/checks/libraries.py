"""Checks of `doctor` on other libraries, each only where the library is installed."""

from __future__ import annotations

from importlib.util import find_spec

from dwsr_probe.cli.checks import Finding, limited, ok
from dwsr_probe.cli.checks.trial import run_python

_CUPY_SCRIPT = """\
import dwsr_probe

assert dwsr_probe.start()
import cupy
from dwsr_probe.gpu import cupy_hook

print(cupy.__version__, cupy_hook.is_hooked())
try:
    print(cupy.cuda.runtime.getDeviceCount())
except Exception as error:
    print(f"no device: {error}")
"""

_PYARROW_SCRIPT = """\
import dwsr_probe

assert dwsr_probe.start()
import pyarrow
from dwsr_probe.follow import arrow

print(pyarrow.__version__, pyarrow.default_memory_pool().backend_name)
print(arrow.is_followed(), arrow.are_threads_followed())
"""


def pyarrow() -> Finding | None:
    """In a fresh interpreter: whether the memory of its own allocator is accounted, and whose work
    its threads do."""
    if find_spec("pyarrow") is None:
        return None
    done = run_python(_PYARROW_SCRIPT, timeout_s=120)
    words = done.stdout.split()
    if done.returncode or len(words) != 4:
        return limited(
            "pyarrow",
            "cannot be imported: " + "".join(done.stderr.strip().splitlines()[-1:]),
        )
    version, pool, followed, threads_followed = words
    if pool != "system" and followed != "True":
        return limited(
            "pyarrow",
            f"{version}: memory of its own allocator ({pool}) is not seen; tasks that use it are"
            " marked `shared`",
            "set ARROW_DEFAULT_MEMORY_POOL=system to have its memory accounted",
        )
    accounted = (
        "allocates with malloc, which is accounted"
        if pool == "system"
        else f"memory of its own allocator ({pool}) is accounted"
    )
    if threads_followed == "True":
        return ok("pyarrow", f"{version}: {accounted}; its threads work for their tasks")
    return limited(
        "pyarrow",
        f"{version}: {accounted}; its threads count for a task while it runs alone, otherwise the"
        " tasks are marked `shared` (native-threads)",
        "one thread per process has exact figures",
    )


def dask() -> Finding | None:
    if find_spec("distributed") is None:
        return None
    import distributed
    from distributed import worker

    from dwsr_probe.dask.functions import describe_unknown, unknown_names

    unknown = unknown_names(worker)
    if unknown:
        return limited(
            "dask",
            f"distributed {distributed.__version__} has changed {', '.join(unknown)}",
            f"{describe_unknown(unknown)}. Is there a newer dwsr-probe?",
        )
    return ok(
        "dask", f"distributed {distributed.__version__}: tasks are measured in their own threads"
    )


def notebook() -> Finding | None:
    """Only where pandas is installed: without it there are no DataFrames."""
    if find_spec("pandas") is None:
        return None
    if find_spec("bokeh") is None:
        return limited(
            "notebooks",
            "DataFrames only: Bokeh is not installed",
            "for plots and pages: pip install 'dwsr-probe[report]'",
        )
    pandas_plots = (
        ""
        if find_spec("matplotlib")
        else "; pandas' own (frame.plot.hist and the like) need matplotlib, which is not installed"
    )
    return ok("notebooks", f"DataFrames, plots and pages{pandas_plots}")


def cupy() -> Finding | None:
    """In a fresh interpreter, because importing CuPy takes seconds and memory."""
    if find_spec("cupy") is None:
        return None
    done = run_python(_CUPY_SCRIPT, timeout_s=120)
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) < 2:
        return limited(
            "cupy",
            "cannot be imported: " + "".join(done.stderr.strip().splitlines()[-1:]),
            "device memory is not measured without it",
        )
    (version, hooked), count = lines[0].split(), lines[1]
    if hooked != "True":
        return limited(
            "cupy",
            f"{version}: its allocator could not be hooked",
            "device memory of tasks is not measured. Is there a newer dwsr-probe?",
        )
    if not count.isdigit():
        return limited("cupy", f"{version}: its allocators are hooked; {count}")
    devices = f"{count} device{'' if count == '1' else 's'}"
    return ok("cupy", f"{version}: its allocators are hooked; {devices}")


def nvml() -> Finding | None:
    """Only where there is a sign that somebody wants a GPU."""
    if find_spec("pynvml") is None and find_spec("cupy") is None:
        return None
    from dwsr_probe.gpu.nvml import ADVICE, Nvml

    driver = Nvml()
    if driver.open() not in ("ok", "permission denied"):
        return limited("nvml", driver.state, ADVICE.get(driver.state))
    devices = [
        f"{name} ({total / 2**30:.1f} GiB, {uuid})"
        for uuid, name, total in driver.devices()
        if total
    ]
    driver.close()
    return ok("nvml", "; ".join(devices) or "no device")
