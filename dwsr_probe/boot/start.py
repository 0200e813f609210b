"""What the boot module does once dwsr_probe can be imported: start the probe, and note children
that will run without one.

Called by boot/sitecustomize.py in every Python below `dwsr-probe run`. launch/ asks
`options_keep_probe_out` of the command that it is to start.
"""

from __future__ import annotations

import os

from dwsr_probe import _core, probe
from dwsr_probe.imports import when_imported
from dwsr_probe.say import say_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    Word = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_boot_dir = ""


def boot(boot_dir: str) -> None:
    """boot_dir: the folder on PYTHONPATH that brought us here."""
    global _boot_dir
    _boot_dir = boot_dir
    try:
        if not probe.is_housekeeping() and probe.start(expect_tasks=False):
            _watch_spawns()
            when_imported(
                "distributed.worker", _hook_worker, "tasks of Dask workers are not measured"
            )
            when_imported(
                "dask.local", _hook_local, "tasks of Dask's local schedulers are not measured"
            )
    except Exception as error:
        say_once("boot", f"cannot start the probe: {error!r}; this process runs unprobed")


def _hook_worker(module: ModuleType) -> None:
    from dwsr_probe.dask import hooks

    hooks.hook_worker(module, at_import=True)


def _hook_local(module: ModuleType) -> None:
    from dwsr_probe.dask import hooks

    hooks.hook_local(module)


def _watch_spawns() -> None:
    """Note when this program replaces itself, and when it starts a Python that cannot be probed.

    Two functions of os are wrapped, and the one that subprocess and multiprocessing call. An audit
    hook would see more, but makes every id() and every open() of the job slower.
    """
    import _posixsubprocess

    _call_before(_posixsubprocess, "fork_exec", _on_fork_exec)
    for name in ("execv", "execve"):
        _call_before(os, name, lambda *_: _core.note_exec())


def _call_before(module: ModuleType, name: str, note: Callable[..., object]) -> None:
    """Have `note` called before a function. The function keeps what programs may ask of it: its
    name, its signature, its place in os.supports_fd."""
    function = getattr(module, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        try:
            note(*args)
        except Exception:
            pass
        return function(*args, **kwargs)

    noted.__name__ = noted.__qualname__ = function.__name__
    noted.__doc__ = function.__doc__
    noted.__wrapped__ = function  # type: ignore[attr-defined]  # read by inspect.signature
    noted.__module__ = module.__name__  # where pickle finds it
    if function in os.supports_fd:
        os.supports_fd.add(noted)
    setattr(module, name, noted)


def _on_fork_exec(
    args: Sequence[Word],
    executables: Sequence[Word],
    close_fds: bool,
    fds: Sequence[int],
    cwd: Word | None,
    env: Sequence[bytes] | None,
    *_: Any,
) -> None:
    """Has the parameters of _posixsubprocess.fork_exec, as far as they are used."""
    environ = None if env is None else dict(pair.split(b"=", 1) for pair in env)
    if cannot_be_probed(executables[0], args, environ):
        _core.note_unprobed_child()


def cannot_be_probed(
    executable: Word | None, argv: Word | Sequence[Word], env: Mapping[Any, Any] | None
) -> bool:
    """Whether this starts a Python whose options exclude PYTHONPATH or site, or whose environment
    does not have our folder."""
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


def options_keep_probe_out(words: Sequence[str]) -> bool:
    """Whether -I, -S or -E is among the interpreter's own options of a command line."""
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
