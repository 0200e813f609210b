"""`fit_blocks`: from a function and an array, or from what is known of its tasks, to a Plan.

The order of work: limits; small trials and the check of the axes (or a model that knows the task);
candidates; the memory of a worker and the time of the job for each; the choice; its reasons.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.fit.arrays import source_of
from dwsr_probe.fit.candidates import candidate_blocks, chunks_of
from dwsr_probe.fit.chooser import TIME, choose
from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.findings import doubts
from dwsr_probe.fit.function import name_of_function
from dwsr_probe.fit.known import Known, Wanted
from dwsr_probe.fit.learning import learn_by_trials
from dwsr_probe.fit.limits import SPILL_SHARE, find_limits
from dwsr_probe.fit.plan import Plan, PlanPoint, axis_notes
from dwsr_probe.fit.steps import Step, block_inputs, needs_of
from dwsr_probe.fit.worker import Layout, Worker, worker_memory
from dwsr_probe.words import bytes_text, seconds_text, shape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.fit.candidates import Blocks
    from dwsr_probe.fit.function import NamedFunction
    from dwsr_probe.fit.limits import WorkerLimits
    from dwsr_probe.fit.worker import WorkerMemory
    from dwsr_probe.predict import Model

# Without a cluster to ask and without trials: a Dask worker with NumPy, before its first block
_BASE_BYTES = 180 << 20
_CURVE_POINTS = 40


def fit_blocks(
    function: Callable[..., Any] | NamedFunction,
    *arrays: Any,
    memory: Any = None,
    threads: int | None = None,
    workers: int | None = None,
    depth: int | Sequence[int] | dict[int, int] = 0,
    whole_axes: Sequence[int] | None = None,
    objective: str = TIME,
    delta: float = 0.01,
    fill: float = SPILL_SHARE,
    keep_results: bool = False,
    model: Model | None = None,
    task: str | None = None,
    client: Any = None,
    progress: Callable[[str], object] = lambda text: None,
) -> Plan:
    """The block with which `function` is mapped over the arrays in the least time without running
    out of memory. FitError says what is needed if there is none.

    The first array is cut into blocks. Others are cut with it along axes of the same length, and
    are whole along all others. At most three small blocks are tried, in a process of its own; with
    `model` nothing runs, and `task` names the task that the model knows.

    memory: a worker's limit, such as "8GiB" [that of the cluster that is connected, or of this
    machine]. threads, workers: [as the cluster has them, or one per CPU and one]. depth: halo, as
    in `map_overlap`. whole_axes: axes that must not be cut [found by a check of the values].
    keep_results: they stay in memory (compute, persist) instead of being stored.
    """
    sources = [source_of(given) for given in arrays]
    if not sources:
        raise FitError("give the array whose blocks are to be fitted")
    wanted = Wanted(objective, delta, fill)
    first = sources[0]
    if any(len(source.shape) > len(first.shape) for source in sources):
        raise FitError("the array with most axes comes first: its blocks are fitted")
    halo = parse_depth(depth, len(first.shape))
    limits = find_limits(memory, threads, workers, client)
    whole = None if whole_axes is None else parse_axes(whole_axes, len(first.shape))
    name = task or name_of_function(function)
    if model is not None:
        inputs_of = block_inputs([s.shape for s in sources], [s.dtype for s in sources], halo)
        known = Known(model, [Step(name, name, inputs_of)])
        if not model.knows(name):
            labels = ", ".join(model.labels().values()) or "nothing"
            raise FitError(f"the model does not know {name!r}; it knows {labels}")
    else:
        known = learn_by_trials(function, sources, halo, whole, limits, wanted, progress)
        whole = {check.axis for check in known.axes if check.must_stay_whole} | (whole or set())
    layout = Layout(
        first.shape,
        first.dtype.itemsize,
        halo,
        first.stored,
        is_rechunked=first.form == "dask",
        keeps_results=keep_results,
    )
    return fit_known(known, layout, limits, wanted, whole or ())


def fit_known(
    known: Known, layout: Layout, limits: WorkerLimits, wanted: Wanted, whole_axes: Any = ()
) -> Plan:
    """The plan for tasks that are known. Nothing runs."""
    # Workers that have run nothing yet have not imported what the function needs
    base = max(limits.base_bytes or 0.0, known.base_bytes or 0.0) or _BASE_BYTES
    worker = Worker(wanted.fill * limits.memory_bytes, base, limits.threads, limits.workers)
    least = [max(1, around) for around in layout.depth]
    blocks = candidate_blocks(layout.shape, layout.stored, whole_axes, least)
    q = 1 - wanted.delta
    needs = [needs_of(known.model, step, blocks, q) for step in known.steps]
    memory = worker_memory(blocks, layout, worker, needs, known.first_call_bytes)
    sizes = layout.block_bytes(blocks)
    input_bytes = np.max([one.input_bytes for one in needs], axis=0)
    durations = known.durations or Durations([(1.0, 1e-9)])
    seconds = durations.job(blocks, layout, worker, input_bytes)
    enough = layout.count(blocks) >= worker.threads * worker.workers
    choice = choose(
        blocks, sizes, memory, seconds, enough, worker.allowed_bytes, wanted.objective, q
    )
    if choice.place is None:
        raise FitError(_nothing_fits(blocks, sizes, memory, worker, limits, whole_axes, known, q))
    place = choice.place
    deciding = memory.deciding(place)
    forecast = deciding.forecast(place)
    block = tuple(int(n) for n in blocks[place])
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
        # Trials have words of their own for what makes their bound wider
        notes=[
            *known.notes,
            *([] if known.trials else doubts(forecast)),
            *axis_notes(known.axes, deciding.step.label),
        ],
        why_not_larger=_why_not_larger(choice.larger, place, blocks, memory, worker, seconds, q),
        trials=known.trials,
        trial_seconds=known.trial_seconds,
        axes=known.axes,
        curve=_curve(place, blocks, sizes, memory, q),
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
