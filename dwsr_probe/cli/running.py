"""What `dwsr-probe run` does, and its options. Without click, which most runs do not need:
cli/run.py is its command."""

import gc
import os
import sys

from dwsr_probe.cli import fail
from dwsr_probe.cli.listening import ACCESS, parse_listen
from dwsr_probe.cli.options import Choice, Option, Path, Range, Text
from dwsr_probe.settings import (
    ALLOC_FROM,
    ALLOC_FROM_LEAST,
    ALLOC_FROM_MOST,
    GC_MODES,
    PERIOD_MS,
    PERIOD_MS_LEAST,
    PERIOD_MS_MOST,
)

OPTIONS = (
    Option(
        "-o",
        "--output",
        of=Path(),
        metavar="DIR",
        help="The run directory. [dwsr-runs/<time>-<name>]",
    ),
    Option("-q", "--quiet", help="No table at the end, and no status in the terminal's title."),
    Option(
        "-v", "--verbose", help="A table of every task name, and the statistics of the sampler."
    ),
    Option(
        "--period",
        "period_ms",
        of=Range(float, PERIOD_MS_LEAST, PERIOD_MS_MOST),
        default=PERIOD_MS,
        metavar="MS",
        help="Sampling period in milliseconds. Peaks of tasks do not depend on it.",
    ),
    Option(
        "--keep-peak",
        help=(
            "Leave the kernel's high-water mark alone (for tools that read it); peaks are sampled."
        ),
    ),
    Option(
        "--alloc/--no-alloc",
        default=True,
        help="Account allocations: each task's own live bytes and their peak.",
    ),
    Option(
        "--alloc-from",
        "alloc_from_kib",
        of=Range(int, ALLOC_FROM_LEAST >> 10, ALLOC_FROM_MOST >> 10),
        default=ALLOC_FROM >> 10,
        metavar="KIB",
        help=(
            "Track each block of at least this size one by one;"
            " smaller ones are only summed per thread."
        ),
    ),
    Option(
        "--gc",
        "gc_mode",
        of=Choice(GC_MODES),
        default="none",
        help=(
            "Collect garbage before each task, or before and after it,"
            " to tell cycles from working memory."
        ),
    ),
    Option(
        "--metrics",
        of=Text(),
        metavar="[ADDR:]PORT",
        help=(
            "Serve /metrics and /dwsr/tasks of all processes of the job there while it runs;"
            " 0: any free port."
        ),
    ),
    Option(
        "--linger",
        "linger_s",
        of=Range(float, 0, 3600),
        default=0.0,
        metavar="S",
        help="Keep the metrics for so many seconds after the job, for the last scrape.",
    ),
    *ACCESS,
    Option("--strict", help="Do not run the command if the probe cannot work (exit code 125)."),
)


def run(
    command,
    output,
    quiet,
    verbose,
    period_ms,
    keep_peak,
    alloc,
    alloc_from_kib,
    gc_mode,
    metrics,
    linger_s,
    strict,
    **access,
):
    """Run COMMAND under the probe and print what its tasks needed.

    Options stand before the command. It keeps its input, output, signals and exit code (128+n if
    signal n ended it); Python programs that it starts are probed too. The table goes to stderr;
    `dwsr-probe report` shows it again.
    """
    from dwsr_probe import launch
    from dwsr_probe.settings import Settings

    try:
        settings = Settings(
            period_ms=period_ms,
            keep_peak=keep_peak,
            alloc=alloc,
            alloc_from=alloc_from_kib << 10,
            gc=gc_mode,
        )
        serving, status = _serving(metrics, linger_s, quiet, access), _status(command, quiet)
        gc.freeze()  # what is loaded by now stays
        gc.enable()
        code, directory = launch.run(command, output, settings, strict, serving, status)
    except launch.Strict as error:
        launch.say(f"{error}. Nothing was run (--strict)")
        sys.exit(launch.EXIT_STRICT)
    if directory and not quiet and sys.stderr is not None:
        _print_table(directory, verbose, launch.say)
    _leave(code)


def _serving(metrics, linger_s, quiet, access):
    if metrics is None:
        if linger_s or any(access.values()):
            fail("--linger, --tls-*, --*-file and --allow-host are for --metrics [ADDR:]PORT", 2)
        return None
    from dwsr_probe.export.server import Access
    from dwsr_probe.export.serving import Serving

    return Serving(*parse_listen(metrics), Access(**access), linger_s, quiet)


def _status(command, quiet):
    from dwsr_probe.report.status import Status, wanted

    return (
        Status(
            os.path.basename(command[0])
            if len(command) < 2
            else " ".join(map(os.path.basename, command[:2]))
        )
        if not quiet and wanted(sys.stderr)
        else None
    )


def _print_table(directory, verbose, say):
    try:
        from dwsr_probe.report.table import print_report
        from dwsr_probe.store import Store

        print_report(Store.open(directory), sys.stderr, verbose)
        say(f"the run is in {directory}")
    except (Exception, KeyboardInterrupt) as error:
        say(f"cannot print the table: {error!r}; dwsr-probe report {directory} may")


def _leave(code):
    """With the command's exit code, whatever becomes of our own streams: Python exits with 120
    if it cannot flush them."""
    gc.freeze()  # Python would look through everything once more
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        os._exit(code)
    sys.exit(code)
