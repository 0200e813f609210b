from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, TextIO

import click

from dwsr_probe.cli import fail

if TYPE_CHECKING:
    from dwsr_probe.report.compare.comparison import Comparison
    from dwsr_probe.store import Store

FORMATS = ("table", "json", "csv", "parquet", "html")
EXIT_GREW, EXIT_NOT_COMPARED, EXIT_USAGE = 1, 2, 2


@click.command("report")
@click.argument("run", required=False, type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help=(
        "table: by operation or task name, for people. json: one record per line, tasks first, then"
        " processes. csv, parquet: the same as columns. html: one page with plots, in a file."
    ),
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help=(
        'Write to this file; "-" is standard output. [standard output; html: report.html in the'
        " run's directory, compare.html in B's]"
    ),
)
@click.option(
    "--task",
    metavar="NAME",
    help=(
        "Only tasks of this name: an operation, a row's label, the prefix of a Dask key, or a"
        " function inside the tasks."
    ),
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(),
    metavar="A B",
    help=(
        "Two runs: what tasks of B need more or less than those of A, and whether that is more than"
        " noise. As table, json or html."
    ),
)
@click.option(
    "--fail-above",
    "limit",
    metavar="PERCENT",
    help=(
        "With --compare: exit code 1 if a task needs more than so much more, as in 10%, and beyond"
        " noise."
    ),
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="With the table: every task name, and the statistics of the sampler.",
)
def command(
    run: str | None,
    form: str,
    output: str | None,
    task: str | None,
    compare: tuple[str, str] | None,
    limit: str | None,
    verbose: bool,
) -> None:
    """Show a run: the last one, or the one in directory RUN (or a single board file, after a
    crash). Or compare two."""
    import sqlite3

    from dwsr_probe.report.groups import NoSuchTask
    from dwsr_probe.runs import open_run
    from dwsr_probe.say import say
    from dwsr_probe.store import StoreError

    growth_limit = _parse_percent(limit)
    if compare and run:
        fail("--compare takes two runs and no third", EXIT_USAGE)
    if compare and form in ("csv", "parquet"):
        fail(f"--compare has no {form}: table, json or html", EXIT_USAGE)
    if growth_limit is not None and not compare:
        fail("--fail-above is for --compare A B", EXIT_USAGE)
    exit_failed, exit_code = EXIT_NOT_COMPARED if compare else 1, 0
    try:
        if compare:
            exit_code = _compare(compare, form, output, growth_limit, task)
        else:
            _show_run(open_run(run, say), form, output, verbose, task)
    except NoSuchTask as error:
        fail(error, EXIT_USAGE)
    except StoreError as error:
        fail(error, exit_failed)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        fail(
            f"cannot read {' or '.join(compare or ()) or run or 'the last run'}: {error}; it is"
            " damaged, or being written on another machine",
            exit_failed,
        )
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        fail(
            f"cannot write {output or 'the report'}: {error.strerror or error}; choose another file"
            " with -o FILE",
            exit_failed,
        )
    sys.exit(exit_code)


def _parse_percent(text: str | None) -> float | None:
    """0.1 for "10%" and for "10"; exits with a message if the text is no percentage."""
    if text is None:
        return None
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        fail(f"--fail-above {text!r} is not a percentage; write 10%", EXIT_USAGE)
    return share


def _compare(
    paths: tuple[str, str],
    form: str,
    output: str | None,
    growth_limit: float | None,
    task: str | None,
) -> int:
    """Show the comparison of two runs; return the exit code."""
    from dwsr_probe.report.compare.comparison import Comparison
    from dwsr_probe.runs import open_run
    from dwsr_probe.say import say
    from dwsr_probe.words import line_of

    a, b = (open_run(path, say) for path in paths)
    compared = Comparison(a, b, task)
    _show_comparison(compared, form, output, growth_limit)
    objections = [] if growth_limit is None else compared.objections(growth_limit)
    if not objections:
        return 0
    if growth_limit is not None and (form == "html" or output):
        # The report went into a file: the log of a CI job must say why the job failed.
        say(
            f"{len(objections):,} above {100 * growth_limit:g} %: "
            + "; ".join(f"{line_of(one.label)}: {one.why}" for one in objections[:5])
        )
    return EXIT_GREW


def _show_run(store: Store, form: str, output: str | None, verbose: bool, task: str | None) -> None:
    from dwsr_probe.report.output import destination

    if form == "html":
        _write_page(store, output or os.path.join(store.directory or "", "report.html"), task)
        return
    if form == "parquet" and output in (None, "-") and sys.stdout.isatty():
        fail("Parquet is not for a terminal; name a file with -o FILE", EXIT_USAGE)
    with destination(output) as file:
        if form == "csv":
            from dwsr_probe.report.columns import write_csv

            write_csv(store, file, task)
        elif form == "parquet":
            from dwsr_probe.report.columns import NEEDS_PYARROW, write_parquet

            try:
                write_parquet(store, file, task)
            except ImportError as error:
                fail(f"{NEEDS_PYARROW} ({error})")
        else:
            with _as_text(file) as stream:
                _print_text(store, form, stream, verbose, task)


def _show_comparison(
    compared: Comparison, form: str, output: str | None, growth_limit: float | None
) -> None:
    from dwsr_probe.report.output import destination

    if form == "html" and not output:
        output = os.path.join(compared.runs[1]["directory"] or "", "compare.html")
        print(output)
    with destination(output) as file, _as_text(file) as stream:
        if form == "table":
            from dwsr_probe.report.compare.table import print_comparison

            print_comparison(compared, growth_limit, stream)
        elif form == "html":
            from dwsr_probe.report.compare.page import page_of

            stream.write(page_of(compared, growth_limit))
        else:
            stream.write(compared.to_json(growth_limit) + "\n")


@contextmanager
def _as_text(file: IO[bytes]) -> Iterator[TextIO]:
    """A binary file as text. For standard output that is sys.stdout itself, which knows the
    terminal's width and colours."""
    if file is sys.stdout.buffer:
        try:
            yield sys.stdout
        finally:
            sys.stdout.flush()
        return
    stream = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace")
    try:
        yield stream
    finally:
        stream.detach()  # flushes; the file stays open for its owner


def _print_text(store: Store, form: str, stream: TextIO, verbose: bool, task: str | None) -> None:
    if form == "table":
        from dwsr_probe.report.table import print_report

        heading = _heading(store) if store.directory else None
        print_report(store, stream, verbose, task, heading)
        return
    if task is not None:
        from dwsr_probe.report.groups import asked_tasks

        for record in asked_tasks(store, task):
            print(record.to_json(), file=stream)
        return
    for record in store.tasks():
        print(record.to_json(), file=stream)
    for record, _ in store.processes():
        print(record.to_json(), file=stream)


def _heading(store: Store) -> str:
    meta = store.meta()
    code = meta.get("exit_code")
    outcome = "still running, or its parent was killed" if code is None else f"exit code {code}"
    return f"run {meta.get('run')}: {outcome}"


def _write_page(store: Store, path: str, task: str | None) -> None:
    from dwsr_probe.report.html import write_page
    from dwsr_probe.report.progress import Progress

    try:
        with Progress() as progress:
            size = write_page(store, path, progress, task)
    except ImportError as error:
        fail(error)
    if path != "-":
        print(f"{path} ({size / 1e6:.1f} MB)")
