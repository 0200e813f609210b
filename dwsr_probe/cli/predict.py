"""`dwsr-probe predict`: answer one question to a model, print the forecast. Where the model comes
from is cli/predict_learn.py; `predict serve` is cli/predict_serve.py."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dwsr_probe.cli import fail
from dwsr_probe.cli.predict_learn import learn
from dwsr_probe.cli.predict_serve import command as serve
from dwsr_probe.cli.predict_serve import fail_without_extra

if TYPE_CHECKING:
    from dwsr_probe.cli.predict_learn import Learned
    from dwsr_probe.predict.group import Group
    from dwsr_probe.predict.history import LargestTask
    from dwsr_probe.serve.question import Question

_CURVE_POINTS = 60
_NAMES_MOST = 10  # in the table
_NAME_CHARS_MOST = 10_000


class _Predict(click.Command):
    """`predict serve ...` is a command of its own; any other first word is a run."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args and args[0] == "serve":
            return serve.make_context(f"{info_name} serve", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


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
    "--learn",
    "files",
    multiple=True,
    type=click.Path(readable=False),
    metavar="FILE.jsonl",
    help="Learn the records in this file, a JSON object per line, written by any program; - is"
    " standard input. May be repeated, and is in addition to RUN.",
)
@click.option(
    "--model",
    "kept",
    type=click.Path(readable=False),
    metavar="FILE",
    help="Keep the model in this file: it learns in addition to what it knows, and is saved. With"
    " nothing to learn (no RUN, no --learn) it only answers.",
)
@click.option(
    "--task",
    metavar="NAME",
    help="The tasks to forecast: by task name, operation (the job's own function), a function of"
    ' the chain, or a row\'s label such as "smooth (1 of 2)". [the ten largest, at the largest'
    " inputs seen]",
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
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A number or true or false among the task's arguments, such as sigma=30; repeat it for"
    " several.",
)
@click.option(
    "--kind",
    metavar="alloc|rss|gpu|output",
    help="Own peak, growth of the process, peak on a device, or size of the output. [alloc, or rss"
    " where allocations were not accounted]",
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
    "--chunk",
    metavar="N,N,...",
    help="Lengths of a block of the dataset, as the job cuts it. What the tasks then receive (with"
    " halos, beside other inputs) is derived from the run.",
)
@click.option(
    "--limit", metavar="SIZE", help="Also say how probable more than this is, such as 8GiB."
)
@click.option(
    "--threads",
    metavar="N",
    help="Answer for a worker that runs so many of these tasks at once, with its own memory beside"
    " them; --limit is then the worker's.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="table: for people. json: for programs.",
)
def command(
    run: str | None,
    files: tuple[str, ...],
    kept: str | None,
    task: str | None,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    sizes: tuple[str, ...],
    params: tuple[str, ...],
    kind: str | None,
    q: float,
    chunk: str | None,
    limit: str | None,
    threads: str | None,
    form: str,
) -> None:
    """How much memory will a task need? Learns from a run (the last one, or the one in directory
    RUN, or a saved model), or from records that any program wrote, and says so."""
    try:
        from dwsr_probe.serve import question
    except ModuleNotFoundError as error:
        fail_without_extra(error)
    try:
        # Checked before the run is read: that may take a while.
        inputs = question.inputs_from_text(shapes, dtypes, sizes)
        values = question.params_from_text(params)
        asked = question.Question(task or "-", inputs, kind or "alloc", q, limit, params=values)
        if (inputs or values) and not task:
            raise ValueError("--shape, --dtype, --nbytes and --param are for one task: --task NAME")
        if (limit or threads or chunk) and not task:
            raise ValueError("--limit, --threads and --chunk are for one task: --task NAME")
        at_once = question.parse_count(threads, "threads")
        block = question.parse_shape(chunk) if chunk else None
        if block and inputs:
            raise ValueError("--chunk is a block of the dataset, --shape an input: name one")
    except ValueError as error:
        fail(error, 2)
    learned = learn(run, files, kept)
    try:
        if task:
            way = _Way(form, limit.strip() if limit else None, at_once, block)
            _print_task(learned, asked, kind, way)
        else:
            _print_all(learned, kind, q, form)
        sys.stdout.flush()
    except ValueError as error:
        fail(error, 2)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not learned.is_kept:
        sys.exit(1)


