import os
import platform
import sys
import sysconfig
from itertools import pairwise

import click

OK, LIMITED, FAILED = "ok", "limited", "failed"


@click.command("doctor")
def command():
    """Say what works on this machine, what does not, why, and what to do. Exit code 1 if the
    probe cannot work."""
    worst = OK
    for check in CHECKS:
        found = check()
        if found is None:
            continue
        state, title, text, advice = found
        mark = {OK: "✓", LIMITED: "!", FAILED: "✗"}[state]
        click.echo(
            f"{click.style(mark, fg={OK: 'green', LIMITED: 'yellow', FAILED: 'red'}[state])}"
            f" {title:<18} {text}"
        )
        if advice:
            click.echo(f"  {'':<18} → {advice}")
        worst = max(worst, state, key=(OK, LIMITED, FAILED).index)
    sys.exit(1 if worst == FAILED else 0)


def _kernel():
    release = platform.release()
    if platform.system() != "Linux":
        return FAILED, "kernel", platform.platform(), "dwsr-probe works on Linux only"
    try:
        recent = tuple(int(part) for part in release.split(".")[:2]) >= (4, 0)
    except ValueError:
        recent = True
    if not recent:
        return (
            LIMITED,
            "kernel",
            f"Linux {release}",
            "the high-water mark can be reset since 4.0: peaks will be sampled",
        )
    return (
        OK,
        "kernel",
        f"Linux {release}, {os.cpu_count()} CPU{'' if os.cpu_count() == 1 else 's'}",
        None,
    )


def _python():
    from dwsr_probe import __version__, _core

    threads = "free-threaded, " if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    # A shared libpython and a static one are both fine; said because bug reports need it.
    linked = "shared" if sysconfig.get_config_var("Py_ENABLE_SHARED") else "static"
    return (
        OK,
        "python",
        (
            f"{platform.python_version()}, {threads}{linked} libpython, {platform.machine()};"
            f" dwsr-probe {__version__}, board version {_core.BOARD_VERSION}"
        ),
        None,
    )


def _switch():
    from dwsr_probe.settings import SWITCH, switched_off

    if not switched_off():
        return None
    return (
        LIMITED,
        "switch",
        f"{SWITCH}=off is set: nothing is measured",
        f"unset {SWITCH} to measure; what follows is as without it",
    )


def _board_directory():
    from dwsr_probe import _core
    from dwsr_probe.advice import failure_text
    from dwsr_probe.board import Board, list_boards
    from dwsr_probe.settings import default_board_directory

    directory = default_board_directory()
    try:
        _core.try_board(os.fsencode(directory))
    except OSError as error:
        return FAILED, "board directory", directory, failure_text(error, directory)
    space = os.statvfs(directory)
    text = (
        f"{directory}, {space.f_bavail * space.f_frsize >> 20:,} MiB free"
        f" ({_core.BOARD_BYTES / 2**20:.1f} MiB per process that runs tasks)"
    )
    dead = []
    for path in list_boards(directory):
        try:
            board = Board(path)
            if not board.is_alive(board.live()):
                dead.append(path)
        except _core.BoardError:
            dead.append(path)
    if dead:
        return (
            LIMITED,
            "board directory",
            f"{text}; {len(dead)} left by processes that are gone",
            f"read one with `dwsr-probe report {dead[0]}`, then remove them",
        )
    return OK, "board directory", text, None


