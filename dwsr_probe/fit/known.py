"""What a fit starts from: what is known of the tasks, and what the user asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dwsr_probe.fit.chooser import OBJECTIVES, TIME
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.limits import SPILL_SHARE

if TYPE_CHECKING:
    from dwsr_probe.fit.axes import AxisCheck
    from dwsr_probe.fit.durations import Durations
    from dwsr_probe.fit.plan import Tried
    from dwsr_probe.fit.steps import Step
    from dwsr_probe.predict import Model


@dataclass
class Known:
    """What is known of the tasks before a block is chosen, from trials or from a run. base_bytes:
    of the process that was measured; None: not known."""

    model: Model
    steps: list[Step]
    durations: Durations | None = None
    base_bytes: float | None = None
    first_call_bytes: float = 0.0
    notes: list[str] = field(default_factory=list)
    store_copies: float = 0.0
    device_bytes: float | None = None  # memory of the device that was used
    trials: list[Tried] = field(default_factory=list)
    trial_seconds: float = 0.0
    start_seconds: float = 0.0
    axes: list[AxisCheck] = field(default_factory=list)


@dataclass
class Wanted:
    """What the user asks for. fill: the share of the limit that may be used. delta: how probable
    it may be that a worker's peak exceeds this."""

    objective: str = TIME
    delta: float = 0.01
    fill: float = SPILL_SHARE

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise FitError(f"objective is {' or '.join(OBJECTIVES)}, not {self.objective!r}")
        if not 0 < self.delta < 1:
            raise FitError(f"delta is a probability between 0 and 1, not {self.delta!r}")
        if not 0 < self.fill <= 1:
            raise FitError(f"fill is a share of the limit, above 0 and at most 1: not {self.fill}")
