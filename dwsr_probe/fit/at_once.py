"""Several tasks of one kind at once in one worker: what the worker needs, and how probable it is
that this is more than its limit. Used by `dwsr-probe predict --threads`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.blocks import held_bytes

if TYPE_CHECKING:
    from dwsr_probe.predict import Model
    from dwsr_probe.predict.group import Group


def worker_answer(
    model: Model,
    task: str | Group,
    inputs: list[dict[str, Any]],
    params: dict[str, float] | None,
    threads: int,
    base_bytes: float,
    q: float,
    limit_bytes: float | None,
) -> dict[str, Any]:
    """As JSON has it. base_bytes: resident size of the worker without tasks. exceeds: null if it is
    not known, because the forecast is a lower bound."""
    together = model.together([(inputs, task, params)] * threads)
    first_calls = max(one.first_call_bytes for one in together.forecasts)
    beside = base_bytes + threads * (held_bytes(inputs) + first_calls)
    at_least = together.is_lower_bound
    found: dict[str, Any] = {
        "threads": threads,
        "base_bytes": round(base_bytes),
        "mean_bytes": round(beside + together.mean),
        "upper_bytes": None if at_least else round(beside + together.upper(q)),
        "at_least": at_least,
    }
    if limit_bytes is not None:
        exceeds = 1.0 if beside >= limit_bytes else float(together.exceeds(limit_bytes - beside))
        found |= {
            "limit_bytes": limit_bytes,
            "exceeds": exceeds if not at_least or exceeds >= 0.5 else None,
        }
    return found
