import json
import math
import os
import sys

import click

from dwsr_probe.cli import fail
from dwsr_probe.cli.listening import access_options, parse_listen

TURN_S = 0.1
_CURVE = 60  # points of the plot
_SHORT = 16
_NAMES, _NAME_MOST = 10, 10_000


class _Predict(click.Command):
    """`predict serve ...` is a command of its own; any other first word is a run."""

    def make_context(self, info_name, args, parent=None, **extra):
        if args and args[0] == "serve":
            return serve.make_context(f"{info_name} serve", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _needs(error):
    """numpy and scipy come with an extra."""
    if error.name and error.name.split(".")[0] in ("numpy", "scipy"):
        fail(
            f"forecasts need {error.name.split('.')[0]}, which is not installed; pip install"
            " 'dwsr-probe[predict]'"
        )
    raise error


@click.command(
    "predict",
    cls=_Predict,
    epilog=(
        "`dwsr-probe predict serve` learns from running workers and answers over HTTP; `dwsr-probe"
        " predict serve --help`."
    ),
)
@click.argument("run", required=False, type=click.Path())
@click.option(
    "--task",
    metavar="NAME",
    help="The task to forecast. [the ten largest, at the largest inputs seen]",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="N,N,...",
    help="Shape of an input; repeat it for several inputs.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="TYPE",
    help="Its type, such as float32: one for all shapes, or one for each.",
)
@click.option(
    "--nbytes",
    "sizes",
    multiple=True,
    metavar="SIZE",
    help="Size of an input without a shape, such as 500MB.",
)
@click.option(
    "--kind",
    metavar="alloc|rss|gpu|output",
    help="Own peak, growth of the process, peak on a device, or size of the output. [alloc]",
)
@click.option(
    "--quantile",
    "q",
    type=float,
    default=0.99,
    show_default=True,
    metavar="Q",
    help="Probability that the need stays below the bound.",
)
@click.option(
    "--limit", metavar="SIZE", help="Also say how probable more than this is, such as 8GiB."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="table: for people. json: for programs.",
)
def command(run, task, shapes, dtypes, sizes, kind, q, limit, form):
    """How much memory will a task need? Learns from a run (the last one, or the one in directory
    RUN, or a saved model) and says so."""
    try:
        from dwsr_probe.serve import question
    except ModuleNotFoundError as error:
        _needs(error)
    try:
        # Checked before the run is read: that may take a while.
        inputs = question.inputs_of(shapes, dtypes, sizes)
        asked = question.Question(task or "-", inputs, kind or "alloc", q, limit)
        if inputs and not task:
            raise ValueError("--shape, --dtype and --nbytes are for one task: --task NAME")
        if limit and not task:
            raise ValueError("--limit is for one task: --task NAME")
    except ValueError as error:
        fail(error, 2)
    model, ledger = _learned(run)
    try:
        if task:
            if not inputs:
                asked.inputs = ledger.inputs_of(task, model, asked.kind)
            _print_one(model, asked, form, bool(inputs), limit and limit.strip())
        else:
            _print_all(model, ledger, kind, q, form)
        sys.stdout.flush()
    except ValueError as error:
        fail(error, 2)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _learned(run):
    """(model, ledger) of a run directory or a saved model; exits if there is none."""
    import sqlite3

    from dwsr_probe.predict import Model
    from dwsr_probe.report.progress import Progress
    from dwsr_probe.report.words import count_text
    from dwsr_probe.runs import collect_leftovers, find_run
    from dwsr_probe.say import say
    from dwsr_probe.serve.ledger import Ledger
    from dwsr_probe.store import Store, StoreError

    ledger = Ledger()
    if run and os.path.isfile(run):
        return _saved(run, ledger)
    try:
        directory = find_run(run, say)
        collect_leftovers(directory, say)
        model, refused, store = Model(), 0, Store.open(directory)
        with Progress() as progress:
            total = store.task_count()
            for done, record in enumerate(store.tasks()):
                record = record.to_dict()
                try:
                    model.learn(record)
                    ledger.note(record)
                except ValueError:
                    refused += 1
                if done % 256 == 0:
                    progress("learning", done, total)
    except StoreError as error:
        fail(error)
    except sqlite3.Error as error:
        fail(
            f"cannot read {run or 'the last run'}: {error}; it is damaged, or being written on"
            " another machine"
        )
    if refused:
        say(f"left out {count_text(refused, 'record', 'records', '1')} with figures that cannot be")
    return model, ledger


def _saved(path, ledger):
    """A model by itself, or the state of the service with one in it."""
    from dwsr_probe.predict import Model
    from dwsr_probe.serve.ledger import Ledger

    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
        if isinstance(found, dict) and "model" in found and "ledger" in found:
            return Model.from_dict(found["model"]), Ledger.from_dict(found["ledger"])
        return Model.from_dict(found), ledger
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        fail(f"cannot read {path}: {error}; name a run directory or a model that was saved")


def _print_one(model, asked, form, chosen, limit_text):
    from dwsr_probe.report.forecast import input_text, plot, words
    from dwsr_probe.report.words import line_of
    from dwsr_probe.serve.question import answer

    if asked.task not in model.names() and form == "table":
        known = ", ".join(line_of(name, _NAME_MOST) for name in model.names())
        fail(
            f"no task {asked.task!r} was seen; "
            + (f"there are {known}" if known else "the run has none")
        )
    found = answer(model, asked)
    if form == "json":
        print(json.dumps(found))
        return
    from dwsr_probe.serve.question import input_bytes

    given = ", ".join(map(input_text, asked.inputs))
    print(
        f"{line_of(asked.task)} of {given or 'no inputs'}{'' if chosen else ' (the largest seen)'}"
    )
    print("\n".join(words(found, limit_text)))
    seen, size = model.seen(asked.task, asked.kind), input_bytes(asked.inputs)
    if not seen or not asked.inputs or size is None:
        return
    curve = [
        (input_bytes(inputs), f.mean, f.upper(asked.q))
        for inputs in _scaled(asked.inputs, max([size, *(x for x, *_ in seen)]) / max(size, 1))
        for f in [model.predict(inputs, asked.task, kind=asked.kind)]
    ]
    print()
    print(
        "\n".join(
            plot(
                curve,
                seen,
                (size, found["mean_bytes"]) if found["mean_bytes"] is not None else None,
                asked.limit,
            )
        )
    )


def _scaled(inputs, most):
    """The same inputs from small to `most` times as large."""
    for step in range(1, _CURVE + 1):
        yield [_larger(given, most * step / _CURVE) for given in inputs]


def _larger(given, factor):
    """All axes alike, but for short ones: a table keeps its columns, an image its channels."""
    shape, nbytes = given.get("shape"), given.get("nbytes")
    if shape is None:
        return given if nbytes is None else {"nbytes": round(nbytes * factor)}
    growing = [n >= _SHORT or max(shape) < _SHORT for n in shape]
    larger = [
        max(1, round(n * factor ** (1 / sum(growing)))) if grows else n
        for n, grows in zip(shape, growing, strict=True)
    ]
    return {**given, "shape": larger} | (
        {}
        if nbytes is None
        else {"nbytes": round(nbytes * math.prod(larger) / max(math.prod(shape), 1))}
    )


def _print_all(model, ledger, kind, q, form):
    from dwsr_probe.predict import KINDS
    from dwsr_probe.report.forecast import print_names
    from dwsr_probe.report.words import count_text
    from dwsr_probe.serve.question import Question, answer, input_bytes

    def of(kinds):
        return [
            (name, k, ledger.inputs_of(name, model, k))
            for name in model.names()
            for k in model.kinds(name)
            if k in kinds
        ]

    if form == "json":
        for name, k, inputs in of((kind,) if kind else KINDS):
            one = Question(name, [], k, q)
            one.inputs = inputs  # as they were recorded
            print(json.dumps(answer(model, one)))
        return
    # Own peaks; in a run without accounting, growth.
    asked = of((kind,)) if kind else of(("alloc", "gpu")) or of(("rss",))
    if not asked:
        fail(
            "the run has no task to learn from"
            if not model.names()
            else f"no task has figures of the kind {kind or 'alloc'}"
        )
    rows = [
        (name, k, input_bytes(inputs), model.predict(inputs, name, kind=k))
        for name, k, inputs in asked
    ]
    largest = {}
    for name, _, _, forecast in rows:
        largest[name] = max(largest.get(name, 0.0), forecast.mean)
    names = sorted(largest, key=lambda name: (-largest[name], name))
    print_names([row for name in names[:_NAMES] for row in rows if row[0] == name], q, sys.stdout)
    if len(names) > _NAMES:
        print(
            f"and {count_text(len(names) - _NAMES, 'smaller task', 'smaller tasks', '1')}: --task"
            " NAME, or --format json for all"
        )


@click.command("serve")
@click.option(
    "--from",
    "urls",
    multiple=True,
    metavar="URL",
    help="A worker, `run --metrics` or exporter, as http://host:port; may be repeated.",
)
@click.option(
    "--file-sd",
    "files",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Targets in a file as Prometheus' file_sd has them (JSON), read again when it changes.",
)
@click.option(
    "--prometheus",
    "servers",
    multiple=True,
    metavar="URL",
    help="The active targets of this Prometheus; those without /dwsr/tasks are left out.",
)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="NAME",
    help="Of Prometheus' targets those of this job only; may be repeated.",
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help="A run directory on this machine, also while it is being written.",
)
@click.option(
    "--from-token-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the targets the bearer token in the first line of this file.",
)
@click.option(
    "--from-basic-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the targets the user:password in the first line of this file.",
)
@click.option(
    "--from-ca-file",
    type=click.Path(),
    metavar="FILE",
    help="Certificates (PEM) that the targets' HTTPS is checked with. [the system's]",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks at a target.",
)
@click.option(
    "--state",
    "state_dir",
    type=click.Path(),
    metavar="DIR",
    help="Where model and progress are kept. [~/.local/state/dwsr-probe/predict]",
)
@click.option(
    "--save-every",
    "save_s",
    type=click.FloatRange(1, 86_400),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds between two saves; and at the end.",
)
@click.option(
    "--listen",
    default="127.0.0.1:9466",
    show_default=True,
    metavar="[ADDR:]PORT",
    help="Where to serve. Loopback unless an address is given; 0: any free port.",
)
@access_options
def serve(
    urls,
    files,
    servers,
    jobs,
    runs,
    from_token_file,
    from_basic_file,
    from_ca_file,
    interval_s,
    state_dir,
    save_s,
    listen,
    **access,
):
    """Learn from running workers and say what their tasks will need: /forecast, /models and
    /metrics over HTTP.

    Reads /dwsr/tasks of many workers, finished and running tasks, and serves forecasts, their
    error and coverage, and for each running task the probability that it exceeds its worker's
    limit. The model is kept over restarts. Runs until SIGINT or SIGTERM.
    """
    import signal

    from dwsr_probe.say import say
    from dwsr_probe.signals import wait_for

    if not (urls or files or servers or runs):
        fail(
            "name what to learn from: --from URL, --file-sd FILE, --prometheus URL or --run DIR", 2
        )
    if jobs and not servers:
        fail("--job is for --prometheus URL", 2)
    if servers and not jobs and (from_token_file or from_basic_file):
        fail(
            "a token or password would be shown to every target of Prometheus; say whose it is:"
            " --job NAME",
            2,
        )
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # before there are threads
    try:
        predictor, server = _opened(
            urls,
            files,
            servers,
            jobs,
            runs,
            (from_token_file, from_basic_file, from_ca_file),
            interval_s,
            state_dir,
            save_s,
            listen,
            access,
            say,
        )
    except ModuleNotFoundError as error:
        _needs(error)
    say(f"metrics at {server.url}/metrics, forecasts at {server.url}/forecast")
    if server.warning():
        say(server.warning())
    try:
        more = False
        while not wait_for(ending, 0 if more else TURN_S):
            more = predictor.turn()
    finally:
        server.stop()
        predictor.end()
    sys.exit(0)


