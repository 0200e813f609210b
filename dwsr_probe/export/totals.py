"""What has ended, by pairs of task name and operation, in bounded space: counts, sums, maxima,
histograms. Read by metrics.py.

Fed by a source with two things:
- totals of boards (total.Total), of which the increase since the last time is added;
- rows (record.row_of) of tasks that no board has counted: killed tasks, and tasks of boards before
  version 6.

A task without an operation has its task name as operation. A pair beyond NAMES_MOST goes to
`other`, with `other` as operation. Where the number of series is limited (a Dask worker's port), so
does every figure that would be one series too many: another outcome or device of a known pair.
Sums only grow, so that they may be counters.
"""

from __future__ import annotations

from bisect import bisect_left

from dwsr_probe.record import FIELDS, growth_of
from dwsr_probe.total import OUTCOMES as OUTCOMES_ON_BOARD
from dwsr_probe.total import cell_bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from dwsr_probe.collector import News
    from dwsr_probe.total import Total

    Pair = tuple[str, str]  # task name, operation
    Row = tuple[Any, ...]  # by record.FIELDS

NAMES_MOST, HISTOGRAMS_MOST = 80, 40  # pairs with series of their own, with a histogram
# Every pair has the sum and the maximum of input, output and duration
SERIES_OF_SUMS = 6
# A pair with one outcome, and with sum and maximum of rss_growth and alloc
SERIES_PER_PAIR = SERIES_OF_SUMS + 1 + 2 * 2
OTHER = "other"
_OTHER_PAIR = (OTHER, OTHER)
OUTCOMES = ("ok", "error", "cancelled", "killed")
BUCKETS = tuple(4**n << 20 for n in range(11))  # 1 MiB to 1 TiB, by fours
_DISTINCT_MOST = 10_000  # pairs in `other` that are counted

_NAME, _OPERATION, _PROCESS, _STATE, _BEFORE, _PEAK, _ALLOC, _GPU, _IN, _OUT, _DURATION = (
    FIELDS.index(name)
    for name in (
        "task_name",
        "operation",
        "process",
        "state",
        "rss_before_bytes",
        "rss_peak_bytes",
        "alloc_peak_bytes",
        "gpu",
        "input_bytes",
        "output_bytes",
        "duration",
    )
)


