"""Start and stop the probe of this process, and keep it working across fork and exit.

Called by programs (`dwsr_probe.start()`), by Dask's preload and plugin, and by the boot module in
children of `dwsr-probe run`. A failure prints one line on stderr and never harms the program.
"""

from __future__ import annotations

import atexit
import os
import sys

from dwsr_probe import _core, follow

# Imported now: a process that has run out of descriptors cannot import it when the start fails.
from dwsr_probe.advice import failure_text
from dwsr_probe.imports import forget, when_imported
from dwsr_probe.say import say_once
from dwsr_probe.settings import Settings, switched_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

# What a process of multiprocessing is called until it knows its own name
SPAWNED_NAME = "multiprocessing"
# The words before "Process" in the default names of multiprocessing's and loky's processes
_CONTEXTS = ("", "Fork", "Spawn", "ForkServer", "Loky", "LokyInitMain")

_settings: Settings | None = None  # of the running probe; a forked child starts with the same
_hooks_installed = False
_follows_forks = False  # of multiprocessing


def start(
    period_ms: float | None = None,
    keep_peak: bool | None = None,
    board_dir: str | None = None,
    alloc: bool | None = None,
    alloc_from: int | None = None,
    gc: str | None = None,
    params: bool | None = None,
    worker_model: bool | None = None,
    settings: Settings | None = None,
    expect_tasks: bool = True,
) -> bool:
    """Start the probe in this process. Returns True if the probe runs, False if it cannot start or
    is switched off (DWSR_PROBE=off). Options default to those of the environment
    (dwsr_probe.settings).

    expect_tasks: make room for tasks at once. Otherwise the first task makes room, and a process
    without tasks stays small.
    """
    global _settings
    if switched_off():
        return False
    chosen = settings or Settings.from_environ()
    for name, value in (
        ("board_dir", board_dir),
        ("period_ms", period_ms),
        ("keep_peak", keep_peak),
        ("alloc", alloc),
        ("alloc_from", alloc_from),
        ("gc", gc),
        ("params", params),
        ("worker_model", worker_model),
    ):
        if value is not None:
            chosen = chosen.replace(**{name: value})
    try:
        start_board(chosen, process_name())
    except OSError as error:
        if error.strerror == "start":  # the probe runs already
            return True
        worked_before = bool(chosen.run) or _settings is not None
        say_once(
            "start",
            f"{failure_text(error, chosen.board_dir, worked_before)}. This process runs unprobed",
            chosen,
        )
        return False
    _settings = chosen
    _install_hooks()
    if expect_tasks:
        _core.make_room_for_tasks()
    return True


def _say_no_room(error: OSError) -> None:
    text = failure_text(error, _settings.board_dir if _settings else "", worked_before=True)
    say_once("room", f"{text}. The tasks of this process are not measured", _settings)


def start_board(settings: Settings, name: str) -> None:
    """Make the board, start the sampler and register the hooks on imports. Raises OSError(errno,
    the step that failed)."""
    _core.start(
        directory=_c_text(settings.board_dir),
        run=_c_text(settings.run),
        host=_c_text(os.uname().nodename),
        task_name=_c_text(name),
        worker=_c_text(settings.worker),
        python=_c_text(sys.version.split()[0]),
        period_ns=round(settings.period_ms * 1e6),
        keep_peak=settings.keep_peak,
        alloc=settings.alloc,
        alloc_from=settings.alloc_from,
    )
    _core.use_params(settings.params)
    if settings.gc != "none":
        import gc

        _core.use_gc(gc.collect, settings.gc == "around")
    else:
        _core.use_gc(None, False)
    if settings.alloc:
        follow.watch()
    lost = "the ends of forked processes are not recorded, nor their names"
    when_imported("multiprocessing.util", _follow_forks, lost)
    if name == SPAWNED_NAME:
        lost = "this process has no name of its own in tables"
        when_imported("multiprocessing.spawn", _follow_spawned, lost)
    hook_cupy = _hook_cupy_late if "cupy" in sys.modules else _hook_cupy
    when_imported("cupy", hook_cupy, "device memory is not measured")


def _c_text(text: str) -> bytes:
    return os.fsencode(text).replace(b"\0", b"")


def _hook_cupy(cupy: ModuleType, at_import: bool = True) -> None:
    from dwsr_probe.gpu import cupy_hook

    cupy_hook.hook(cupy, at_import)


def _hook_cupy_late(cupy: ModuleType) -> None:
    _hook_cupy(cupy, at_import=False)


def _unhook_cupy() -> None:
    forget(_hook_cupy, _hook_cupy_late)
    module = sys.modules.get("dwsr_probe.gpu.cupy_hook")
    if module is not None:
        module.unhook()


def run_name() -> str | None:
    """The name of the `dwsr-probe run` that collects this process's board; None without one."""
    return _settings.run or None if _settings is not None else None


def wants_worker_model() -> bool:
    """Whether Dask workers of this process learn and forecast (worker_model/)."""
    return _settings is not None and _settings.worker_model