class _Way(NamedTuple):
    """How a question is answered. limit_text: as the user wrote it. threads: tasks at once in a
    worker; None: one task alone. chunk: a block of the dataset, from which inputs follow."""

    form: str
    limit_text: str | None
    threads: int | None
    chunk: list[int] | None


def _print_task(learned: Learned, asked: Question, kind: str | None, way: _Way) -> None:
    """Answers for each group of tasks that is meant. kind: as the user wrote it, or None."""
    form = way.form
    from dwsr_probe.serve.question import answer
    from dwsr_probe.words import line_of

    model = learned.model
    groups = model.groups(asked.task)
    if not groups and form == "json":
        print(json.dumps(answer(model, asked)))
    elif not groups:
        known = ", ".join(line_of(label, _NAME_CHARS_MOST) for label in model.labels().values())
        fail(
            f"no task {asked.task!r} was seen; "
            + (f"there are {known}" if known else "there is none")
        )
    recorded = sorted({name for group in groups for name in model.params(group)})
    if groups and (unknown := sorted(set(asked.params).difference(recorded))):
        fail(
            f"{asked.task} has no parameter {unknown[0]}; "
            + (f"recorded: {', '.join(recorded)}" if recorded else "none was recorded")
        )
    for number, group in enumerate(groups):
        kinds = model.kinds(group)
        # growth where allocations were not accounted
        one = replace(
            asked, kind=kind or ("alloc" if "alloc" in kinds or "rss" not in kinds else "rss")
        )
        if not asked.inputs:
            largest = learned.largest(group.text, one.kind)
            one.inputs, one.params = largest.inputs, {**(largest.params or {}), **asked.params}
            if way.chunk:
                one.inputs = _inputs_of_chunk(learned, group, one.inputs, way.chunk)
        found = answer(model, one, group)
        if way.threads:
            found["worker"] = _worker_answer(learned, group, one, way.threads)
        if form == "json":
            print(json.dumps(found))
            continue
        if number:
            print()
        _print_one(learned, one, group, found, way, bool(asked.inputs))
    if len(groups) > 1 and asked.inputs and not way.threads:
        _print_mixture(answer(model, replace(asked, kind=kind or "alloc")), len(groups), form)


def _inputs_of_chunk(
    learned: Learned, group: Group, largest: list[dict[str, Any]], chunk: list[int]
) -> list[dict[str, Any]]:
    """What a task receives if the dataset is cut into such blocks."""
    from dwsr_probe.fit.follow import TaskOfRun, find_dataset, inputs_at

    tasks = {}
    for one in learned.model.groups():
        inputs = learned.largest(one.text, "alloc").inputs
        own = learned.model.predict(inputs, one).mean if inputs else 0.0
        tasks[one.text] = TaskOfRun(inputs, own, None)
    dataset = find_dataset(tasks)
    if len(chunk) != len(dataset.block):
        raise ValueError(
            f"blocks of this run have {len(dataset.block)} axes, --chunk has {len(chunk)}"
        )
    return inputs_at(largest, dataset, chunk, "rechunk" in group.text)


def _worker_answer(learned: Learned, group: Group, one: Question, threads: int) -> dict[str, Any]:
    from dwsr_probe.fit.at_once import worker_answer

    if one.kind != "alloc":
        raise ValueError("--threads is for own peaks: --kind alloc")
    if learned.base_bytes is None:
        raise ValueError("--threads needs a run: a saved model does not know a worker's own memory")
    return worker_answer(
        learned.model, group, one.inputs, one.params, threads, learned.base_bytes, one.q, one.limit
    )


def _print_mixture(found: dict[str, Any], groups: int, form: str) -> None:
    """The answer for a task that may be of any of these groups."""
    from dwsr_probe.report.forecast import answer_lines

    if form == "json":
        print(json.dumps(found))
        return
    print(f"\na task that may be of any of these {groups} groups")
    print("\n".join(answer_lines(found)))


