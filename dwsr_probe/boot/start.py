"""What the boot module does once dwsr_probe can be imported: start the probe, and note children
that will run without one."""

import os

from dwsr_probe import _core, probe
from dwsr_probe.imports import when_imported
from dwsr_probe.say import say_once

_boot_dir = ""


def boot(boot_dir):
    global _boot_dir
    _boot_dir = boot_dir
    try:
        if not probe.is_housekeeping() and probe.start(expect_tasks=False):
            _watch_spawns()
            when_imported("distributed.worker", _hook_worker)
            when_imported("dask.local", _hook_local)
    except Exception as error:
        say_once("boot", f"cannot start the probe: {error!r}; this process runs unprobed")


def _hook_worker(module):
    from dwsr_probe.dask import hooks

    hooks.hook_worker(module, at_import=True)


def _hook_local(module):
    from dwsr_probe.dask import hooks

    hooks.hook_local(module)


def _watch_spawns():
    """Note when this program replaces itself, and when it starts a Python that cannot be probed.

    By wrapping two functions of os and the one below subprocess and multiprocessing: an audit
    hook would see more, but makes every id() and every open() of the job slower.
    """
    import _posixsubprocess

    _replace(_posixsubprocess, "fork_exec", _on_fork_exec)
    for name in ("execv", "execve"):
        _replace(os, name, lambda *_: _core.note_exec())


def _replace(module, name, note):
    """Have `note` called before a function, which stays what programs may ask of it: its name,
    its signature, its place in os.supports_fd."""
    function = getattr(module, name)

    def noted(*args, **kwargs):
        try:
            note(*args)
        except Exception:
            pass
        return function(*args, **kwargs)

    noted.__name__ = noted.__qualname__ = function.__name__
    noted.__doc__ = function.__doc__
    noted.__wrapped__ = function  # inspect.signature asks that one
    noted.__module__ = module.__name__  # where pickle finds it
    if function in os.supports_fd:
        os.supports_fd.add(noted)
    setattr(module, name, noted)


def _on_fork_exec(args, executables, close_fds, fds, cwd, env, *_):
    environ = None if env is None else dict(pair.split(b"=", 1) for pair in env)
    if cannot_be_probed(executables[0], args, environ):
        _core.note_unprobed_child()


def cannot_be_probed(executable, argv, env):
    """A Python told not to read PYTHONPATH or run site, or given an environment without us."""
    words = [
        os.fsdecode(word)
        for word in ([argv] if isinstance(argv, (str, bytes, os.PathLike)) else argv)
    ]
    program = os.path.basename(os.fsdecode(executable) if executable else words[0])
    if not program.startswith("python"):
        return False
    if env is not None:
        path = next((os.fsdecode(v) for k, v in env.items() if os.fsdecode(k) == "PYTHONPATH"), "")
        if _boot_dir not in path.split(os.pathsep):
            return True
    return options_keep_probe_out(words)


def options_keep_probe_out(words):
    """-I, -S or -E among the interpreter's own options of a command line."""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            return False
        for at, letter in enumerate(word[1:], 1):
            if letter in "ISE":
                return True
            if letter in "cm":
                return False
            if letter in "XW":  # its value is the rest of the word, or the next word
                if at == len(word) - 1:
                    next(rest, None)
                break
    return False
