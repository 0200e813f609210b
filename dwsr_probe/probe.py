"""Start and stop the probe of this process, and carry it through fork and exit.

Called by programs (`dwsr_probe.start()`), by the boot module in children of `dwsr-probe run`. Nothing here may harm the
program: what fails is one line on stderr and a False.
"""
import atexit
import os
import sys

from dwsr_probe import _core, unseen
from dwsr_probe.advice import failure_text  # now: a process without descriptors cannot import it when it fails
from dwsr_probe.imports import forget, when_imported
from dwsr_probe.say import say_once
from dwsr_probe.settings import Settings

_settings = None  # of the running probe, for a forked child's own one
_hooks_installed = False


def start(period_ms=None, keep_peak=None, board_dir=None, alloc=None, alloc_from=None, gc=None, settings=None):
    """Start the probe in this process; True if it runs. Options default to the environment's (see dwsr_probe.settings)."""
    global _settings
    chosen = settings or Settings.from_environ()
    for name, value in (("board_dir", board_dir), ("period_ms", period_ms), ("keep_peak", keep_peak), ("alloc", alloc),
                        ("alloc_from", alloc_from), ("gc", gc)):
        if value is not None:
            chosen = chosen.but(**{name: value})
    try:
        start_board(chosen, process_name())
    except OSError as error:
        if error.strerror == "start":  # it runs already
            return True
        worked = bool(chosen.run) or _settings is not None
        say_once("start", f"{failure_text(error, chosen.board_dir, worked)}. This process runs unprobed", chosen)
        return False
    _settings = chosen
    _install_hooks()
    return True


def start_board(settings, name):
    """The bare start; OSError(errno, what was being done) if it cannot."""
    _core.start(
        *(os.fsencode(text).replace(b"\0", b"") for text in (
            settings.board_dir, settings.run, os.uname().nodename, name, settings.worker, sys.version.split()[0])),
        round(settings.period_ms * 1e6), settings.keep_peak, settings.alloc, settings.alloc_from)
    if settings.gc != "none":
        import gc
        _core.use_gc(gc.collect, settings.gc == "around")
    else:
        _core.use_gc(None, False)
    if settings.alloc:
        unseen.watch()
    if "cupy" in sys.modules:
        when_imported("cupy", _hook_cupy_late)
    else:
        when_imported("cupy", _hook_cupy)


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


def stop():
    """Stop the probe. Tasks still running are recorded as `cancelled`. The board goes too, unless `dwsr-probe run` collects it."""
    global _settings
    _core.stop(remove=_settings is not None and not _settings.run)
    unseen.unwatch()
    _unhook_cupy()
    _settings = None  # children that are forked from here on are not probed either


def process_name(argv=None):
    """What to call this process in tables: its script, module, or the interpreter."""
    argv = sys.orig_argv if argv is None else argv
    for i, word in enumerate(argv[1:], 1):
        if word == "-c":
            code = argv[i + 1] if i + 1 < len(argv) else ""
            return "multiprocessing" if "multiprocessing" in code else "python -c"
        if word == "-m" and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith("-m") and not word.startswith("--"):
            return word[2:]
        if word in ("-X", "-W", "--check-hash-based-pycs") or (i > 1 and argv[i - 1] in ("-X", "-W", "--check-hash-based-pycs")):
            continue
        if word.startswith("-") and word != "-":
            continue
        return os.path.basename(word) if word != "-" else "python -"
    return os.path.basename(argv[0]) if argv else "python"


def _install_hooks():
    global _hooks_installed
    if _hooks_installed:
        return
    _hooks_installed = True
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
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
    _core.fork_done()
    monitor = _monitor()
    if monitor is not None:
        monitor.start_again()


def _after_fork_in_child():
    monitor = _monitor()
    if monitor is not None:
        monitor.forked()
    if _settings is None:
        return
    start(settings=_settings)
    # multiprocessing's children leave through os._exit, which skips atexit but not multiprocessing's own finalizers. Those are
    # cleared first thing in the child; callbacks registered like this run right after that.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(_anchor, lambda _: util.Finalize(None, _at_exit, exitpriority=-100))


def _at_exit():
    monitor = _monitor()
    if monitor is not None:
        monitor.stop()
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    _core.stop(error=error is not None, at_exit=True, remove=_settings is not None and not _settings.run)
