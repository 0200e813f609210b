"""`fit_run`: the block with which the job of a run fits, from its records. Nothing runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.fitting import parse_axes
from dwsr_probe.fit.known import Wanted
from dwsr_probe.fit.limits import AUTO, WorkerLimits, available_limit_bytes, find_splits
from dwsr_probe.fit.planning import fastest_plan
from dwsr_probe.fit.run import RunTasks, read_facts, workers_of
from dwsr_probe.fit.worker import Layout
from dwsr_probe.words import bytes_text, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dwsr_probe.fit.plan import Plan
    from dwsr_probe.fit.run import RunWorkers
    from dwsr_probe.predict.history import LearnedRun
    from dwsr_probe.store import Store


def fit_run(
    store: Store,
    wanted: Wanted,
    task: str | None = None,
    shape: Sequence[int] | None = None,
    stored: Sequence[int] | None = None,
    memory: Any = None,
    threads: int | str | None = None,
    workers: int | str | None = None,
    depth: Sequence[int] | None = None,
    whole_axes: Sequence[int] | None = None,
    keep_results: bool = False,
    params: dict[str, float] | None = None,
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
    learned: LearnedRun | None = None,
    device_memory: Any = None,
) -> Plan:
    """task: one kind of task alone, cut along its own largest input; None: the whole job. shape,
    stored: of the array, if the run does not say. whole_axes: None: those that the run did not cut,
    unless nothing fits then. learned: by who has learned this run already."""
    facts = read_facts(store, progress)
    tasks = RunTasks(facts, task, lambda done, of: progress("learning", done, of), learned)
    found = workers_of(store.processes(), facts)
    known = tasks.known(found, params)
    array = _array_shape(tasks, shape)
    layout = Layout(
        array,
        tasks.dataset.itemsize,
        depth or tasks.depth(),
        stored,
        used=_aligned(tasks.dataset.block, array),
        held_blocks=tasks.held_blocks(found),
        keeps_results=keep_results,
    )
    if shape is None and tasks.dataset.shape is None and not tasks.dataset.is_table:
        known.notes.append(
            "the run does not say how long the array is: chunks are for as many blocks along the"
            " first axis as it worked on; give --shape"
        )
    if found.killed:
        count = found.killed
        known.notes.append(
            f"{count} process{'es were' if count > 1 else ' was'} killed or came near"
            " the limit: what their tasks needed is known as lower bounds"
        )
    splits = _splits(found, memory, threads, workers, known.base_bytes)
    if device_memory is not None:
        device_bytes = parse_bytes(device_memory)
        splits = [limits._replace(device_bytes=device_bytes) for limits in splits]
    if whole_axes is not None:
        return fastest_plan(known, layout, splits, wanted, parse_axes(whole_axes, len(array)))
    if tasks.dataset.is_table:
        plan = fastest_plan(known, layout, splits, wanted, range(1, len(array)))
        return replace(plan, is_table=True)
    uncut = {axis for axis, n in enumerate(array) if n > 1 and tasks.dataset.block[axis] >= n}
    try:
        return fastest_plan(known, layout, splits, wanted, uncut)
    except FitError:
        if not uncut:
            raise
    axes = ", ".join(map(str, sorted(uncut)))
    note = (
        f"nothing fits with axes {axes} whole, as they were in the run: check that the job's values"
        " allow to cut them (dwsr-probe fit FUNCTION does)"
    )
    return fastest_plan(replace(known, notes=[*known.notes, note]), layout, splits, wanted)


def plan_of_run(store: Store, learned: LearnedRun | None = None) -> Plan | None:
    """For the report: the plan that `dwsr-probe fit RUN` prints; None if there is none."""
    try:
        return fit_run(store, Wanted(), learned=learned)
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
        return None  # FitError; or records that make no sense: a report is shown even so


def _array_shape(tasks: RunTasks, shape: Sequence[int] | None) -> tuple[int, ...]:
    block = tasks.dataset.block
    if shape is not None:
        if len(shape) != len(block):
            raise FitError(f"blocks of this run have {len(block)} axes, --shape has {len(shape)}")
        return tuple(shape)
    if tasks.dataset.shape is not None:
        return tasks.dataset.shape
    return (block[0] * tasks.blocks_in_run(), *block[1:])


def _aligned(block: Sequence[int], array: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(length, n) for length, n in zip(block, array, strict=True))


def _splits(
    found: RunWorkers,
    memory: Any,
    threads: int | str | None,
    workers: int | str | None,
    base_bytes: float | None,
) -> list[WorkerLimits]:
    """What is given counts; the rest is as it was in the run."""
    if AUTO in (threads, workers):
        whole = memory or (found.memory_bytes or available_limit_bytes()) * found.workers
        splits = find_splits(whole, threads, workers)
        return [limits._replace(base_bytes=base_bytes) for limits in splits]
    if memory is not None:
        limit, source = parse_bytes(memory), "as given"
    elif found.memory_bytes:
        limit, source = float(found.memory_bytes), "limit of the run's workers"
    else:
        limit, source = float(available_limit_bytes()), "limit of this machine or its cgroup"
    if limit <= 0 or not math.isfinite(limit):
        raise FitError(f"a limit of {bytes_text(limit)} is none; write --memory 8GiB")
    at_once, count = int(threads or found.threads), int(workers or found.workers)
    return [WorkerLimits(limit, at_once, count, base_bytes, source)]
