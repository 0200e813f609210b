"""What the boot module does once dwsr_probe can be imported: start the probe, and note children that will run without one."""
import os

from dwsr_probe import _core, probe

_boot_dir = ""


def boot(boot_dir):
    global _boot_dir
    _boot_dir = boot_dir
    if probe.start():
        _core.watch_spawns(_on_spawn)


def _on_spawn(event, args):
    """Before subprocess.Popen(executable, args, cwd, env), os.posix_spawn(path, argv, env) or os.exec(path, args, env)."""
    executable, argv, env = args[0], args[1], args[-1]
    if cannot_be_probed(executable, argv, env):
        _core.note_unprobed_child()


def cannot_be_probed(executable, argv, env):
    """A Python told not to read PYTHONPATH or run site, or given an environment without us."""
    words = [os.fsdecode(word) for word in ([argv] if isinstance(argv, (str, bytes, os.PathLike)) else argv)]
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
