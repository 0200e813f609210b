"""The probe's settings: the one place that reads and writes its environment variables, and that
chooses the board directory.

`dwsr-probe run` writes them for its children, the boot module reads them there. Imported in the
probed process: keep it light.
"""

import os

SWITCH = "DWSR_PROBE"
PREFIX = "DWSR_PROBE_"
ROOMY_BYTES = 256 << 20
PERIOD_MS = 1.0
PERIOD_MS_LEAST, PERIOD_MS_MOST = 0.1, 1000.0
ALLOC_FROM, ALLOC_FROM_LEAST, ALLOC_FROM_MOST = 4 << 10, 4 << 10, 64 << 20
GC_MODES = ("none", "before", "around")


class Settings:
    """What a process needs to know to start its probe. Every field has an environment variable:
    PREFIX + its name in capitals."""

    __slots__ = (
        "alloc",
        "alloc_from",
        "board_dir",
        "gc",
        "keep_peak",
        "period_ms",
        "run",
        "worker",
    )

    def __init__(
        self,
        run="",
        board_dir="",
        period_ms=PERIOD_MS,
        keep_peak=False,
        worker="",
        alloc=True,
        alloc_from=ALLOC_FROM,
        gc="none",
    ):
        self.run = run  # the collector's name for the run; empty: nobody collects
        self.board_dir = board_dir or default_board_directory()
        period_ms = float(period_ms)
        # not NaN
        self.period_ms = (
            min(max(period_ms, PERIOD_MS_LEAST), PERIOD_MS_MOST)
            if period_ms == period_ms
            else PERIOD_MS
        )
        self.keep_peak = bool(keep_peak)
        self.worker = worker
        self.alloc = bool(alloc)
        self.alloc_from = min(max(int(alloc_from), ALLOC_FROM_LEAST), ALLOC_FROM_MOST)  # bytes
        self.gc = gc if gc in GC_MODES else "none"

    def but(self, **changes):
        """The same with some fields changed."""
        return Settings(**{name: changes.get(name, getattr(self, name)) for name in self.__slots__})

    def to_environ(self):
        return {
            PREFIX + "RUN": self.run,
            PREFIX + "BOARD_DIR": self.board_dir,
            PREFIX + "PERIOD_MS": repr(self.period_ms),
            PREFIX + "KEEP_PEAK": "1" if self.keep_peak else "",
            PREFIX + "WORKER": self.worker,
            PREFIX + "ALLOC": "1" if self.alloc else "0",
            PREFIX + "ALLOC_FROM": str(self.alloc_from),
            PREFIX + "GC": self.gc,
        }

    @classmethod
    def from_environ(cls, environ=os.environ):
        def get(name):
            return environ.get(PREFIX + name, "")

        def number(name, kind, otherwise):
            try:
                return kind(get(name) or otherwise)
            except ValueError:
                return otherwise

        return cls(
            get("RUN"),
            get("BOARD_DIR"),
            number("PERIOD_MS", float, PERIOD_MS),
            get("KEEP_PEAK"),
            get("WORKER"),
            get("ALLOC") != "0",
            number("ALLOC_FROM", int, ALLOC_FROM),
            get("GC"),
        )


def allowed_hosts(environ=os.environ):
    """Names beside this machine's own that the ports answer to (export/hosts.py), separated by
    commas or spaces."""
    return environ.get(PREFIX + "ALLOW_HOSTS", "").replace(",", " ").split()


def switched_off(environ=os.environ):
    """DWSR_PROBE=off: nothing of ours starts in this process, whoever asks for it, and nothing
    is said."""
    return environ.get(SWITCH, "").strip().lower() == "off"


def default_board_directory(environ=os.environ):
    """A private directory, in memory if there is room: below $XDG_RUNTIME_DIR, else /dev/shm,
    else /tmp. Never the current directory."""
    chosen = environ.get(PREFIX + "BOARD_DIR")
    if chosen:
        return os.path.abspath(chosen)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_roomy(runtime):
        return os.path.join(runtime, "dwsr-probe")
    shared = "/dev/shm" if _is_roomy("/dev/shm") else "/tmp"
    return f"{shared}/dwsr-probe-{os.geteuid()}"


def _is_roomy(directory):
    """Writable and large as a whole: containers often have 64 MiB of /dev/shm, which the job
    needs. What is free would change with time."""
    try:
        space = os.statvfs(directory)
    except OSError:
        return False
    return (
        os.access(directory, os.W_OK | os.X_OK) and space.f_blocks * space.f_frsize >= ROOMY_BYTES
    )