def stop(keep_board: bool = False) -> None:
    """Stop the probe. Tasks still running are recorded as `cancelled`. The board is removed
    unless `dwsr-probe run` collects it or keep_board is set."""
    global _settings
    _core.stop(remove=_settings is not None and not _settings.run and not keep_board)
    follow.unwatch()
    forget(_follow_forks, _follow_spawned)
    _unhook_cupy()
    _settings = None  # children that are forked from now on are not probed either


def program_of(argv: Sequence[str]) -> tuple[str, str]:
    """What a command line of Python runs: ("-c", code), ("-m", module), ("script", path or "-"),
    or ("", "") for an interactive interpreter."""
    rest = iter(argv[1:])
    for word in rest:
        if word == "--check-hash-based-pycs":
            next(rest, None)
        elif not word.startswith("-") or word == "-":
            return "script", word
        elif not word.startswith("--"):
            for at, letter in enumerate(word[1:], 2):
                if letter in "cmWX":  # its value is the rest of the word, or the next word
                    value = word[at:] or next(rest, "")
                    if letter in "cm":
                        return f"-{letter}", value
                    break
    return "", ""


def process_name(argv: Sequence[str] | None = None) -> str:
    """The name of this process in tables: its script, its module, or the interpreter."""
    argv = sys.orig_argv if argv is None else argv
    kind, value = program_of(argv)
    if kind == "-c":
        if "multiprocessing.forkserver import" in value:
            return "fork server"
        return SPAWNED_NAME if "multiprocessing" in value else "python -c"
    if kind == "-m":
        return value
    if kind == "script":
        return os.path.basename(value) if value != "-" else "python -"
    return os.path.basename(argv[0]) if argv else "python"


def is_housekeeping(argv: Sequence[str] | None = None) -> bool:
    """Whether this is a resource tracker of multiprocessing or of joblib's loky. Such a process
    runs no code of the job and is not probed."""
    kind, value = program_of(sys.orig_argv if argv is None else argv)
    return kind == "-c" and ".resource_tracker import main" in value


def child_name(name: str) -> str:
    """The name in tables of a process of multiprocessing. Default names become "worker 0", or
    "worker 0.1" in a pool within a pool; a name that the program has chosen stays."""
    kind, _, numbers = name.rpartition("-")
    for suffix in ("Process", "PoolWorker"):
        if (
            kind.endswith(suffix)
            and kind.removesuffix(suffix) in _CONTEXTS
            and all(number.isdecimal() for number in numbers.split(":"))
        ):
            return "worker " + ".".join(str(int(number) - 1) for number in numbers.split(":"))
    return name


def _install_hooks() -> None:
    global _hooks_installed
    if _hooks_installed:
        return
    _hooks_installed = True
    _core.on_missing_room(_say_no_room)
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
    atexit.register(_at_exit)


class _Anchor:
    """multiprocessing keeps an after-fork callback as long as an object that comes with it."""


_anchor = _Anchor()


def _monitor() -> Any:
    return sys.modules.get("dwsr_probe.gpu.monitor")


def _before_fork() -> None:
    monitor = _monitor()
    if monitor is not None:
        monitor.stop()
    _core.announce_fork()


def _after_fork_in_parent() -> None:
    # Python warns of forks in programs with threads. From 3.13 on it counts them after this.
    _core.resume_after_fork(later=sys.version_info >= (3, 13))
    monitor = _monitor()
    if monitor is not None:
        monitor.start_again()


def _after_fork_in_child() -> None:
    monitor = _monitor()
    if monitor is not None:
        monitor.reset_after_fork()
    if _settings is None:
        return
    start(settings=_settings, expect_tasks=False)


def _follow_forks(util: Any) -> None:
    """multiprocessing.util calls the callback in each forked child, after the child has got its
    name and has cleared its finalizers."""
    global _follows_forks
    if not _follows_forks:
        util.register_after_fork(_anchor, _begin_forked)
    _follows_forks = True


def _begin_forked(_: object) -> None:
    if _core.active():
        util: Any = sys.modules["multiprocessing.util"]
        process: Any = sys.modules["multiprocessing.process"]
        # The child ends with os._exit, which skips atexit but not multiprocessing's finalizers.
        util.Finalize(None, _at_exit, exitpriority=-100)
        _publish_name(process.current_process().name)


def _follow_spawned(spawn: Any) -> None:
    """A spawned child receives its name in the call of multiprocessing.spawn.prepare."""
    original = spawn.prepare

    def prepare(data: dict[str, Any]) -> Any:
        spawn.prepare = original
        try:
            _publish_name(data["name"])
        except Exception:
            pass
        return original(data)

    spawn.prepare = prepare


def _publish_name(name: object) -> None:
    text = child_name(str(name))[:64]
    # Without json, which would be one more module in the job.
    safe = "".join(c if c >= " " and c not in '"\\' else "?" for c in text)
    _core.set_facts(f'{{"name":"{safe}"}}'.encode("utf-8", "replace"))


def _at_exit() -> None:
    monitor = _monitor()
    if monitor is not None:
        monitor.stop()
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    _core.stop(
        error=error is not None, at_exit=True, remove=_settings is not None and not _settings.run
    )
