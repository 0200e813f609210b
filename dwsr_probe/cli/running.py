"""What `dwsr-probe run` does, and its options.

Without click, which most runs do not need: cli/__init__.py calls `run` directly, and cli/run.py is
the command of click.
"""

from __future__ import annotations

import gc
import os
import sys

from dwsr_probe.cli import fail
from dwsr_probe.cli.listening import ACCESS, parse_listen
from dwsr_probe.cli.options import Option, Path, Range, Text, option_of
from dwsr_probe.settings import SETTINGS, Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from dwsr_probe.export.serving import RunMetricsPort
    from dwsr_probe.report.status import Status

OPTIONS = (
    Option(
        "-o",
        "--output",
        value_type=Path(),
        metavar="DIR",
        help="The run directory. [dwsr-runs/<time>-<name>]",
    ),
    Option("-q", "--quiet", help="No table at the end, and no status in the terminal's title."),
    Option(
        "-v", "--verbose", help="A table of every task name, and the statistics of the sampler."
    ),
    *(option_of(setting) for setting in SETTINGS if setting.option),
    Option(
        "--metrics",
        value_type=Text(),
        metavar="[ADDR:]PORT",
        help=(
            "Serve /metrics and /dwsr/tasks of all processes of the job there while it runs;"
            " 0: any free port."
        ),
    ),
    Option(
        "--linger",
        "linger_s",
        value_type=Range(float, 0, 3600),
        default=0.0,
        metavar="S",
        help="Keep the metrics for so many seconds after the job, for the last scrape.",
    ),
    *ACCESS,
    Option("--strict", help="Do not run the command if the probe cannot work (exit code 125)."),
)


def run(command: list[str], **chosen: Any) -> NoReturn:
    """Run COMMAND under the probe and print what its tasks needed.

    Options stand before the command. It keeps its input, output, signals and exit code (128+n if
    signal n ended it); Python programs that it starts are probed too. The table goes to stderr;
    `dwsr-probe report` shows it again.
    """
    settings = Settings.from_options(chosen)
    _run(command, settings, **chosen)


def _run(
    command: list[str],
    settings: Settings,
    *,
    output: str | None,
    quiet: bool,
    verbose: bool,
    metrics: str | None,
    linger_s: float,
    strict: bool,
    **access: Any,
) -> NoReturn:
    from dwsr_probe import launch

    try:
        metrics_port = _make_metrics_port(metrics, linger_s, quiet, access)
        status = _make_status(command, quiet)
        gc.freeze()  # modules that are loaded by now stay to the end
        gc.enable()
        code, directory = launch.run(command, output, settings, strict, metrics_port, status)
    except launch.ProbeRequired as error:
        launch.say(f"{error}. Nothing was run (--strict)")
        sys.exit(launch.EXIT_STRICT)
    if directory and not quiet and sys.stderr is not None:
        _print_table(directory, verbose, launch.say)
    _exit_with(code)


def _make_metrics_port(
    metrics: str | None, linger_s: float, quiet: bool, access: dict[str, Any]
) -> RunMetricsPort | None:
    """The port of --metrics; None without one."""
    if metrics is None:
        if linger_s or any(access.values()):
            fail("--linger, --tls-*, --*-file and --allow-host are for --metrics [ADDR:]PORT", 2)
        return None
    from dwsr_probe.export.server import Access
    from dwsr_probe.export.serving import RunMetricsPort

    address, port = parse_listen(metrics)
    return RunMetricsPort(address, port, Access(**access), linger_s, quiet)


def _make_status(command: list[str], quiet: bool) -> Status | None:
    """The status in the terminal's title; None where there is none."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        return None
    from dwsr_probe.report.status import Status, has_title

    if not has_title(sys.stderr):
        return None
    return Status(" ".join(map(os.path.basename, command[:2])))


def _print_table(directory: str, verbose: bool, say: Callable[[str], None]) -> None:
    try:
        from dwsr_probe.report.table import print_report
        from dwsr_probe.store import Store

        print_report(Store.open(directory), sys.stderr, verbose, is_end_of_run=True)
        say(f"the run is in {directory}")
    except (Exception, KeyboardInterrupt) as error:
        say(f"cannot print the table: {error!r}; dwsr-probe report {directory} may")


def _exit_with(code: int) -> NoReturn:
    """Exit with the command's exit code. Python would exit with 120 if it cannot flush our own
    streams."""
    gc.freeze()  # without it, the interpreter's last collection visits every object
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        os._exit(code)
    sys.exit(code)
