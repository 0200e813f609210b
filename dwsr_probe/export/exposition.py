"""From a view to prometheus_client's families. Used by the handler of /metrics and on a Dask
worker's port."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from dwsr_probe.export.metrics import COUNTER, GAUGE, HISTOGRAM, METRICS, Metric
from dwsr_probe.export.totals import escape_unprintable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from dwsr_probe.export.sources.source import MetricsSource

logger = logging.getLogger("dwsr_probe")


def families(
    view: Any, dedicated_port: bool, metrics: tuple[Metric, ...] = METRICS
) -> Iterator[Any]:
    """dedicated_port: the port serves only dwsr-probe. False on a Dask worker's port, where the
    number of series is limited."""
    for metric in metrics:
        if metric.dedicated_port_only and not dedicated_port:
            continue
        yield _family(metric, view)


def _family(metric: Metric, view: Any) -> Any:
    if metric.type == HISTOGRAM:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for *labels, histogram in metric.read(view):
            buckets = [
                ("+Inf" if bound == float("inf") else repr(bound), count)
                for bound, count in histogram.cumulative()
            ]
            family.add_metric(_label_values(labels), buckets=buckets, sum_value=histogram.total)
        return family
    if metric.type == COUNTER:
        family = CounterMetricFamily(
            metric.name.removesuffix("_total"), metric.help, labels=metric.labels
        )
    elif metric.type == GAUGE:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    else:
        family = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=())
        for *labels, _ in metric.read(view):
            family.add_metric((), dict(zip(metric.labels, _label_values(labels), strict=True)))
        return family
    for *labels, value in metric.read(view):
        family.add_metric(_label_values(labels), value)
    return family


def _label_values(values: Iterable[str]) -> list[str]:
    return [escape_unprintable(value) for value in values]


class PrometheusCollector:
    """A custom collector of prometheus_client, which calls `collect` at each scrape. view:
    called at each scrape; returns what the table `metrics` reads."""

    def __init__(
        self, view: Callable[[], Any], dedicated_port: bool, metrics: tuple[Metric, ...] = METRICS
    ) -> None:
        self._view, self._dedicated_port, self._metrics, self._failed = (
            view,
            dedicated_port,
            metrics,
            False,
        )

    def collect(self) -> Iterable[Any]:
        if self._dedicated_port:
            return families(self._view(), True, self._metrics)
        try:
            return list(families(self._view(), False, self._metrics))
        except Exception as error:  # Dask's own metrics on this port must not go with ours
            if not self._failed:
                logger.warning("dwsr-probe has no metrics: %r", error)
            self._failed = True
            return []

    def describe(self) -> list[Any]:
        """No families in advance: registering must not read boards."""
        return []


def registry(source: MetricsSource) -> CollectorRegistry:
    """With the metrics of this source only."""
    made = CollectorRegistry()
    made.register(PrometheusCollector(source.view, source.dedicated_port, source.metrics))
    return made
