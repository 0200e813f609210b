import io
import os
import sys

import click

from dwsr_probe.cli import fail

FORMS = ("table", "json", "csv", "parquet", "html")
EXIT_GREW, EXIT_NOT_COMPARED = 1, 2


@click.command("report")
@click.argument("run", required=False, type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    default="table",
    show_default=True,
    help=(
        "table: by task name, for people. json: one record per line, tasks first, then processes."
        " csv, parquet: the same as columns. html: one page with plots, in a file."
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
def command(run, form, output, compare, limit, verbose):
    """Show a run: the last one, or the one in directory RUN (or a single board file, after a
    crash). Or compare two."""
    import sqlite3

    from dwsr_probe.report.words import line_of
    from dwsr_probe.runs import open_run
    from dwsr_probe.say import say
    from dwsr_probe.store import StoreError

    limit = _share_of(limit)
    if compare and (run or form in ("csv", "parquet")):
        fail(
            (
                "--compare takes two runs and no third"
                if run
                else f"--compare has no {form}: table, json or html"
            ),
            2,
        )
    if limit is not None and not compare:
        fail("--fail-above is for --compare A B", 2)
    failed, code = EXIT_NOT_COMPARED if compare else 1, 0
    try:
        if compare:
            from dwsr_probe.report.compare.comparison import Comparison

            compared = Comparison(*(open_run(path, say) for path in compare))
            objections = compared.failures(limit) if limit is not None else []
            code = EXIT_GREW if objections else 0
            _show_comparison(compared, form, output, limit)
            if objections and (form == "html" or output):  # a log of CI says why
                say(
                    f"{len(objections):,} above {100 * limit:g} %: "
                    + "; ".join(f"{line_of(name)}: {why}" for name, why in objections[:5])
                )
        else:
            _show(open_run(run, say), form, output, verbose)
    except StoreError as error:
        fail(error, failed)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        fail(
            f"cannot read {' or '.join(compare or ()) or run or 'the last run'}: {error}; it is"
            " damaged, or being written on another machine",
            failed,
        )
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        fail(
            f"cannot write {output or 'the report'}: {error.strerror or error}; choose another file"
            " with -o FILE",
            failed,
        )
    sys.exit(code)


def _share_of(text):
    """0.1 of "10%" and "10"."""
    if text is None:
        return None
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        fail(f"--fail-above {text!r} is not a percentage; write 10%", 2)
    return share


def _show(store, form, output, verbose):
    from dwsr_probe.report.output import destination

    if form == "html":
        _write_page(store, output or os.path.join(store.directory or "", "report.html"))
        return
    if form == "parquet" and output in (None, "-") and sys.stdout.isatty():
        fail("Parquet is not for a terminal; name a file with -o FILE", 2)
    with destination(output) as file:
        if form == "csv":
            from dwsr_probe.report.columns import write_csv

            write_csv(store, file)
        elif form == "parquet":
            from dwsr_probe.report.columns import MISSING, write_parquet

            try:
                write_parquet(store, file)
            except ImportError as error:
                fail(f"{MISSING} ({error})")
        else:
            with _text(file) as lines:
                _print(store, form, lines, verbose)


def _show_comparison(compared, form, output, limit):
    from dwsr_probe.report.output import destination

    if form == "html" and not output:
        output = os.path.join(compared.runs[1]["directory"] or "", "compare.html")
        print(output)
    with destination(output) as file, _text(file) as lines:
        if form == "table":
            from dwsr_probe.report.compare.table import print_comparison

            print_comparison(compared, limit, lines)
        elif form == "html":
            from dwsr_probe.report.compare.page import page_of

            lines.write(page_of(compared, limit))
        else:
            lines.write(compared.to_json(limit) + "\n")


class _text:
    """A binary file as text for a while; on a terminal standard output itself, which knows its
    width and colours."""

    def __init__(self, file):
        self._file = file

    def __enter__(self):
        if self._file is sys.stdout.buffer:
            return sys.stdout
        self._lines = io.TextIOWrapper(self._file, encoding="utf-8", errors="backslashreplace")
        return self._lines

    def __exit__(self, *_):
        if self._file is sys.stdout.buffer:
            sys.stdout.flush()
        else:
            self._lines.detach()


def _print(store, form, lines, verbose):
    if form == "table":
        from dwsr_probe.report.table import print_report

        if store.directory:
            _print_heading(store, lines)
        print_report(store, lines, verbose)
        return
    for record in store.tasks():
        print(record.to_json(), file=lines)
    for record, _ in store.processes():
        print(record.to_json(), file=lines)


def _print_heading(store, lines):
    meta = store.meta()
    code = meta.get("exit_code")
    outcome = "still running, or its parent was killed" if code is None else f"exit code {code}"
    print(f"run {meta.get('run')}: {outcome}", file=lines)


def _write_page(store, path):
    from dwsr_probe.report.html import write_page
    from dwsr_probe.report.progress import Progress

    try:
        with Progress() as progress:
            size = write_page(store, path, progress)
    except ImportError as error:
        fail(error)
    if path != "-":
        print(f"{path} ({size / 1e6:.1f} MB)")
