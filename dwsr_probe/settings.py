"""The probe's settings: one table, SETTINGS, and everything that is derived from it.

A row of the table names a setting, its default, its environment variable, the option of
`dwsr-probe run` that sets it, and the option's help. From the rows come `Settings`, the environment
of a run's processes and the options of `run` (cli/options.py). tests/unit/test_settings.py compares
docs/run.md and docs/dask.md with them.

Only this module reads environment variables of ours. It also chooses the board directory. It is
imported in the probed process: keep it light.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

SWITCH = "DWSR_PROBE"
PREFIX = "DWSR_PROBE_"
ALLOW_HOSTS = PREFIX + "ALLOW_HOSTS"
BOARD_MEMORY_LEAST_BYTES = 256 << 20


class Setting:
    """A row of SETTINGS whose value is any text.

    option: the option as click declares it; None for what `run` decides itself.
    unit: the setting's value is the option's value times this.
    """

    def __init__(
        self,
        name: str,
        default: Any = "",
        option: str | None = None,
        metavar: str | None = None,
        help: str | None = None,
        unit: int | None = None,
    ) -> None:
        self.name, self.default, self.environment = name, default, PREFIX + name.upper()
        self.option, self.metavar, self.help, self.unit = option, metavar, help, unit

    def accept(self, value: Any) -> Any:
        """The value in the setting's type and within its limits."""
        return value

    def to_text(self, value: Any) -> str:
        return str(value)

    def from_text(self, text: str) -> Any:
        """The value of an environment variable; an empty text, as for a variable that is not set,
        is the default."""
        return text


class FlagSetting(Setting):
    """On or off. In the environment, off is "0" if the default is on, and empty otherwise."""

    def accept(self, value: Any) -> bool:
        return bool(value)

    def to_text(self, value: bool) -> str:
        return "1" if value else self._off_text

    def from_text(self, text: str) -> bool:
        return text != self._off_text

    @property
    def _off_text(self) -> str:
        return "0" if self.default else ""


class NumberSetting(Setting):
    """A number from `least` to `most`. Numbers beyond are moved to the limit."""

    def __init__(
        self, name: str, convert: Callable[[Any], Any], least: float, most: float, **row: Any
    ) -> None:
        super().__init__(name, **row)
        self.convert, self.least, self.most = convert, least, most

    def accept(self, value: Any) -> Any:
        value = self.convert(value)
        is_nan = value != value
        return self.default if is_nan else min(max(value, self.least), self.most)

    def to_text(self, value: Any) -> str:
        return repr(value)

    def from_text(self, text: str) -> Any:
        try:
            return self.convert(text)
        except ValueError:
            return self.default


class ChoiceSetting(Setting):
    """One of some words; the default for any other."""

    def __init__(self, name: str, words: tuple[str, ...], **row: Any) -> None:
        super().__init__(name, **row)
        self.words = words

    def accept(self, value: Any) -> str:
        return value if value in self.words else self.default


class DirectorySetting(Setting):
    """A directory; by default the one for boards."""

    def accept(self, value: str) -> str:
        return value or default_board_directory()


SETTINGS = (
    Setting("run"),  # the collector's name for the run; empty: nobody collects
    DirectorySetting("board_dir"),
    NumberSetting(
        "period_ms",
        convert=float,
        least=0.1,
        most=1000.0,
        default=1.0,
        option="--period",
        metavar="MS",
        help="Sampling period in milliseconds. Peaks of tasks do not depend on it.",
    ),
    FlagSetting(
        "keep_peak",
        default=False,
        option="--keep-peak",
        help="Leave the kernel's high-water mark alone (for tools that read it);"
        " peaks are sampled.",
    ),
    Setting("worker"),
    FlagSetting(
        "alloc",
        default=True,
        option="--alloc/--no-alloc",
        help="Account allocations: each task's own live bytes and their peak.",
    ),
    NumberSetting(
        "alloc_from",  # bytes
        convert=int,
        least=4 << 10,
        most=64 << 20,
        default=4 << 10,
        option="--alloc-from",
        metavar="KIB",
        unit=1 << 10,
        help="Track each block of at least this size one by one;"
        " smaller ones are only summed per thread.",
    ),
    ChoiceSetting(
        "gc",
        words=("none", "before", "around"),
        default="none",
        option="--gc",
        help="Collect garbage before each task, or before and after it,"
        " to tell cycles from working memory.",
    ),
    FlagSetting(
        "params",
        default=True,
        option="--params/--no-params",
        help="Record numbers and booleans among the arguments of tasks. Never texts or contents.",
    ),
    FlagSetting(
        "worker_model",
        default=False,
        option="--worker-model",
        help="Learn and forecast inside each Dask worker, too.",
    ),
)


class Settings:
    """What a process needs to know to start its probe: a value for each row of SETTINGS."""

    __slots__ = tuple(setting.name for setting in SETTINGS)

    run: str
    board_dir: str
    period_ms: float
    keep_peak: bool
    worker: str
    alloc: bool
    alloc_from: int
    gc: str
    params: bool
    worker_model: bool

    def __init__(self, **values: Any) -> None:
        for setting in SETTINGS:
            value = values.pop(setting.name, setting.default)
            setattr(self, setting.name, setting.accept(value))
        if values:
            raise TypeError(f"no such setting: {', '.join(values)}")

    def replace(self, **changes: Any) -> Settings:
        """A copy with some values changed."""
        return Settings(**{**{name: getattr(self, name) for name in self.__slots__}, **changes})

    def to_environ(self) -> dict[str, str]:
        """For the processes of a run."""
        return {
            setting.environment: setting.to_text(getattr(self, setting.name))
            for setting in SETTINGS
        }

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """A variable that cannot be read has its default."""
        return cls(
            **{
                setting.name: setting.from_text(environ.get(setting.environment, ""))
                for setting in SETTINGS
            }
        )

    @classmethod
    def from_options(cls, chosen: dict[str, Any]) -> Settings:
        """Takes the values of the options that SETTINGS names out of `chosen`."""
        values = {}
        for setting in SETTINGS:
            if setting.option:
                value = chosen.pop(setting.name)
                values[setting.name] = value * setting.unit if setting.unit else value
        return cls(**values)


def allowed_hosts(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names beside this machine's own that the ports answer to (export/hosts.py), separated by
    commas or spaces."""
    return environ.get(ALLOW_HOSTS, "").replace(",", " ").split()


def switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """DWSR_PROBE=off: no probe starts in this process, whoever requests it, and no message is
    printed."""
    return environ.get(SWITCH, "").strip().lower() == "off"


def default_board_directory(environ: Mapping[str, str] = os.environ) -> str:
    """A private directory, in memory if there is room: below $XDG_RUNTIME_DIR, else /dev/shm,
    else /tmp. Never the current directory."""
    chosen = environ.get(PREFIX + "BOARD_DIR")
    if chosen:
        return os.path.abspath(chosen)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _has_room_for_boards(runtime):
        return os.path.join(runtime, "dwsr-probe")
    shared = "/dev/shm" if _has_room_for_boards("/dev/shm") else "/tmp"
    return f"{shared}/dwsr-probe-{os.geteuid()}"


def _has_room_for_boards(directory: str) -> bool:
    """Writable, and large as a whole: containers often have 64 MiB of /dev/shm, which the job
    needs. The free space is not asked for, because it changes with time."""
    try:
        space = os.statvfs(directory)
    except OSError:
        return False
    return (
        os.access(directory, os.W_OK | os.X_OK)
        and space.f_blocks * space.f_frsize >= BOARD_MEMORY_LEAST_BYTES
    )