class SumAndMax:
    """Sum and maximum of one figure."""

    __slots__ = ("largest", "total")

    def __init__(self) -> None:
        self.total: float = 0
        self.largest: float = 0

    def add(self, value: float) -> None:
        self.add_many(value, value)

    def add_many(self, total: float, largest: float) -> None:
        """Adds several values: their sum, and the largest value so far."""
        self.total += total
        if largest > self.largest:
            self.largest = largest


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total: float = 0

    def add(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.total += value

    def add_many(self, total: float, counts: Mapping[int, int]) -> None:
        """Adds several values: their sum, and how many fall into each bucket."""
        self.total += total
        for bucket, count in counts.items():
            self.counts[bucket] += count

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(upper bound, number of values up to it); the last bound is infinite."""
        count = 0
        for bound, number in zip((*map(float, BUCKETS), float("inf")), self.counts, strict=True):
            count += number
            yield bound, count


class PairTotals:
    __slots__ = (
        "_is_other",
        "_totals",
        "duration",
        "histogram",
        "input",
        "outcomes",
        "output",
        "peak_max_ratio",
        "peaks",
    )

    def __init__(self, totals: Totals, is_other: bool, histogram: bool) -> None:
        self._totals, self._is_other = totals, is_other
        self.outcomes: dict[str, int] = {}
        self.peaks: dict[tuple[str, str], SumAndMax] = {}  # by kind and device
        self.input, self.output, self.duration = SumAndMax(), SumAndMax(), SumAndMax()
        self.histogram = Histogram() if histogram else None
        # largest own peak as a share of the limit of the process that the task was in
        self.peak_max_ratio: float | None = None

    def series_count(self) -> int:
        return SERIES_OF_SUMS + len(self.outcomes) + 2 * len(self.peaks)

    def add(self, row: Row, limit: float | None) -> None:
        alloc, growth = row[_ALLOC], growth_of(row[_PEAK], row[_BEFORE])
        own = growth if alloc is None else alloc
        self._count_outcome(row[_STATE])
        if own is not None and limit:
            self.peak_max_ratio = max(own / limit, self.peak_max_ratio or 0.0)
        for kind, value in (("rss_growth", growth), ("alloc", alloc)):
            if value is not None:
                self._peak_sum(kind, "").add(value)
        for number, value in _device_peaks(row[_GPU]):
            self._peak_sum("cupy", number).add(value)
        for sum_, value in (
            (self.input, row[_IN]),
            (self.output, row[_OUT]),
            (self.duration, row[_DURATION]),
        ):
            if value is not None:
                sum_.add(value)
        if self.histogram is not None and alloc is not None:
            self.histogram.add(alloc)

    def add_total(self, now: Total, then: Total | None, limit: float | None) -> None:
        """Adds the increase of a board's total since its earlier value `then` (None: none)."""

        def increase(name: str) -> Any:
            return getattr(now, name) - (getattr(then, name) if then else 0)

        for outcome in OUTCOMES_ON_BOARD:
            if increase(outcome):
                self._count_outcome(outcome, increase(outcome))
        if limit and now.own_max_bytes is not None:
            self.peak_max_ratio = max(now.own_max_bytes / limit, self.peak_max_ratio or 0.0)
        for kind, name in (("rss_growth", "growth"), ("alloc", "alloc")):
            if increase(f"{name}_count"):
                self._peak_sum(kind, "").add_many(
                    increase(f"{name}_bytes"), getattr(now, f"{name}_max_bytes")
                )
        for number, (sum_, largest) in now.devices.items():
            before = then.devices.get(number) if then else None
            if before is None or sum_ != before[0]:
                self._peak_sum("cupy", str(number)).add_many(
                    sum_ - (before[0] if before else 0), largest
                )
        self.input.add_many(increase("input_bytes"), now.input_max_bytes)
        self.output.add_many(increase("output_bytes"), now.output_max_bytes)
        self.duration.add_many(increase("duration_ns") / 1e9, now.duration_max_ns / 1e9)
        if self.histogram is not None:
            self.histogram.add_many(increase("alloc_bytes"), _buckets(now, then, "alloc"))

    def _count_outcome(self, outcome: str, number: int = 1) -> None:
        if outcome not in self.outcomes:
            if not self._totals.reserve(1, self._is_other):
                return self._totals.other()._count_outcome(outcome, number)
            self.outcomes[outcome] = 0
        self.outcomes[outcome] += number

    def _peak_sum(self, kind: str, device: str) -> SumAndMax:
        found = self.peaks.get((kind, device))
        if found is None:
            if not self._totals.reserve(2, self._is_other):
                return self._totals.other()._peak_sum(kind, device)
            found = self.peaks[kind, device] = SumAndMax()
        return found


class Totals:
    """Not thread-safe: a source that shares it between threads locks it."""

    def __init__(
        self,
        names_most: int = NAMES_MOST,
        histograms_most: int = 0,
        series_most: int | None = None,
    ) -> None:
        """Each limit counts pairs. series_most: of all pairs but `other`, which is not limited."""
        self.pairs: dict[Pair, PairTotals] = {}
        self.own_peaks = Histogram()  # of all tasks
        self.series_count = 0
        self._names_most, self._histograms_most, self._series_most = (
            names_most,
            histograms_most,
            series_most,
        )
        self._pairs_in_other: set[int] = set()  # hashes of pairs that went to `other`
        self._pairs_in_other_on_board = 0  # the largest number that one board has reported
        # process → {pair on its board: the total that has been added}
        self._added: dict[str, dict[tuple[str | None, str | None], Total]] = {}

    @property
    def names_dropped(self) -> int:
        """Distinct pairs that went to `other`: here, and on the board with most of them."""
        return len(self._pairs_in_other) + self._pairs_in_other_on_board

    def add_rows(self, rows: Iterable[Row], limits: Mapping[str, int | None] | None = None) -> None:
        """limits: bytes by process, where they are known."""
        limits = limits or {}
        for row in rows:
            own = row[_ALLOC]
            if own is None:
                own = growth_of(row[_PEAK], row[_BEFORE])
            if own is not None:
                self.own_peaks.add(own)
            self._pair_totals(row[_NAME], row[_OPERATION]).add(row, limits.get(row[_PROCESS]))

    def add_totals(
        self, process: str, totals: list[Total] | None, limit: int | None = None
    ) -> None:
        """Adds what the totals of a board have counted since they were added last. None: a board
        without totals."""
        added = self._added.setdefault(process, {})
        for now in totals or ():
            then = added.get(now.pair)
            if not now.count or (then and then.last_seq == now.last_seq):
                continue
            added[now.pair] = now
            self._pairs_in_other_on_board = max(self._pairs_in_other_on_board, now.names)
            found = self.other() if now.name is None else self._pair_totals(now.name, now.operation)
            found.add_total(now, then, limit)
            for name in ("alloc", "bare"):
                before = getattr(then, f"{name}_bytes") if then else 0
                self.own_peaks.add_many(
                    getattr(now, f"{name}_bytes") - before, _buckets(now, then, name)
                )

    def add_news(self, news: News) -> None:
        """Adds what a collector has read of one process."""
        self.add_totals(news.process, news.totals, news.limit_bytes)
        self.add_rows(news.rows, {news.process: news.limit_bytes})
        if not news.alive:
            self._added.pop(news.process, None)  # nothing more will come

    def mark_added(self, process: str, totals: list[Total] | None) -> None:
        """Marks what a board has counted so far as added, without adding it."""
        self._added[process] = {now.pair: now for now in totals or () if now.count}

    def reserve(self, count: int, always: bool = False) -> bool:
        """Reserves so many series. False: there is no room for them."""
        if not always and not self._has_room(count):
            return False
        self.series_count += count
        return True

    def _has_room(self, count: int) -> bool:
        other = self.pairs.get(_OTHER_PAIR)
        own = self.series_count - (other.series_count() if other else 0)
        return self._series_most is None or own + count <= self._series_most

    def other(self) -> PairTotals:
        return self.pairs.get(_OTHER_PAIR) or self._add_pair(_OTHER_PAIR)

    def _pair_totals(self, name: str, operation: str | None) -> PairTotals:
        pair = name, operation or name
        found = self.pairs.get(pair)
        if found is not None:
            return found
        # two pairs that look the same are one
        pair = escape_unprintable(pair[0]), escape_unprintable(pair[1])
        if pair in self.pairs:
            return self.pairs[pair]
        if pair == _OTHER_PAIR or (
            len(self.pairs) - (_OTHER_PAIR in self.pairs) < self._names_most
            and self._has_room(SERIES_PER_PAIR)
        ):
            return self._add_pair(pair)
        if len(self._pairs_in_other) < _DISTINCT_MOST:
            self._pairs_in_other.add(hash(pair))
        return self.other()

    def _add_pair(self, pair: Pair) -> PairTotals:
        found = self.pairs[pair] = PairTotals(
            self, pair == _OTHER_PAIR, len(self.pairs) < self._histograms_most
        )
        self.series_count += SERIES_OF_SUMS
        return found


def _buckets(now: Total, then: Total | None, name: str) -> dict[int, int]:
    """The increase of a board's histogram since its earlier value, by bucket. Bounds of buckets
    are bounds of the histogram's cells."""
    found: dict[int, int] = {}
    before = getattr(then, f"{name}_cells") if then else {}
    for cell, count in getattr(now, f"{name}_cells").items():
        if count != before.get(cell, 0):
            bucket = cell if name == "bare" else _bucket_of(cell)
            found[bucket] = found.get(bucket, 0) + count - before.get(cell, 0)
    return found


def _bucket_of(cell: int) -> int:
    high = cell_bounds(cell)[1]
    return len(BUCKETS) if high is None else bisect_left(BUCKETS, high)


def escape_unprintable(text: str) -> str:
    """A name with escapes instead of what cannot be printed: some of it has no form in Prometheus'
    text format."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )


def checked_devices(found: Any) -> list[dict[str, Any]]:
    """The valid ones of a record's devices. Boards of other users may say anything."""
    return (
        [
            d
            for d in found
            if isinstance(d, dict)
            and all(isinstance(d.get(name), int) for name in ("device", "peak_bytes", "end_bytes"))
        ]
        if isinstance(found, list)
        else []
    )


def _device_peaks(text: str | None) -> Iterable[tuple[str, int]]:
    """(number, peak) of each device in a record's JSON. Hardly any record has one."""
    if not text or text == "[]":
        return ()
    import json

    try:
        return [(str(d["device"]), d["peak_bytes"]) for d in checked_devices(json.loads(text))]
    except ValueError:
        return ()