def _print_one(
    learned: Learned,
    asked: Question,
    group: Group,
    found: dict[str, Any],
    way: _Way,
    has_inputs: bool,
) -> None:
    """found: the answer. has_inputs: the user gave them."""
    from dwsr_probe.predict.blocks import input_bytes, scaled
    from dwsr_probe.predict.group import chain_text
    from dwsr_probe.report.forecast import CurvePoint, answer_lines, input_text, plot
    from dwsr_probe.words import line_of

    model = learned.model
    given = ", ".join(
        # A shape without all its lengths says less than the type.
        input_text({**one, "shape": None} if None in (one.get("shape") or ()) else one)
        for one in asked.inputs
    )
    given = given or "no inputs"
    if way.chunk:
        given += f" (of a block of {'×'.join(map(str, way.chunk))})"
    elif not has_inputs:
        given += " (the largest seen)"
    depends_on = [f"{n} {asked.params[n]:g}" for n in found["depends_on"] if n in asked.params]
    print(f"{line_of(model.labels()[group])} of {', '.join([given, *depends_on])}")
    if group.chain:
        print(f"chain: {line_of(chain_text(group.chain), _NAME_CHARS_MOST)}")
    print("\n".join(answer_lines(found, way.limit_text)))
    seen, size = model.seen(group, asked.kind), input_bytes(asked.inputs)
    if not seen or not asked.inputs or size is None or found["at_least"]:
        return
    varying_axes = learned.varying_axes.get(group.text)
    largest = max([size, *(x for x, *_ in seen)]) / max(size, 1)
    curve = []
    for point in range(1, _CURVE_POINTS + 1):
        inputs = scaled(asked.inputs, largest * point / _CURVE_POINTS, varying_axes)
        forecast = model.predict(inputs, group, kind=asked.kind, params=asked.params)
        curve.append(CurvePoint(input_bytes(inputs) or 0, forecast.mean, forecast.upper(asked.q)))
    mean = found["mean_bytes"]
    print()
    print("\n".join(plot(curve, seen, None if mean is None else (size, mean), asked.limit)))


def _print_all(learned: Learned, kind: str | None, q: float, form: str) -> None:
    from dwsr_probe.predict import KINDS
    from dwsr_probe.predict.blocks import input_bytes
    from dwsr_probe.predict.group import chain_text
    from dwsr_probe.report.forecast import ForecastRow, print_names
    from dwsr_probe.serve.question import Question, answer
    from dwsr_probe.words import count_text, line_of

    model = learned.model

    def largest_of(kinds: tuple[str, ...]) -> list[tuple[Group, str, LargestTask]]:
        return [
            (group, k, learned.largest(group.text, k))
            for group in model.groups()
            for k in model.kinds(group)
            if k in kinds
        ]

    if form == "json":
        for group, k, largest in largest_of((kind,) if kind else KINDS):
            one = Question(group.text, [], k, q, params=largest.params or {})
            one.inputs = largest.inputs  # as they were recorded
            print(json.dumps(answer(model, one, group)))
        return
    # Own peaks; in a run without accounting, growth of the process.
    asked = largest_of((kind,)) if kind else largest_of(("alloc", "gpu")) or largest_of(("rss",))
    if not asked:
        fail(
            "there is no task to learn from"
            if not model.names()
            else f"no task has figures of the kind {kind or 'alloc'}"
        )
    labels = model.labels()
    rows = [
        ForecastRow(
            labels[group],
            k,
            input_bytes(largest.inputs),
            model.predict(largest.inputs, group, kind=k, params=largest.params),
        )
        for group, k, largest in asked
    ]
    means: dict[str, float] = {}
    for row in rows:
        means[row.task_name] = max(means.get(row.task_name, 0.0), row.forecast.mean)
    names = sorted(means, key=lambda name: (-means[name], name))
    shown = names[:_NAMES_MOST]
    print_names([row for name in shown for row in rows if row.task_name == name], q, sys.stdout)
    for group, label in labels.items():
        if label in shown and label != group.name:  # one of several chains
            chain = chain_text(group.chain) or f"{group.name} alone"
            print(f"{line_of(label)}: {line_of(chain, _NAME_CHARS_MOST)}")
    if rest := len(names) - len(shown):
        print(
            f"and {count_text(rest, 'smaller task', 'smaller tasks', '1')}: --task"
            " NAME, or --format json for all"
        )
