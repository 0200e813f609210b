"""What has ended, by task name, in bounded space: counts, sums, maxima, histograms. Fed with rows (record.row_of), read by metrics.py.

A name beyond the most that are kept goes to `other`. Sums only grow, so that they may be counters.
"""
from bisect import bisect_left

from dwsr_probe.record import FIELDS

NAMES_MOST, HISTOGRAMS_MOST = 80, 40
OTHER = "other"
OUTCOMES = ("ok", "error", "cancelled", "killed")
BUCKETS = tuple(4**n << 20 for n in range(11))  # 1 MiB to 1 TiB, by fours
_DISTINCT_MOST = 10_000  # beyond which names are no longer told apart

(_NAME, _STATE, _BEFORE, _PEAK, _ALLOC, _GPU, _IN, _OUT, _DURATION) = (FIELDS.index(name) for name in (
    "task_name", "state", "rss_before_bytes", "rss_peak_bytes", "alloc_peak_bytes", "gpu", "input_bytes", "output_bytes", "duration"))


class Sum:
    """Of one figure: sum and maximum."""

    __slots__ = ("most", "total")

    def __init__(self):
        self.total = self.most = 0

    def add(self, value):
        self.total += value
        if value > self.most:
            self.most = value


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self):
        self.counts, self.total = [0] * (len(BUCKETS) + 1), 0

    def add(self, value):
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.total += value

    def cumulative(self):
        """(upper bound, tasks up to it), the last one without a bound."""
        count = 0
        for bound, number in zip((*map(float, BUCKETS), float("inf")), self.counts, strict=True):
            count += number
            yield bound, count


class NameTotals:
    __slots__ = ("duration", "histogram", "input", "outcomes", "output", "peaks")

    def __init__(self, histogram):
        self.outcomes, self.peaks = {}, {}  # peaks: (kind, device) → Sum
        self.input, self.output, self.duration = Sum(), Sum(), Sum()
        self.histogram = Histogram() if histogram else None

    def add(self, row, alloc, growth, devices):
        self.outcomes[row[_STATE]] = self.outcomes.get(row[_STATE], 0) + 1
        for kind, value in (("rss_growth", growth), ("alloc", alloc)):
            if value is not None:
                self._peak(kind, "").add(value)
        for number, value in devices:
            self._peak("cupy", number).add(value)
        for sum_, value in ((self.input, row[_IN]), (self.output, row[_OUT]), (self.duration, row[_DURATION])):
            if value is not None:
                sum_.add(value)
        if self.histogram is not None and alloc is not None:
            self.histogram.add(alloc)

    def _peak(self, kind, device):
        found = self.peaks.get((kind, device))
        if found is None:
            found = self.peaks[kind, device] = Sum()
        return found


class Totals:
    """Not for several threads at once: who shares it, locks."""

    def __init__(self, names_most=NAMES_MOST, histograms_most=0):
        self.names, self.all = {}, Histogram()
        self._names_most, self._histograms_most = names_most, histograms_most
        self._folded = set()

    @property
    def names_dropped(self):
        """Distinct names that went to `other`."""
        return len(self._folded)

    def add_rows(self, rows):
        for row in rows:
            alloc, growth = row[_ALLOC], None
            if row[_PEAK] is not None and row[_BEFORE] is not None:
                growth = max(0, row[_PEAK] - row[_BEFORE])
            own = growth if alloc is None else alloc
            if own is not None:
                self.all.add(own)
            self._of(row[_NAME]).add(row, alloc, growth, _devices(row[_GPU]))

    def _of(self, name):
        found = self.names.get(name)
        if found is not None:
            return found
        if name != OTHER and len(self.names) - (OTHER in self.names) >= self._names_most:
            if len(self._folded) < _DISTINCT_MOST:
                self._folded.add(hash(name))
            name = OTHER
            if name in self.names:
                return self.names[name]
        found = self.names[name] = NameTotals(len(self.names) < self._histograms_most)
        return found


def _devices(text):
    """(number, peak) of each device in a record's JSON. Hardly any record has one."""
    if not text or text == "[]":
        return ()
    import json
    return [(str(d["device"]), d["peak_bytes"]) for d in json.loads(text)]