def _folder():
    """Where this dwsr_probe is imported from."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _like_ours():
    """First line of a script for `python -c`: import the package that we are, not one in the
    current directory."""
    return (
        ""
        if os.path.samefile(".", _folder())
        else "import sys; sys.path = [place for place in sys.path if place]\n"
    )


def _package():
    """Only where programs that are started here would import another one."""
    here = os.path.join(os.getcwd(), "dwsr_probe", "__init__.py")
    if not os.path.isfile(here) or os.path.samefile(
        os.path.dirname(os.path.dirname(here)), _folder()
    ):
        return None
    return (
        LIMITED,
        "package",
        f"installed in {_folder()}, but the current directory has a source tree of the same name",
        (
            "`python -c`, `python -m` and scripts of this directory import the source tree: work in"
            " another directory, or `pip install -e .`"
        ),
    )


def _trial():
    """Start the probe in a fresh interpreter for 0.3 s: what it reports is what a job would get."""
    import json
    import subprocess

    script = (
        "import dwsr_probe, json, time; from dwsr_probe import _core; from dwsr_probe.board import"
        " Board\n"
        "assert dwsr_probe.start()\n"
        "end = time.monotonic() + 0.3\n"
        "with dwsr_probe.task('trial'):\n"
        # memory moves, so the sampler keeps its base period
        "    while time.monotonic() < end: bytearray(4 << 20)\n"
        "b = Board(_core.board_path()); s, _ = b.samples(0)\n"
        "print(json.dumps([b.header, b.live(), [x[0] for x in s if x[3] =="
        " b.header['period_ns']]]))\n"
    )
    environ = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("DWSR_PROBE") or k.endswith("BOARD_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", _like_ours() + script],
        capture_output=True,
        text=True,
        env=environ,
        timeout=60,
    )
    return (
        json.loads(done.stdout)
        if done.returncode == 0
        else _line_of(done.stderr.strip().splitlines())
    )


def _line_of(lines):
    """What we said, else the last line of a traceback."""
    return ([line for line in lines if line.startswith("dwsr-probe: ")] or lines)[-1:]


_trial_result = None


def _trial_once():
    global _trial_result
    if _trial_result is None:
        try:
            _trial_result = _trial()
        except Exception as error:
            _trial_result = [str(error)]
    return _trial_result


def _peaks():
    from dwsr_probe import _core

    result = _trial_once()
    if len(result) != 3:
        return (
            FAILED,
            "peaks",
            "the trial failed: " + " ".join(map(str, result)),
            (
                "see the board directory above"
                if "dwsr-probe: " in str(result)
                else (
                    f"a traceback shows where: {sys.executable} -c 'import dwsr_probe;"
                    " dwsr_probe.start()'"
                )
            ),
        )
    header, live, _ = result
    error = f"the kernel's counters are within {header['rss_error_bytes'] / 2**20:.2f} MiB here"
    if live["rss_source"] == _core.RSS_KERNEL:
        return (
            OK,
            "peaks",
            f"from the kernel's high-water mark (/proc/self/clear_refs works); {error}",
            None,
        )
    return (
        LIMITED,
        "peaks",
        f"sampled: /proc/self/clear_refs cannot be written here; {error}",
        (
            "short peaks may be missed; in a container allow writing to /proc/self/clear_refs, or"
            " sample faster with `run --period`"
        ),
    )


def _allocations():
    from dwsr_probe import _core

    provider, holds = _core.try_accounting()
    name = next(
        (kind for kind in ("jemalloc", "mimalloc", "tcmalloc") if kind in provider),
        "glibc" if "libc.so" in provider else provider,
    )
    if holds:
        return OK, "allocations", f"each task's own are accounted; malloc is {name}", None
    return (
        LIMITED,
        "allocations",
        "cannot be accounted: no call slot of this interpreter leads to malloc",
        "another tool (memray, for one) holds them, or the interpreter is linked statically",
    )


def _pyarrow():
    """Only where it is installed: an allocator inside a library is the one thing that the
    accounting does not see."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        return None
    pool = os.environ.get("ARROW_DEFAULT_MEMORY_POOL")
    if pool == "system":
        return (
            OK,
            "pyarrow",
            "allocates with malloc (ARROW_DEFAULT_MEMORY_POOL=system): accounted",
            None,
        )
    return (
        LIMITED,
        "pyarrow",
        (
            f"its own allocator ({pool or 'mimalloc by default'}) is not seen; tasks that use it"
            " are marked `shared`"
        ),
        "set ARROW_DEFAULT_MEMORY_POOL=system to have its memory accounted",
    )


def _dask():
    import importlib.util

    if importlib.util.find_spec("distributed") is None:
        return None
    import distributed
    from distributed import worker

    from dwsr_probe.dask.functions import cost_of, unknown_names

    unknown = unknown_names(worker)
    if unknown:
        return (
            LIMITED,
            "dask",
            f"distributed {distributed.__version__} has changed {', '.join(unknown)}",
            f"{cost_of(unknown)}. Is there a newer dwsr-probe?",
        )
    return (
        OK,
        "dask",
        f"distributed {distributed.__version__}: tasks are measured in their own threads",
        None,
    )


def _notebook():
    """Only where pandas is: who has none uses the command line."""
    import importlib.util

    if importlib.util.find_spec("pandas") is None:
        return None
    if importlib.util.find_spec("bokeh") is None:
        return (
            LIMITED,
            "notebooks",
            "DataFrames only: Bokeh is not installed",
            "for plots and pages: pip install 'dwsr-probe[report]'",
        )
    pandas_plots = (
        ""
        if importlib.util.find_spec("matplotlib")
        else "; pandas' own (frame.plot.hist and the like) need matplotlib, which is not installed"
    )
    return OK, "notebooks", f"DataFrames, plots and pages{pandas_plots}", None


