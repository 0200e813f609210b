"""What to do about a run's memory: smaller blocks, fewer tasks at once, or larger blocks.

Called by report/verdict.py. Sizes of blocks come from the model's forecasts (report/outlook.py);
without the model only general advice is left.
"""

from __future__ import annotations

from dwsr_probe.report.evidence import TIGHT_SHARE
from dwsr_probe.report.processes import NANNY_SHARE
from dwsr_probe.words import (
    bytes_text,
    count_text,
    name_of,
    percent_text,
    seconds_text,
    shape_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dwsr_probe.fit.plan import Plan
    from dwsr_probe.predict.forecast import Forecast
    from dwsr_probe.report.evidence import Evidence, MemoryUse, Overhead
    from dwsr_probe.report.outlook import Outlook
    from dwsr_probe.report.summary import NameSummary
    from dwsr_probe.words import Sentence

# Smaller blocks are advised below the first scale of the volume, larger ones from the second on.
_SMALLER_BELOW = 0.95
_LARGER_FROM = 1.25
_SCALE_MOST = 7.9  # nearly the largest that Outlook.largest_scale tries


def recommend(evidence: Evidence, outlook: Outlook | None) -> list[Sentence]:
    """The most useful sentence first."""
    largest, use = evidence.largest, _use_to_fit(evidence)
    tight = _is_tight(evidence, use)
    if (overhead := evidence.overhead) and not tight:
        return [_overhead_advice(overhead, outlook.plan if outlook else None)]
    # If processes were stopped far below the limit, the limit was not the cause.
    if largest is None or (evidence.stopped and not tight):
        return []
    found = [] if use is None else _block_size_advice(largest, use, tight, outlook)
    plan = outlook.plan if outlook and use is not None and not use.device else None
    if plan is not None and (advice := _plan_advice(plan, tight)):
        found = [advice]
    if outlook:
        word, scale = ("half", 0.5) if tight else ("twice", 2.0)
        kind = _model_kind(use)
        forecast = outlook.at_scale(largest.model_name, scale, kind)
        if (
            forecast is not None
            and forecast.trust in ("fair", "good")
            and "unseen" not in forecast.notes
        ):
            found.append(_other_block_sentence(largest, word, forecast, kind))
    return found


def _overhead_advice(overhead: Overhead, plan: Plan | None) -> Sentence:
    text = (
        f"Blocks are too small: {overhead.tasks:,} tasks took {seconds_text(overhead.busy_s)} of"
        f" the {seconds_text(overhead.available_s)} that"
        f" {count_text(overhead.threads, 'thread', 'threads', 'one')} had;"
        f" {percent_text(overhead.share)} of the time was overhead"
    )
    if plan is None or plan.used is None or plan.block_bytes <= plan.used.nbytes:
        return (f"{text}. `dwsr-probe fit` names a larger block.",)
    return (f"{text}. Use blocks of {shape_text(plan.block)}: {_plan_text(plan)}.",)


def _plan_advice(plan: Plan, tight: bool) -> Sentence | None:
    """What `dwsr-probe fit` says, if it is another block than that of the run."""
    if plan.used is None:
        return None
    smaller = not plan.used.fits
    if tight and smaller and plan.block_bytes < plan.used.nbytes:
        return (f"Use blocks of {shape_text(plan.block)}: {_plan_text(plan)}.",)
    if not tight and not smaller and plan.block_bytes >= _LARGER_FROM * plan.used.nbytes:
        return (f"There is room for blocks of {shape_text(plan.block)}: {_plan_text(plan)}.",)
    return None


def _plan_text(plan: Plan) -> str:
    at_once = count_text(plan.tasks_at_once, "task", "tasks", "one")
    return (
        f"with {at_once} at once a worker then needs up to {bytes_text(plan.bound_bytes)} of"
        f" {bytes_text(plan.memory_bytes)} (99 %; dwsr-probe fit)"
    )


def _use_to_fit(evidence: Evidence) -> MemoryUse | None:
    """What the largest task must fit into: the process of the killed task, else the one that came
    nearest to its limit."""
    record = next((s.largest_killed for s in evidence.names if s.largest_killed), None)
    if record is None or evidence.on_device:
        return evidence.nearest
    own = (use for use in evidence.host_uses if use.record.process == record.process)
    return next((use for use in own if use.share is not None), evidence.nearest)


def _is_tight(evidence: Evidence, use: MemoryUse | None) -> bool:
    """A limit was nearly reached, or a process that reached its limit was stopped."""
    if use is None:
        return False
    return (use.share or 0) >= TIGHT_SHARE or any(
        (stopped.share or 0) >= NANNY_SHARE for stopped in evidence.stopped
    )


def _model_kind(use: MemoryUse | None) -> str:
    """The model's kind of peak."""
    return "gpu" if use is not None and use.device else "alloc"


def _other_block_sentence(
    largest: NameSummary, word: str, forecast: Forecast, kind: str
) -> Sentence:
    calibrated = ""
    if not forecast.promised(0.99):
        scored = int(forecast.calibrated.n)  # a fraction where the model has forgotten a part
        calibrated = f" (not yet calibrated: {scored} of 99 forecasts scored)"
    return (
        (
            f"A block of {word} the volume of the largest would need about"
            f" {bytes_text(forecast.mean)} in "
        ),
        name_of(largest.label),
        (
            f"{' on the device' if kind == 'gpu' else ''}, with 99 % no more than"
            f" {bytes_text(forecast.upper(0.99))}{calibrated}."
        ),
    )


def _block_size_advice(
    largest: NameSummary, use: MemoryUse, tight: bool, outlook: Outlook | None
) -> list[Sentence]:
    """What to change, from the memory that is left beside what the process holds anyway."""
    name, together = largest.label, largest.overlap_max + 1
    scale = _scale_that_fits(largest, use, outlook)
    at_once = f" with {together} tasks at once" if together > 1 else ""
    if tight and outlook is not None and scale is not None and scale < _SMALLER_BELOW:
        return [
            (
                (
                    f"Use smaller blocks: at most {outlook.inputs_text(largest.model_name, scale)},"
                    f" {percent_text(scale)} of the largest one. They keep "
                ),
                name_of(name),
                f" below {percent_text(TIGHT_SHARE)} of {use.limit_name}{at_once}.",
            )
        ]
    if tight:
        fewer = (
            f"Run fewer tasks at once ({together} shared a process), or use"
            if together > 1
            else "Use"
        )
        limit = bytes_text(use.limit_bytes)
        larger = (
            f"a device of more than {limit}"
            if use.device
            else f"give each process more than {limit}"
        )
        return [(f"{fewer} smaller blocks, or {larger}.",)]
    if scale is None:
        return []
    if scale < _SMALLER_BELOW and together > 1:
        return [
            (
                f"It could have been tighter: {together} of the largest ",
                name_of(name),
                (
                    f" tasks at once may pass {percent_text(TIGHT_SHARE)} of {use.limit_name}."
                    f" Blocks of {percent_text(scale)} of the volume would not."
                ),
            )
        ]
    # Where own peaks may miss memory, a larger block may need more than they say.
    if scale >= _LARGER_FROM and (use.device or not largest.misses_memory):
        times = "8 times and more" if scale > _SCALE_MOST else f"about {scale:.1f} times"
        return [
            (
                f"There is room: blocks of {times} the largest volume would fit below"
                f" {percent_text(TIGHT_SHARE)} of {use.limit_name}{at_once}.",
            )
        ]
    return []


def _scale_that_fits(largest: NameSummary, use: MemoryUse, outlook: Outlook | None) -> float | None:
    """The largest volume of a block that fits, as a multiple of the largest one seen; None:
    not known. The memory above the baseline is shared by the tasks that run at once."""
    baseline = 0.0 if use.device else largest.baseline_bytes
    if outlook is None or baseline is None or not use.limit_bytes or not use.peak_bytes:
        return None
    room = TIGHT_SHARE * use.limit_bytes - min(baseline, use.peak_bytes)
    return outlook.largest_scale(
        largest.model_name, room / (largest.overlap_max + 1), _model_kind(use)
    )
