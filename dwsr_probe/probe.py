"""Start and stop the probe of this process, and carry it through fork and exit.

Called by programs (`dwsr_probe.start()`), by the boot module in children of `dwsr-probe run`.
Nothing here may harm the
program: what fails is one line on stderr and a False.
"""

import atexit
import os
import sys

from dwsr_probe import _core, unseen

# now: a process without descriptors cannot import it when it fails
from dwsr_probe.advice import failure_text
from dwsr_probe.imports import forget, when_imported
from dwsr_probe.say import say_once
from dwsr_probe.settings import Settings, switched_off

_settings = None  # of the running probe, for a forked child's own one
_hooks_installed = False
_follows_children = False  # of multiprocessing
SPAWNED = "multiprocessing"  # the name of its children, until they know their own
_CONTEXTS = ("", "Fork", "Spawn", "ForkServer", "Loky", "LokyInitMain")


def start(
    period_ms=None,
    keep_peak=None,
    board_dir=None,
    alloc=None,
    alloc_from=None,
    gc=None,
    settings=None,
    expect_tasks=True,
):
    """Start the probe in this process; True if it runs, False if it cannot or is switched off
    (DWSR_PROBE=off). Options default to the environment's (see dwsr_probe.settings).

    expect_tasks: make room for tasks at once. Otherwise their first one does, and a process
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
    ):
        if value is not None:
            chosen = chosen.but(**{name: value})
    try:
        start_board(chosen, process_name())
    except OSError as error:
        if error.strerror == "start":  # it runs already
            return True
        worked = bool(chosen.run) or _settings is not None
        say_once(
            "start",
            f"{failure_text(error, chosen.board_dir, worked)}. This process runs unprobed",
            chosen,
        )
        return False
    _settings = chosen
    _install_hooks()
    if expect_tasks:
        _core.expect_tasks()
    return True


def _say_no_room(error):
    text = failure_text(error, _settings.board_dir if _settings else "", worked=True)
    say_once("room", f"{text}. The tasks of this process are not measured", _settings)


def start_board(settings, name):
    """The bare start; OSError(errno, what was being done) if it cannot."""
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
    if settings.gc != "none":
        import gc

        _core.use_gc(gc.collect, settings.gc == "around")
    else:
        _core.use_gc(None, False)
    if settings.alloc:
        unseen.watch()
    when_imported("multiprocessing.util", _follow_children)
    if name == SPAWNED:
        when_imported("multiprocessing.spawn", _follow_spawned)
    if "cupy" in sys.modules:
        when_imported("cupy", _hook_cupy_late)
    else:
        when_imported("cupy", _hook_cupy)


def _c_text(text):
    return os.fsencode(text).replace(b"\0", b"")


def _hook_cupy(cupy, at_import=True):
    from dwsr_probe.gpu import cupy_hook

    cupy_hook.hook(cupy, at_import)


def _hook_cupy_late(cupy):
    _hook_cupy(cupy, at_import=False)


def _unhook_cupy():
    forget(_hook_cupy, _hook_cupy_late)
    module = sys.modules.get("dwsr_probe.gpu.cupy_hook")
    if module is not None:
        module.unhook()


def run_name():
    """Of the `dwsr-probe run` that collects this process's board; None without one."""
    return _settings.run or None if _settings is not None else None


def stop(keep_board=False):
    """Stop the probe. Tasks still running are recorded as `cancelled`. The board goes too,
    unless `dwsr-probe run` collects it or the caller keeps it."""
    global _settings
    _core.stop(remove=_settings is not None and not _settings.run and not keep_board)
    unseen.unwatch()
    forget(_follow_children, _follow_spawned)
    _unhook_cupy()
    _settings = None  # children that are forked from here on are not probed either


def program_of(argv):
    """What an interpreter is told to run: ("-c", code), ("-m", module), ("script", path or "-"),
    or ("", "") of a bare one."""
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


def process_name(argv=None):
    """What to call this process in tables: its script, module, or the interpreter."""
    argv = sys.orig_argv if argv is None else argv
    kind, value = program_of(argv)
    if kind == "-c":
        return (
            "fork server"
            if "multiprocessing.forkserver import" in value
            else SPAWNED
            if "multiprocessing" in value
            else "python -c"
        )
    if kind == "-m":
        return value
    if kind == "script":
        return os.path.basename(value) if value != "-" else "python -"
    return os.path.basename(argv[0]) if argv else "python"


def is_housekeeping(argv=None):
    """The resource tracker of multiprocessing, or of joblib's loky: it runs nothing of the job,
    and nobody wants to read about it."""
    kind, value = program_of(sys.orig_argv if argv is None else argv)
    return kind == "-c" and ".resource_tracker import main" in value


def child_name(name):
    """What people call a process of multiprocessing: "worker 0" by its number, "worker 0.1" in a
    pool within a pool; a name that somebody gave it as it is."""
    kind, _, numbers = name.rpartition("-")
    for suffix in ("Process", "PoolWorker"):
        if (
            kind.endswith(suffix)
            and kind.removesuffix(suffix) in _CONTEXTS
            and all(number.isdecimal() for number in numbers.split(":"))
        ):
            return "worker " + ".".join(str(int(number) - 1) for number in numbers.split(":"))
    return name


def _install_hooks():
    global _hooks_installed
    if _hooks_installed:
        return
    _hooks_installed = True
    _core.use_no_room(_say_no_room)
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
    atexit.register(_at_exit)


class _Anchor:
    """multiprocessing keeps its after-fork callbacks by weak reference to an object."""


_anchor = _Anchor()


def _monitor():
    return sys.modules.get("dwsr_probe.gpu.monitor")


def _before_fork():
    monitor = _monitor()
    if monitor is not None:
        monitor.stop()
    _core.fork_announced()


def _after_fork_in_parent():
    # which counts threads after this, and warns; 3.12 does before
    _core.fork_done(later=sys.version_info >= (3, 13))
    monitor = _monitor()
    if monitor is not None:
        monitor.start_again()


def _after_fork_in_child():
    monitor = _monitor()
    if monitor is not None:
        monitor.forked()
    if _settings is None:
        return
    start(settings=_settings, expect_tasks=False)


def _follow_children(util):
    """Callbacks registered like this run in every forked child of multiprocessing, once it knows
    its name and its finalizers are cleared."""
    global _follows_children
    if not _follows_children:
        util.register_after_fork(_anchor, _begin_as_child)
    _follows_children = True


def _begin_as_child(_):
    if _core.active():
        # It leaves through os._exit, which skips atexit but not multiprocessing's own finalizers.
        sys.modules["multiprocessing.util"].Finalize(None, _at_exit, exitpriority=-100)
        _call_it(sys.modules["multiprocessing.process"].current_process().name)


def _follow_spawned(spawn):
    """In a spawned child: it is told its name once, with what it needs to begin."""
    original = spawn.prepare

    def prepare(data):
        spawn.prepare = original
        try:
            _call_it(data["name"])
        except Exception:
            pass
        return original(data)

    spawn.prepare = prepare


def _call_it(name):
    name = child_name(str(name))[:64]
    # Written out: json would be one more module in the job.
    _core.set_facts(
        (
            '{"name":"' + "".join(c if c >= " " and c not in '"\\' else "?" for c in name) + '"}'
        ).encode("utf-8", "replace")
    )


def _at_exit():
    monitor = _monitor()
    if monitor is not None:
        monitor.stop()
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    _core.stop(
        error=error is not None, at_exit=True, remove=_settings is not None and not _settings.run
    )