def _opened(
    urls, files, servers, jobs, runs, login, interval_s, state_dir, save_s, listen, access, say
):
    """(predictor, server), serving; exits if something is not as it should be."""
    from functools import partial

    from dwsr_probe.export.server import Access, ServeError, Server, secret
    from dwsr_probe.launch import raise_descriptor_limit
    from dwsr_probe.runs import find_run
    from dwsr_probe.serve.handlers import BODY_BYTES, ROUTES
    from dwsr_probe.serve.service import Predictor
    from dwsr_probe.serve.state import State, StateError, default_directory
    from dwsr_probe.serve.targets import FileSd, Listed, Prometheus
    from dwsr_probe.serve.watch import Login, RunDirectory, Worker
    from dwsr_probe.store import StoreError

    raise_descriptor_limit()
    token_file, basic_file, ca_file = login
    try:
        login = Login(
            token_file and secret(token_file, "the token"),
            basic_file and secret(basic_file, "user:password"),
            ca_file,
        )
        for url in urls:
            Worker(url, login)  # what is wrong is said at once
        places = [
            *([Listed(urls)] if urls else []),
            *(FileSd(path, say) for path in files),
            *(Prometheus(url, jobs, say) for url in servers),
        ]
        address = parse_listen(listen)
        state = State(state_dir or default_directory(), say)
        directories = [
            (("run", os.path.abspath(path)), partial(RunDirectory, path))
            for path in (find_run(run, say) for run in runs)
        ]
        predictor = Predictor(places, directories, login, state, interval_s, save_s, say)
        server = Server(predictor, *address, Access(**access), routes=ROUTES, body_bytes=BODY_BYTES)
        server.start()
    except (ServeError, StateError, StoreError) as error:
        fail(error)
    except (ValueError, OSError) as error:  # of a URL, of the CA's file
        fail(error, 2)
    return predictor, server
