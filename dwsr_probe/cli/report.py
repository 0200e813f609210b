import os
import sys

import click

from dwsr_probe.cli import fail


@click.command("report")
@click.argument("run", required=False, type=click.Path())
@click.option("--format", "form", type=click.Choice(["table", "json", "html"]), default="table", show_default=True,
              help="table: by task name, for people. json: one record per line, tasks first, then processes. html: one page with plots, in a file.")
@click.option("-o", "output", metavar="FILE", type=click.Path(dir_okay=False), help="Where the page goes. [default: report.html in the run's directory]")
def command(run, form, output):
    """Show a run: the last one, or the one in directory RUN (or a single board file, after a crash)."""
    import sqlite3

    from dwsr_probe.runs import collect_leftovers, last_run
    from dwsr_probe.say import say
    from dwsr_probe.store import Store, StoreError
    try:
        if run and os.path.isfile(run):
            store = _store_of_board(run)
        else:
            directory = run or last_run()
            collect_leftovers(directory, say)
            store = Store.open(directory)
            if form == "table":
                _print_heading(store)
        if form == "html":
            _write_page(store, output or os.path.join(store.directory or "", "report.html"))
        else:
            _print(store, form)
    except StoreError as error:
        fail(error)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        fail(f"cannot read {run or 'the last run'}: {error}; it is damaged, or being written on another machine")
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_heading(store):
    meta = store.meta()
    code = meta.get("exit_code")
    outcome = "still running, or its parent was killed" if code is None else f"exit code {code}"
    print(f"run {meta.get('run')}: {outcome}")


def _print(store, form):
    if form == "table":
        from dwsr_probe.report.table import print_report
        print_report(store, sys.stdout)
        return
    for record in store.tasks():
        print(record.to_json())
    for record, _ in store.processes():
        print(record.to_json())
    sys.stdout.flush()


def _write_page(store, path):
    from dwsr_probe.report.html import MISSING, write_page
    from dwsr_probe.report.progress import Progress
    try:
        with Progress() as progress:
            size = write_page(store, path, progress)
    except ImportError as error:
        fail(f"{MISSING} ({error})")
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}; choose another file with -o FILE")
    print(f"{path} ({size / 1e6:.1f} MB)")


def _store_of_board(path):
    """A board file as a run of its own, in memory; the file stays."""
    from dwsr_probe._core import BoardError
    from dwsr_probe.board import explain
    from dwsr_probe.collector import read_board_into
    from dwsr_probe.store import Store
    store = Store.in_memory()
    try:
        read_board_into(store, path)
    except BoardError as error:
        fail(explain(path, error))
    return store
