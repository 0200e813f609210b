"""From a view to prometheus_client's families. A custom collector: whoever serves, asks for a
view at each scrape."""

import logging

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from dwsr_probe.export.metrics import COUNTER, GAUGE, HISTOGRAM, METRICS
from dwsr_probe.export.totals import visible

logger = logging.getLogger("dwsr_probe")


def families(view, own_port, metrics=METRICS):
    """own_port: one of ours, not a Dask worker's, where series are counted."""
    for metric in metrics:
        if metric.own_port_only and not own_port:
            continue
        yield _family(metric, view)


def _family(metric, view):
    if metric.type == HISTOGRAM:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for *labels, histogram in metric.read(view):
            buckets = [
                ("+Inf" if bound == float("inf") else repr(bound), count)
                for bound, count in histogram.cumulative()
            ]
            family.add_metric(_clean(labels), buckets=buckets, sum_value=histogram.total)
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
            family.add_metric((), dict(zip(metric.labels, _clean(labels), strict=True)))
        return family
    for *labels, value in metric.read(view):
        family.add_metric(_clean(labels), value)
    return family


def _clean(labels):
    return [visible(label) for label in labels]


class Exposition:
    """prometheus_client's protocol: `collect` at each scrape. view: a function; metrics: the
    table that reads it."""

    def __init__(self, view, own_port, metrics=METRICS):
        self._view, self._own_port, self._metrics, self._failed = view, own_port, metrics, False

    def collect(self):
        if self._own_port:
            return families(self._view(), True, self._metrics)
        try:
            return list(families(self._view(), False, self._metrics))
        except Exception as error:  # Dask's own metrics on this port must not go with ours
            if not self._failed:
                logger.warning("dwsr-probe has no metrics: %r", error)
            self._failed = True
            return []

    def describe(self):
        """Nothing in advance: registering must not read boards."""
        return []


def registry(source):
    """With the metrics of a source alone."""
    made = CollectorRegistry()
    made.register(Exposition(source.view, source.own_port, source.metrics))
    return made
