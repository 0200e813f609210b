"""The predictor's own metrics, one table in the manner of export/metrics.py; docs/metrics.md has
it as its second.

`read(view)` reads a service.PredictorView. The label of a worker is `target`, not `instance`:
`instance` is the predictor's own, and Prometheus would rename ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dwsr_probe.export.metrics import COUNTER, GAUGE, Metric, markdown_table
from dwsr_probe.export.metrics import METRICS as MEASURED
from dwsr_probe.export.metrics import markdown as measured_markdown
from dwsr_probe.predict.forecast import TRUST

if TYPE_CHECKING:
    from dwsr_probe.export.metrics import Reader
    from dwsr_probe.predict.forecast import Forecast
    from dwsr_probe.serve.ledger import Account
    from dwsr_probe.serve.overrun import OverrunForecast

KIND = ("task_name", "operation", "kind")
SLOT = ("target", "pid", "slot", "task_name", "operation")


def _forecasts(value: Callable[[Forecast], float]) -> Reader:
    return lambda view: (
        (*pair, kind, found)
        for pair, kind, forecast in view.forecasts
        if math.isfinite(found := value(forecast))
    )


def _accounts(value: Callable[[Account], float | None]) -> Reader:
    return lambda view: (
        (*pair, kind, found)
        for pair, kind, account in view.accounts
        if (found := value(account)) is not None
    )


def _overruns(value: Callable[[OverrunForecast], float | None]) -> Reader:
    return lambda view: (
        (o.target, str(o.pid), o.slot, *view.ledger.pair(o.task_name, o.operation), found)
        for o in view.overruns
        if (found := value(o)) is not None
    )


METRICS = (
    # -- forecasts, by task name and operation
    Metric(
        "dwsr_forecast_mean_bytes",
        GAUGE,
        "Forecast for the largest inputs seen of this task name and operation.",
        KIND,
        "model",
        _forecasts(lambda f: math.nan if f.is_unknown else f.mean),
    ),
    Metric(
        "dwsr_forecast_bound_bytes",
        GAUGE,
        "Its 99 % bound.",
        KIND,
        "model",
        _forecasts(lambda f: f.upper(0.99)),
    ),
    Metric(
        "dwsr_forecast_trust",
        GAUGE,
        "How far it can be trusted: 0 none, 1 low, 2 fair, 3 good.",
        KIND,
        "model",
        _forecasts(lambda f: TRUST.index(f.trust)),
    ),
    Metric(
        "dwsr_forecast_error_ratio",
        GAUGE,
        "Relative error of the mean, of the tasks that ended; the newest weigh most.",
        KIND,
        "rounds",
        _accounts(lambda a: a.error),
    ),
    Metric(
        "dwsr_forecasts_scored_total",
        COUNTER,
        "Forecasts that could be compared with the truth.",
        KIND,
        "rounds",
        _accounts(lambda a: a.scored),
    ),
    Metric(
        "dwsr_forecasts_exceeded_total",
        COUNTER,
        "Those of them whose 99 % bound was exceeded.",
        KIND,
        "rounds",
        _accounts(lambda a: a.exceeded),
    ),
    Metric(
        "dwsr_forecast_reward",
        GAUGE,
        "Sum of their rewards (censored log scores); it may fall.",
        KIND,
        "rounds",
        _accounts(lambda a: a.reward),
    ),
    # -- tasks that run
    Metric(
        "dwsr_forecast_overrun_ratio",
        GAUGE,
        "Probability that the running task exceeds what its process has left for it.",
        SLOT,
        "model, headroom",
        _overruns(lambda o: o.probability),
    ),
    Metric(
        "dwsr_forecast_overrun_seconds",
        GAUGE,
        "When it would, at its pace of the last half minute; no series if it does not grow.",
        SLOT,
        "peak so far",
        _overruns(lambda o: o.seconds),
    ),
    Metric(
        "dwsr_forecast_room_bytes",
        GAUGE,
        "What its process has left for it: its own live bytes and the headroom.",
        SLOT,
        "headroom",
        _overruns(lambda o: o.room_bytes),
    ),
    # -- the predictor itself
    Metric(
        "dwsr_predictor_records_learned_total",
        COUNTER,
        "Records of tasks that have ended and were learned.",
        (),
        "service",
        lambda view: ((view.ledger.learned,),),
    ),
    Metric(
        "dwsr_predictor_records_refused_total",
        COUNTER,
        "Records that could not be: not what a record should be.",
        (),
        "service",
        lambda view: ((view.ledger.refused,),),
    ),
    Metric(
        "dwsr_predictor_records_lost_total",
        COUNTER,
        "Records that targets had overwritten before they were read.",
        (),
        "service",
        lambda view: ((view.ledger.lost,),),
    ),
    Metric(
        "dwsr_predictor_looks_total",
        COUNTER,
        "Looks at targets; failed: no answer, or none of ours.",
        ("outcome",),
        "service",
        lambda view: (("ok", view.polls_ok), ("failed", view.polls_failed)),
    ),
    Metric(
        "dwsr_predictor_targets",
        GAUGE,
        "Targets, by state: up or down.",
        ("state",),
        "service",
        lambda view: (("up", view.up), ("down", view.down)),
    ),
    Metric(
        "dwsr_predictor_models",
        GAUGE,
        "Groups of tasks with a model: one for each operation and chain.",
        (),
        "service",
        lambda view: ((view.models,),),
    ),
    Metric(
        "dwsr_predictor_turn_seconds",
        GAUGE,
        "How long the last turn took: looks that are due, and up to 0.4 s with their results.",
        (),
        "service",
        lambda view: ((view.turn_seconds,),),
    ),
    Metric(
        "dwsr_predictor_waiting_bytes",
        GAUGE,
        "Records that were read and wait to be learned: at most 64 MiB, and above 16 MiB targets"
        " are asked less often.",
        (),
        "service",
        lambda view: ((view.waiting_bytes,),),
    ),
    next(metric for metric in MEASURED if metric.name == "dwsr_build_info"),
)


def markdown() -> str:
    """docs/metrics.md: `python -m dwsr_probe.serve.metrics | mdformat - > docs/metrics.md`."""
    return "\n".join(
        [
            measured_markdown(),
            "## Of the predictor",
            "",
            (
                "Made from the table in `dwsr_probe/serve/metrics.py`; served by `dwsr-probe"
                " predict serve` ([predict.md](predict.md))."
            ),
            "",
            *markdown_table(METRICS),
            "",
            (
                "`kind` is alloc (own peak), rss (growth of the process), gpu (peak on the fullest"
                " device) or output. `target` is host and port of the worker as the predictor asks"
                " it; `slot` numbers a process's running tasks"
            ),
            (
                "as the predictor met them, which is not the worker's own number. `operation` is"
                " the job's own function inside the task, or the task name where there is none."
                " Chains are not labels: scores of tasks that differ only in their chain are added,"
                " and the forecast is that of the chain with the largest mean. 80 pairs of task"
                " name and operation have series of their own, scores of further ones are in"
                " `other`; 256 running tasks, those most in danger."
            ),
            "",
        ]
    )


if __name__ == "__main__":
    print(markdown(), end="")
