"""`fit_blocks`: from a function and an array, or from what is known of its tasks, to a Plan.

The order of work: limits; small trials and the check of the axes (or a model that knows the task);
candidates; the memory of a worker and the time of the job for each; the choice; its reasons.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.fit.arrays import source_of
from dwsr_probe.fit.candidates import are_aligned, candidate_blocks, chunks_of
from dwsr_probe.fit.chooser import NEARLY_AS_FAST, TIME, choose
from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.findings import doubts
from dwsr_probe.fit.function import name_of_function
from dwsr_probe.fit.known import Known, Wanted
from dwsr_probe.fit.learning import learn_by_trials
from dwsr_probe.fit.limits import SPILL_SHARE, find_splits
from dwsr_probe.fit.plan import DeviceNeed, Plan, PlanPoint, StepNeed, UsedBlock, axis_notes
from dwsr_probe.fit.run import RunTasks, read_facts, workers_of
from dwsr_probe.fit.steps import Step, block_inputs, needs_of
from dwsr_probe.fit.worker import Layout, Shares, Worker, memory_of_device, worker_memory
from dwsr_probe.words import bytes_text, parse_bytes, seconds_text, shape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.fit.candidates import Blocks
    from dwsr_probe.fit.function import NamedFunction
    from dwsr_probe.fit.limits import WorkerLimits
    from dwsr_probe.fit.steps import Needs
    from dwsr_probe.fit.worker import WorkerMemory
    from dwsr_probe.predict import Model

# Without a cluster to ask and without trials: a Dask worker with NumPy, before its first block
_BASE_BYTES = 180 << 20
_CURVE_POINTS = 40
_DEVICE_SHARE = 0.9  # of a device's memory: pools keep some for themselves
_NEAR_USED = 4  # times shorter than the block of a run


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


def fastest_plan(
    known: Known,
    layout: Layout,
    splits: Sequence[WorkerLimits],
    wanted: Wanted,
    whole_axes: Any = (),
) -> Plan:
    """Of all ways to give CPUs and memory to workers."""
    plans, error = [], None
    for limits in splits:
        try:
            plans.append(fit_known(known, layout, limits, wanted, whole_axes))
        except FitError as caught:
            error = error or caught
    if not plans:
        assert error is not None
        raise error
    most = NEARLY_AS_FAST * min(plan.seconds or 0.0 for plan in plans)
    # Fewer workers hold the libraries fewer times, and send less to each other.
    return min(
        (plan for plan in plans if (plan.seconds or 0.0) <= most), key=lambda plan: plan.workers
    )


def _known_of_run(run: str | os.PathLike[str], task: str) -> Known:
    """What a run knows of one kind of task."""
    from dwsr_probe.store import Store, StoreError

    try:
        store = Store.open(os.fspath(run))
    except StoreError as error:
        raise FitError(str(error)) from error
    facts = read_facts(store)
    return RunTasks(facts, task).known(workers_of(store.processes(), facts))


def fit_known(
    known: Known, layout: Layout, limits: WorkerLimits, wanted: Wanted, whole_axes: Any = ()
) -> Plan:
    """The plan for tasks that are known. Nothing runs. The block that a run has used is a
    candidate, too, and the plan says what it needs."""
    # Workers that have run nothing yet have not imported what the function needs
    base = max(limits.base_bytes or 0.0, known.base_bytes or 0.0) or _BASE_BYTES
    worker = Worker(wanted.fill * limits.memory_bytes, base, limits.threads, limits.workers)
    least = [max(1, around) for around in layout.depth]
    blocks = candidate_blocks(layout.shape, layout.stored, whole_axes, least, layout.used)
    if layout.used:
        used = np.minimum(layout.used, layout.shape).astype(np.int64)
        blocks = np.concatenate([blocks, used[None, :]])
    q = 1 - wanted.delta
    needs = [needs_of(known.model, step, blocks, q) for step in known.steps]
    copies = 0.0 if layout.keeps_results else known.store_copies
    memory = worker_memory(blocks, layout, worker, needs, known.first_call_bytes, copies)
    sizes = layout.block_bytes(blocks)
    input_bytes = np.max([one.input_bytes for one in needs], axis=0)
    durations = known.durations or Durations([(1.0, 1e-9)])
    seconds = durations.job(blocks, layout, worker, input_bytes)
    memories = [(memory, worker.allowed_bytes)]
    device_bytes = limits.device_bytes or known.device_bytes
    on_device = _device_needs(known, blocks, q)
    if on_device and device_bytes:
        on_device_memory = memory_of_device(on_device, worker, len(blocks))
        memories.append((on_device_memory, _DEVICE_SHARE * device_bytes))
    choice = choose(
        blocks,
        sizes,
        Shares(memories),
        seconds,
        _tiers(blocks, layout, worker, wanted.objective),
        wanted.objective,
        q,
    )
    if choice.place is None:
        raise FitError(_nothing_fits(blocks, sizes, memory, worker, limits, whole_axes, known, q))
    place = choice.place
    deciding = memory.deciding(place)
    forecast = deciding.forecast(place)
    block = tuple(int(n) for n in blocks[place])
    notes = [
        *known.notes,
        # Trials have words of their own for what makes their bound wider
        *([] if known.trials or known.notes else doubts(forecast)),
        *axis_notes(known.axes, deciding.step.label),
    ]
    stored = layout.stored
    if stored is not None and not are_aligned(blocks[[place]], stored, layout.shape)[0]:
        notes.append(
            f"blocks cut through stored chunks ({shape_text(stored)}): a result that is stored in"
            " such chunks would be written by two tasks at once; give it the chunks of this plan"
        )
    return Plan(
        chunks=chunks_of(layout.shape, block),
        block=block,
        block_bytes=int(sizes[place]),
        task=deciding.step.label,
        task_bytes=float(deciding.mean[place]),
        task_bound_bytes=float(deciding.upper[place]),
        expected_bytes=float(memory.mean()[place]),
        bound_bytes=memory.bound(place, q),
        base_bytes=worker.base_bytes,
        held_bytes=float(memory.held[place]),
        memory_bytes=limits.memory_bytes,
        allowed_bytes=worker.allowed_bytes,
        delta=wanted.delta,
        tasks_at_once=worker.threads,
        workers=worker.workers,
        trust=forecast.trust,
        seconds=float(seconds[place]) if known.durations else None,
        notes=notes,
        why_not_larger=_why_not_larger(choice.larger, place, blocks, memory, worker, seconds, q),
        trials=known.trials,
        trial_seconds=known.trial_seconds,
        start_seconds=known.start_seconds,
        axes=known.axes,
        curve=_curve(place, blocks, sizes, memory, q),
        steps=[_step_need(one, place, bool(layout.used), q) for one in needs],
        device=_device_need(memories, place, q),
        used=_used(blocks, sizes, memory, worker.allowed_bytes, q) if layout.used else None,
    )


def _tiers(
    blocks: Blocks, layout: Layout, worker: Worker, objective: str
) -> list[NDArray[np.bool_]]:
    """First: blocks for all threads, of whole stored chunks. Or, where the stored chunks of a run
    are not known: blocks that are not much shorter than those of the run along any axis, because
    they may read each chunk several times. Last: all blocks, because an array may be too short to
    have enough."""
    enough = layout.count(blocks) >= worker.threads * worker.workers
    tiers = [enough, np.ones(len(blocks), bool)]
    if layout.stored is not None:
        if objective == TIME:
            tiers.insert(0, enough & are_aligned(blocks, layout.stored, layout.shape))
    elif layout.used is not None:
        near = (blocks * _NEAR_USED >= np.asarray(layout.used)).all(axis=1)
        tiers.insert(0, enough & near)
    return tiers


def _device_needs(known: Known, blocks: Blocks, q: float) -> list[Needs]:
    """Of the steps that use a device."""
    found = []
    for step in known.steps:
        if "gpu" in known.model.kinds(step.task):
            on_device = replace(step, kind="gpu", seen=None, bend=None)
            needs = needs_of(known.model, on_device, blocks, q)
            if needs.mean.max() > 0:
                found.append(needs)
    return found


def _device_need(
    memories: Sequence[tuple[WorkerMemory, float]], place: int, q: float
) -> DeviceNeed | None:
    """The second memory, if there is one, is that of the device."""
    if len(memories) < 2:
        return None
    memory, allowed = memories[1]
    return DeviceNeed(
        float(memory.mean()[place]), memory.bound(place, q), allowed / _DEVICE_SHARE, allowed
    )


def _step_need(needs: Needs, place: int, has_used: bool, q: float) -> StepNeed:
    upper = needs.input_bytes + needs.upper
    return StepNeed(needs.step.label, float(upper[place]), float(upper[-1]) if has_used else None)


def _used(
    blocks: Blocks,
    sizes: NDArray[np.float64],
    memory: WorkerMemory,
    allowed_bytes: float,
    q: float,
) -> UsedBlock:
    """The last candidate is the block of the run."""
    last = len(blocks) - 1
    bound = memory.bound(last, q)
    return UsedBlock(
        tuple(int(n) for n in blocks[last]),
        float(sizes[last]),
        float(memory.mean()[last]),
        bound,
        bound <= allowed_bytes,
        memory.deciding(last).step.label,
    )


def _why_not_larger(
    larger: int | None,
    place: int,
    blocks: Blocks,
    memory: WorkerMemory,
    worker: Worker,
    seconds: NDArray[np.float64],
    q: float,
) -> str:
    bigger = (blocks >= blocks[place]).all(axis=1) & (blocks > blocks[place]).any(axis=1)
    if not bigger.any():
        return "this is the whole array"
    fitting = bigger & (memory.most() <= worker.allowed_bytes)
    reasons = []
    if fitting.any():
        best, ours = float(seconds[fitting].min()), float(seconds[place])
        reasons.append(
            f"larger blocks would take longer: at least {seconds_text(best)}"
            if best > ours
            else f"larger blocks would hardly be faster: {seconds_text(best)} at best"
        )
    if larger is not None:
        need = bytes_text(memory.bound(larger, q))
        allowed = bytes_text(worker.allowed_bytes)
        reasons.append(f"{shape_text(blocks[larger])} would need up to {need} of {allowed}")
    return "; ".join(reasons)


def _nothing_fits(
    blocks: Blocks,
    sizes: NDArray[np.float64],
    memory: WorkerMemory,
    worker: Worker,
    limits: WorkerLimits,
    whole_axes: Any,
    known: Known,
    q: float,
) -> str:
    smallest = int(np.argmin(memory.most()))
    need = memory.bound(smallest, q)
    if not math.isfinite(need):
        return (
            f"nothing can be promised for {memory.deciding(smallest).step.label}: its memory is"
            " known as a lower bound only; " + "; ".join(known.notes)
        )
    kept = f" (axes {', '.join(map(str, sorted(whole_axes)))} stay whole)" if whole_axes else ""
    limit = need / worker.allowed_bytes * limits.memory_bytes
    advice = [f"give each worker {bytes_text(limit)}"]
    if worker.threads > 1:
        advice.append("use fewer threads")
    if whole_axes:
        advice.append("cut a whole axis, if its values allow it (depth=, whole_axes=)")
    return (
        f"no block fits: even {shape_text(blocks[smallest])}{kept}, {bytes_text(sizes[smallest])},"
        f" needs up to {bytes_text(need)} of the {bytes_text(worker.allowed_bytes)} that may be"
        f" used, {bytes_text(worker.base_bytes)} of it for the process itself;"
        f" {', or '.join(advice)}"
        + "".join(f"; {note}" for note in axis_notes(known.axes, known.steps[0].label)[:1])
    )


def _curve(
    place: int, blocks: Blocks, sizes: NDArray[np.float64], memory: WorkerMemory, q: float
) -> list[PlanPoint]:
    """Candidates of about the chosen block's proportions, from small to large."""
    means, most = memory.mean(), memory.most()
    order = np.argsort(sizes, kind="stable")
    wanted = np.geomspace(sizes[order[0]], sizes[order[-1]], _CURVE_POINTS)
    logs = np.log(blocks / blocks[place])
    found: dict[float, PlanPoint] = {}
    for size in (*wanted, sizes[place]):
        near = np.flatnonzero(np.abs(np.log(sizes / size)) < 0.2)
        if not len(near):
            continue
        # The most alike: all axes scaled by the same factor
        spread = (logs[near] - logs[near].mean(axis=1, keepdims=True)).std(axis=1)
        best = int(near[np.argmin(spread)]) if size != sizes[place] else place
        found[float(sizes[best])] = PlanPoint(
            float(sizes[best]), float(means[best]), float(most[best])
        )
    return [found[size] for size in sorted(found)]


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