def _cupy():
    """In a fresh interpreter: CuPy takes seconds and memory to import."""
    import importlib.util
    import subprocess

    if importlib.util.find_spec("cupy") is None:
        return None
    script = (
        "import dwsr_probe, sys; assert dwsr_probe.start(); import cupy; from dwsr_probe.gpu import"
        " cupy_hook\nprint(cupy.__version__, cupy_hook.is_hooked())\ntry:"
        " print(cupy.cuda.runtime.getDeviceCount())\nexcept Exception as error: print(f'no device:"
        " {error}')\n"
    )
    environ = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("DWSR_PROBE") or k.endswith("BOARD_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", _like_ours() + script],
        capture_output=True,
        text=True,
        env=environ,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) < 2:
        return (
            LIMITED,
            "cupy",
            "cannot be imported: " + " ".join(done.stderr.strip().splitlines()[-1:]),
            "device memory is not measured without it",
        )
    version, hooked = lines[0].split()
    if hooked != "True":
        return (
            LIMITED,
            "cupy",
            f"{version}: its allocator could not be hooked",
            "device memory of tasks is not measured. Is there a newer dwsr-probe?",
        )
    if not lines[1].isdigit():
        return LIMITED, "cupy", f"{version}: its allocators are hooked; {lines[1]}", None
    return (
        OK,
        "cupy",
        f"{version}: its allocators are hooked; {lines[1]} device{'s' * (lines[1] != '1')}",
        None,
    )


def _nvml():
    import importlib.util

    if importlib.util.find_spec("pynvml") is None and importlib.util.find_spec("cupy") is None:
        return None  # nobody wants a GPU here
    from dwsr_probe.gpu.nvml import ADVICE, Nvml

    nvml = Nvml()
    if nvml.open() not in ("ok", "permission denied"):
        return LIMITED, "nvml", f"{nvml.state}", ADVICE.get(nvml.state)
    devices = [
        f"{name} ({total / 2**30:.1f} GiB, {uuid})" for uuid, name, total in nvml.devices() if total
    ]
    nvml.close()
    return OK, "nvml", "; ".join(devices) or "no device", None


def _limit():
    import psutil

    from dwsr_probe import _core

    total, limit = psutil.virtual_memory().total, _core.memory_limit()
    if limit is None:
        return (
            LIMITED,
            "memory limit",
            "neither a cgroup limit nor the machine's memory can be read",
            "is /proc mounted?",
        )
    kind = "of the cgroup" if limit < total else "the whole machine, no cgroup limit below it"
    return OK, "memory limit", f"{limit / 2**30:.1f} GiB ({kind})", None


def _sampler():
    result = _trial_once()
    if len(result) != 3:
        return FAILED, "sampler", "the trial failed", None
    header, live, times = result
    if len(times) < 3:
        return (
            LIMITED,
            "sampler",
            f"took {len(times)} sample{'' if len(times) == 1 else 's'} in 0.3 s",
            "the machine is overloaded; task peaks do not depend on the sampler",
        )
    gaps = sorted(b - a for a, b in pairwise(times))
    rate = 1e9 * len(gaps) / (times[-1] - times[0])
    p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] / 1e6
    text = (
        f"{rate:,.0f} samples/s of {1e9 / header['period_ns']:,.0f} asked for, p99 gap {p99:.2f}"
        f" ms, {live['samples_late']} late"
    )
    if rate < 0.5e9 / header["period_ns"]:
        return (
            LIMITED,
            "sampler",
            text,
            "the machine is overloaded; task peaks do not depend on the sampler",
        )
    return OK, "sampler", text, None


def _network_store():
    from dwsr_probe.store import filesystem_of, is_network

    kind = filesystem_of(".")
    if is_network(kind):
        return (
            LIMITED,
            "run directory",
            f"the current directory is on {kind}",
            "the run store works there without WAL; -o DIR on a local disk is faster",
        )
    return (
        OK,
        "run directory",
        f"the current directory is on {kind or 'an unknown filesystem'}",
        None,
    )


CHECKS = (
    _kernel,
    _python,
    _package,
    _switch,
    _board_directory,
    _peaks,
    _allocations,
    _pyarrow,
    _dask,
    _notebook,
    _cupy,
    _nvml,
    _limit,
    _sampler,
    _network_store,
)
