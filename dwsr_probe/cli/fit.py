"""`dwsr-probe fit`: the block with which a job fits into its workers, from trials of a function or
from a run."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from dwsr_probe.cli import fail
from dwsr_probe.cli.stored_run import stored_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dwsr_probe.fit import Plan
    from dwsr_probe.fit.arrays import ArraySource


@click.command(
    "fit",
    epilog=(
        "FUNCTION is module:name or file.py:name, and is called with one block. RUN is a run"
        " directory; without both, the last run."
    ),
)
@click.argument("what", metavar="[RUN | FUNCTION]", required=False)
@click.option(
    "--from",
    "run",
    type=click.Path(),
    metavar="RUN",
    help="Answer from the tasks of this run; nothing is called.",
)
@click.option(
    "--task",
    metavar="NAME",
    help="Of a run: this operation, task name or label. [all tasks of the job]",
)
@click.option("--shape", metavar="N,N,...", help="Shape of the array that is cut into blocks.")
@click.option("--dtype", metavar="TYPE", help="Its type, such as float32.")
@click.option(
    "--data",
    type=click.Path(),
    metavar="PATH",
    help="The array itself: a zarr array or a .npy file. Blocks of it are tried, instead of random"
    " values; its shape, type and stored chunks are known.",
)
@click.option(
    "--stored",
    metavar="N,N,...",
    help="Chunks in which the array is stored. [those of --data; of a run, those that it read]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Limit of one worker, such as 8GiB. [that of the run's workers, or of this machine]",
)
@click.option(
    "--threads",
    metavar="N|auto",
    help="Tasks at once in a worker; auto: with which the job is fastest. [as in the run; or CPUs]",
)
@click.option(
    "--workers",
    metavar="N|auto",
    help="Number of workers; auto: with which the job is fastest on the CPUs of this machine, and"
    " --memory is that of all workers. [as in the run; or 1]",
)
@click.option(
    "--depth",
    metavar="N[,N,...]",
    help="Halo of each block, as in map_overlap: one for all axes, or one for each.",
)
@click.option(
    "--whole-axes",
    metavar="N[,N,...]",
    help="Axes that must not be cut; none: any may be. [checked by the function's values]",
)
@click.option(
    "--objective",
    type=click.Choice(["time", "largest"]),
    default="time",
    show_default=True,
    help="The fastest block that fits, or the largest one.",
)
@click.option(
    "--delta",
    type=float,
    default=0.01,
    show_default=True,
    metavar="P",
    help="How probable it may be that a worker needs more.",
)
@click.option(
    "--fill",
    type=float,
    default=0.7,
    show_default=True,
    metavar="SHARE",
    help="Share of the limit that may be used. Above 0.7 Dask writes data to disk.",
)
@click.option(
    "--keep-results",
    is_flag=True,
    help="Results stay in memory (compute, persist) instead of being stored.",
)
@click.option(
    "--device-memory",
    metavar="SIZE",
    help="Memory of the device that a worker's threads share, for functions that use CuPy. [that of"
    " the device that is used]",
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of FUNCTION, or of the run's task, such as sigma=3; repeat it for several.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(),
    metavar="FILE",
    help="Also write a page with a plot of the peak against the size of the blocks.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="table: for people. json: for programs.",
)
def command(what: str | None, page: str | None, form: str, **options: Any) -> None:
    """Which block size fits into the workers' memory, and is fast? Tries at most three small blocks
    of a FUNCTION, or learns from a RUN, also from one that was killed."""
    try:
        from dwsr_probe.fit import FitError
    except ModuleNotFoundError as error:
        from dwsr_probe.cli.predict_serve import fail_without_extra

        fail_without_extra(error)
    try:
        plan = _plan(what, options)
    except FitError as error:
        fail(error)
    except ValueError as error:
        fail(error, 2)
    if page:
        _write_page(plan, page)
    try:
        _print(plan, form)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _plan(what: str | None, options: dict[str, Any]) -> Plan:
    from dwsr_probe.serve.question import params_from_text, parse_count, parse_shape

    may_cut_all = options["whole_axes"] == "none"
    lists = {**options, "whole_axes": None if may_cut_all else options["whole_axes"]}
    words = {name: parse_shape(lists[name]) if lists[name] else None for name in _LISTS}
    counts = {
        name: options[name] if options[name] == "auto" else parse_count(options[name], name)
        for name in ("threads", "workers")
    }
    given = {
        "memory": options["memory"],
        **counts,
        "depth": _depth(words["depth"]),
        "whole_axes": [] if may_cut_all else words["whole_axes"],
        "objective": options["objective"],
        "delta": options["delta"],
        "device_memory": options["device_memory"],
        "fill": options["fill"],
    }
    params = params_from_text(options["params"])
    is_function = what is not None and ":" in what and not os.path.exists(what)
    if is_function and options["run"]:
        raise ValueError(f"{what} and --from {options['run']}: name a function or a run, not both")
    if what is not None and is_function:
        return _plan_function(what, params, _source(options, words), options["keep_results"], given)
    if what is not None and options["run"]:
        raise ValueError(f"{what} and --from {options['run']}: name one run")
    return _plan_run(what or options["run"], options, words, given, params)


_LISTS = ("shape", "stored", "depth", "whole_axes")


def _plan_function(
    what: str, params: dict[str, float], source: ArraySource, keeps: bool, given: dict[str, Any]
) -> Plan:
    from dwsr_probe.fit import fit_blocks
    from dwsr_probe.fit.function import NamedFunction
    from dwsr_probe.report.progress import Progress

    whole = {name: int(value) if value == int(value) else value for name, value in params.items()}
    with Progress() as progress:
        return fit_blocks(
            NamedFunction(what, whole),
            source,
            keep_results=keeps,
            progress=lambda text: progress(text, 0, 0),
            **given,
        )


def _plan_run(
    run: str | None,
    options: dict[str, Any],
    words: dict[str, list[int] | None],
    given: dict[str, Any],
    params: dict[str, float],
) -> Plan:
    from dwsr_probe.fit.fitting import parse_depth
    from dwsr_probe.fit.job import fit_run
    from dwsr_probe.fit.known import Wanted
    from dwsr_probe.report.progress import Progress

    shape: Sequence[int] | None = words["shape"]
    stored: Sequence[int] | None = words["stored"]
    if options["data"]:
        source = _source(options, words)
        shape, stored = source.shape, stored or source.stored
    depth = parse_depth(given["depth"], len(shape)) if shape and words["depth"] else None
    wanted = Wanted(given["objective"], given["delta"], given["fill"])
    with stored_run(run) as store, Progress() as progress:
        return fit_run(
            store,
            wanted,
            options["task"],
            shape,
            stored,
            given["memory"],
            given["threads"],
            given["workers"],
            depth,
            given["whole_axes"],
            options["keep_results"],
            params,
            progress,
            device_memory=given["device_memory"],
        )


def _source(options: dict[str, Any], words: dict[str, list[int] | None]) -> ArraySource:
    from dwsr_probe.fit.arrays import made_up, open_file

    if options["data"]:
        return open_file(options["data"])
    if not words["shape"] or not options["dtype"]:
        raise ValueError("give the array: --data PATH, or --shape 2000,2000,1500 --dtype float32")
    return made_up(words["shape"], options["dtype"], words["stored"])


def _depth(given: list[int] | None) -> int | list[int]:
    if not given:
        return 0
    return given[0] if len(given) == 1 else given


def _write_page(plan: Plan, path: str) -> None:
    try:
        from dwsr_probe.report.fit_page import page_of_plan
    except ModuleNotFoundError as error:
        fail(f"--html needs {error.name}: pip install 'dwsr-probe[report]'")
    from dwsr_probe.report.output import destination

    try:
        with destination(path) as file:
            file.write(page_of_plan(plan).encode())
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}")


def _print(plan: Plan, form: str) -> None:
    if form == "json":
        print(json.dumps(plan.to_dict()))
        return
    print(plan)
    print()
    print("\n".join(_picture(plan)))


def _picture(plan: Plan) -> Sequence[str]:
    """Peak of a worker against the size of its blocks."""
    from dwsr_probe.report.forecast import CurvePoint, plot

    curve = [
        CurvePoint(point.input_bytes, point.expected_bytes, point.bound_bytes)
        for point in plan.curve
        if point.expected_bytes <= 2 * plan.allowed_bytes
    ]
    tried = [
        (tried.input_bytes, plan.worker_bytes(tried), 1)
        for tried in plan.trials
        if plan.worker_bytes(tried) <= 2 * plan.allowed_bytes
    ]
    chosen = plan.block_bytes, plan.expected_bytes
    return list(plot(curve, tried, chosen, plan.allowed_bytes))
