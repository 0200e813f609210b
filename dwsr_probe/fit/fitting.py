"""`fit_blocks`: from a function and an array to a Plan.

The order of work: limits; what is known of the task, from small trials (learning.py), a model or a
run (run.py); the plan (planning.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.fit.arrays import source_of
from dwsr_probe.fit.chooser import TIME
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.function import name_of_function
from dwsr_probe.fit.known import Known, Wanted
from dwsr_probe.fit.learning import learn_by_trials
from dwsr_probe.fit.limits import SPILL_SHARE, find_splits
from dwsr_probe.fit.planning import fastest_plan
from dwsr_probe.fit.run import RunTasks, read_facts, workers_of
from dwsr_probe.fit.steps import Step, block_inputs
from dwsr_probe.fit.worker import Layout
from dwsr_probe.words import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dwsr_probe.fit.function import NamedFunction
    from dwsr_probe.fit.plan import Plan
    from dwsr_probe.predict import Model


def fit_blocks(
    function: Callable[..., Any] | NamedFunction,
    *arrays: Any,
    memory: Any = None,
    threads: int | str | None = None,
    workers: int | str | None = None,
    depth: int | Sequence[int] | dict[int, int] = 0,
    whole_axes: Sequence[int] | None = None,
    objective: str = TIME,
    delta: float = 0.01,
    fill: float = SPILL_SHARE,
    keep_results: bool = False,
    device_memory: Any = None,
    model: Model | None = None,
    run: str | os.PathLike[str] | None = None,
    task: str | None = None,
    client: Any = None,
    progress: Callable[[str], object] = lambda text: None,
) -> Plan:
    """The block with which `function` is mapped over the arrays in the least time without running
    out of memory. FitError says what is needed if there is none.

    The first array is cut into blocks. Others are cut with it along axes of the same length, and
    are whole along all others. At most three small blocks are tried, in a process of its own. With
    `model` or `run` (a directory) nothing is tried; `task` names the task that these know [the
    function's name].

    memory: a worker's limit, such as "8GiB" [that of the cluster that is connected, or of this
    machine]. threads, workers: [as the cluster has them, or one per CPU and one]; "auto": with
    which the job is fastest on this machine, and memory is then that of all workers. depth: halo,
    as in `map_overlap`. whole_axes: axes that must not be cut [found by a check of the values].
    keep_results: they stay in memory (compute, persist) instead of being stored. device_memory: of
    the device that a worker's threads share [that of the device that the trials use].
    """
    sources = [source_of(given) for given in arrays]
    if not sources:
        raise FitError("give the array whose blocks are to be fitted")
    wanted = Wanted(objective, delta, fill)
    first = sources[0]
    if any(len(source.shape) > len(first.shape) for source in sources):
        raise FitError("the array with most axes comes first: its blocks are fitted")
    halo = parse_depth(depth, len(first.shape))
    splits = [
        limits._replace(device_bytes=device_memory and parse_bytes(device_memory))
        for limits in find_splits(memory, threads, workers, client)
    ]
    whole = None if whole_axes is None else parse_axes(whole_axes, len(first.shape))
    name = task or name_of_function(function)
    if model is not None:
        inputs_of = block_inputs([s.shape for s in sources], [s.dtype for s in sources], halo)
        known = Known(model, [Step(name, name, inputs_of)])
        if not model.knows(name):
            labels = ", ".join(model.labels().values()) or "nothing"
            raise FitError(f"the model does not know {name!r}; it knows {labels}")
    elif run is not None:
        known = _known_of_run(run, name)
    else:
        largest = max(splits, key=lambda limits: limits.memory_bytes)
        known = learn_by_trials(
            function, sources, halo, whole, largest, wanted, progress, len(splits) > 1
        )
        whole = {check.axis for check in known.axes if check.must_stay_whole} | (whole or set())
    layout = Layout(
        first.shape,
        first.dtype.itemsize,
        halo,
        first.stored,
        is_rechunked=first.form == "dask",
        keeps_results=keep_results,
    )
    return fastest_plan(known, layout, splits, wanted, whole or ())


def _known_of_run(run: str | os.PathLike[str], task: str) -> Known:
    """What a run knows of one kind of task."""
    from dwsr_probe.store import Store, StoreError

    try:
        store = Store.open(os.fspath(run))
    except StoreError as error:
        raise FitError(str(error)) from error
    facts = read_facts(store)
    return RunTasks(facts, task).known(workers_of(store.processes(), facts))


def parse_depth(depth: Any, axes: int) -> list[int]:
    """The halo along each axis, from what `map_overlap` accepts."""
    found: list[Any]
    if isinstance(depth, dict):
        found = [depth.get(axis, depth.get(axis - axes, 0)) for axis in range(axes)]
    elif isinstance(depth, (tuple, list)):
        found = list(depth)
    else:
        found = [depth] * axes
    if len(found) != axes or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in found):
        raise FitError(f"depth is a number of elements for each of the {axes} axes, not {depth!r}")
    return [int(n) for n in found]


def parse_axes(given: Sequence[int], axes: int) -> set[int]:
    try:
        found = {range(axes)[axis] for axis in given}
    except (IndexError, TypeError):
        raise FitError(
            f"whole axes are numbers from 0 to {axes - 1}, not {list(given)!r}"
        ) from None
    return found
