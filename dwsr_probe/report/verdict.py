"""A run in a few sentences: how it ended, what was killed and by what, what has no record, what
needed most, what to do.

Every sentence comes from the run's numbers; what they do not tell is not said. The HTML page
shows all of them on top, the terminal those that somebody must know. A sentence is a tuple of
texts, names among them as Name, so that each view can set them apart.
"""

import signal
from collections import Counter

from dwsr_probe.dataclass import dataclass
from dwsr_probe.report.summary import NANNY, binding, missing_tasks, process_limit, was_killed
from dwsr_probe.report.words import (
    AtLeast,
    bytes_text,
    count_text,
    inputs_text,
    line_of,
    percent_text,
    process_title,
)

NEAR = 0.80  # of the limit: there Dask pauses a worker
_LEVELS = ("empty", "good", "near", "bad")
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


class Name(str):
    """A task's or process's name inside a sentence."""


def _name(text):
    return Name(line_of(text))


@dataclass
class Verdict:
    level: str  # of _LEVELS
    headline: tuple
    troubles: list  # sentences on what went wrong
    sentences: list  # on what went well or badly as usual
    advice: list

    def lines(self):
        """For a terminal: what a table does not say."""
        return ["".join(one) for one in (self.headline, *self.troubles, *self.advice[:1])]


@dataclass
class _Use:
    """What a process used of the host's memory, or of a device's."""

    record: object
    peak_bytes: int | None
    limit_bytes: int | None
    worker: str | None = None  # its Dask worker's name, or address
    device: str | None = None
    signal: int | None = None  # that ended it, where that is known
    was_killed: bool = False

    @property
    def share(self):
        return self.peak_bytes / self.limit_bytes if self.limit_bytes and self.peak_bytes else None

    @property
    def whose(self):
        return "the device" if self.device else "the limit"

    def name(self):
        return _name(f"worker {self.worker}" if self.worker else process_title(self.record))


def verdict(names, processes, outlook=None, exit_code=None, missing=None):
    """names: of summarise; processes: (record, health); exit_code: the job's, None where it is
    not known; missing: of missing_tasks."""
    missing = missing or missing_tasks(processes)
    on_device = binding(names) == "device"
    hosts, devices = _uses(processes)
    biggest = next((s for s in names if _need(s, on_device) is not None), None)
    uses = devices if on_device else hosts
    nearest = max(
        (use for use in uses if use.share is not None), key=lambda use: use.share, default=None
    )
    dead = [use for use in hosts if use.record.state == "killed"]
    unknown = [use for use in hosts if use.record.state is None and (use.share or 0) >= NANNY]
    victim = next((s for s in names if s.worst), None)
    troubles = [_victim(victim, names, outlook, on_device)] if victim else []
    troubles += _losses(names, dead, unknown) + _missing(names, processes, missing) + _ooms(names)
    sentences = [_most(biggest, on_device)] if biggest else []
    sentences += [_nearness(nearest)] if nearest and nearest not in dead else []
    sentences += [_binds(names, on_device)] if any(s.gpu_peaks for s in names) else []
    level, headline = _headline(
        names, processes, nearest, dead, unknown, exit_code, missing.lost + missing.dropped
    )
    if victim and not on_device:  # its own process is what it must fit into
        nearest = next(
            (
                use
                for use in uses
                if use.record.process == victim.worst.process and use.share is not None
            ),
            nearest,
        )
    return Verdict(level, headline, troubles, sentences, _advice(biggest, nearest, dead, outlook))


def _uses(processes):
    hosts, devices = [], []
    for record, health in processes:
        worker = next(
            (
                w.get("name") or w["address"]
                for w in health.get("workers") or ()
                if w.get("address")
            ),
            None,
        )
        hosts.append(
            _Use(
                record,
                record.rss_peak_bytes,
                process_limit(health),
                worker,
                signal=health.get("signal"),
                was_killed=was_killed(record, health),
            )
        )
        for d in health.get("devices") or ():
            name = f"device {d['device']}" + (f" ({line_of(d['name'])})" if d.get("name") else "")
            devices.append(
                _Use(
                    record,
                    d.get("peak_bytes"),
                    d.get("pool_limit_bytes") or d.get("total_bytes"),
                    worker,
                    name,
                )
            )
    return hosts, devices


def _need(summary, on_device):
    return summary.gpu_peak_max_bytes if on_device else summary.need_bytes


def _headline(names, processes, nearest, dead, unknown, exit_code, missing):
    """How the job ended first, then what memory did."""
    if not names and not processes:
        return "empty", ("Nothing was recorded in this run.",)
    tasks, failed = (sum(getattr(s, field) for s in names) for field in ("count", "errors"))
    share = nearest.share if nearest else None
    killed, early = ([p for p in dead if p.was_killed is wanted] for wanted in (True, False))
    left = sum(s.killed for s in names) - sum(_under_way(names, p) for p in dead)
    bad = []
    if killed:
        bad.append(_killed_text(names, killed))
    if early:
        under_way = count_text(sum(_under_way(names, p) for p in early), "task", "tasks", "one")
        more = "more " if killed else ""
        bad.append(
            f"{count_text(len(early), f'{more}process', f'{more}processes', 'one')} ended with"
            f" {under_way} under way{_at(early)}"
        )
    if _has_failed(processes, exit_code) and not killed:
        bad.append(f"the job failed{_exit_text(exit_code)}")
    if left:
        bad.append(
            f"{count_text(left, 'task was', 'tasks were', 'one')} under way when"
            f" {'its' if left == 1 else 'their'} process ended"
        )
    near = (
        [
            f"{count_text(len(unknown), 'process', 'processes', 'one')} ended{_at(unknown)}, how is"
            " not known"
        ]
        if unknown
        else []
    )
    if failed:
        near.append(f"{failed:,} of {count_text(tasks, 'task', 'tasks', '1')} failed")
    if missing:
        near.append(
            f"{missing:,} of {tasks + missing:,} tasks"
            f" ({percent_text(missing / (tasks + missing))}) have no record"
        )
    if killed:
        last = ["the job went on and ended well"] if exit_code == 0 else []
    else:
        last = (
            [f"memory peaked at {percent_text(share)} of {nearest.whose}"]
            if share is not None
            else []
        )
    if bad or near:
        text = "; ".join(bad + near + last)
        return "bad" if bad else "near", (f"{text[0].upper()}{text[1:]}.",)
    if not names:
        return "good", (f"No task was marked; {last[0]}." if last else "No task was marked.",)
    if share is not None and share >= NEAR:
        return "near", (f"It fitted, narrowly: {last[0]}.",)
    return "good", (
        (
            f"Everything fitted: {last[0]}."
            if last
            else f"{count_text(tasks, 'task', 'tasks')} ended well."
        ),
    )


def _has_failed(processes, exit_code):
    """By the job's exit code; of a single board by what its process left."""
    return (
        exit_code != 0
        if exit_code is not None
        else any(record.state == "error" for record, _ in processes)
    )


def _exit_text(exit_code):
    if exit_code is None:
        return ""
    name = _signal_text(exit_code - 128) if isinstance(exit_code, int) and exit_code > 128 else None
    return f" with exit code {exit_code}" + (f" ({name})" if name else "")


def _signal_text(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _under_way(names, use):
    return sum(s.killed_in[use.record.process] for s in names)


def _killed_text(names, killed):
    under_way = sum(_under_way(names, p) for p in killed)
    known = killed[0].signal if len(killed) == 1 else None
    how = "killed" if known is None else f"killed by {_signal_text(known) or f'signal {known}'}"
    return (
        f"{count_text(len(killed), 'process was', 'processes were', 'one')} {how}{_at(killed)}"
        + (f", with {count_text(under_way, 'task', 'tasks', 'one')} under way" if under_way else "")
    )


def _at(uses):
    """ " at 97 % of its limit", " at 96 % to 99 % of their limits"."""
    shares = sorted(p.share for p in uses if p.share is not None)
    if not shares:
        return ""
    low, high = percent_text(shares[0]), percent_text(shares[-1])
    return (
        f" at {low if low == high else f'{low} to {high}'} of"
        f" {'its limit' if len(uses) == 1 else 'their limits'}"
    )


def _victim(s, names, outlook, on_device):
    """The killed task that had most: its inputs, its size, and what it would have needed."""
    record = s.worst
    given = inputs_text(record.inputs, record.inputs_omitted)
    size = f", {bytes_text(record.known_input_bytes)} of input" if record.known_input_bytes else ""
    had = AtLeast((record.gpu_peak_bytes if on_device else record.own_peak_bytes) or 0)
    known = bytes_text(had, "at least ")
    taken = (
        f"It had taken {known} on a device"
        if on_device
        else (
            f"It had taken {known}"
            if record.alloc_peak_bytes is not None
            else f"Its resident size had grown by {known}"
        )
    )
    more = sum(one.killed for one in names) > 1
    parts = [
        "The largest task under way was " if more else "The task under way was ",
        _name(s.task_name),
        f" with {given}{size}" if given else "",
        f". {taken} when it was killed.",
    ]
    forecast = outlook.of_task(record, "gpu" if on_device else "alloc") if outlook else None
    if forecast is not None and forecast.trust in ("fair", "good") and forecast.mean > had:
        parts.append(
            f" Judging by {count_text(forecast.n, 'task', 'tasks', 'one')} that finished, it needs"
            f" about {bytes_text(forecast.mean)}."
        )
    return tuple(parts)


def _most(s, on_device):
    figures, what = (
        (s.gpu_peaks, "on a device")
        if on_device
        else (
            (s.alloc_peaks, "of its own")
            if s.alloc_peaks
            else (s.growths, "of growth in resident size")
        )
    )
    at_most = "" if figures.bounds else " at most"
    typical = (
        f", {bytes_text(figures.median, 'at least ')} in the median of {s.count:,} tasks"
        if s.count > 1
        else ""
    )
    return (
        _name(s.task_name),
        f" needed most: {bytes_text(figures.max, 'at least ')} {what}{at_most}{typical}.",
    )


def _nearness(use):
    where, what = (
        (f"the limit of {use.device}", "by its tasks") if use.device else ("its limit", "resident")
    )
    return (
        use.name(),
        (
            f" came nearest to {where}: {bytes_text(use.peak_bytes)} {what} of"
            f" {bytes_text(use.limit_bytes)}, {percent_text(use.share)}."
        ),
    )


def _losses(names, dead, unknown):
    """What died, and by what as far as the numbers tell."""
    causes = {}
    for p in sorted(dead, key=lambda p: -(p.share or 0)):
        causes.setdefault((p.was_killed, _cause(p)), []).append(p)
    found = []
    for (killed, cause), some in causes.items():
        one = some[0]
        at = (
            f" with {bytes_text(one.peak_bytes)} of {bytes_text(one.limit_bytes)},"
            f" {percent_text(one.share)}"
            if len(some) == 1 and one.share is not None
            else _at(some)
        )
        how = "was killed" if killed else "ended with tasks under way"
        who = (
            (one.name(), f" {how}")
            if len(some) == 1
            else (f"{len(some):,} processes {how.replace('was', 'were')}",)
        )
        found.append((*who, f"{at}: {cause}."))
    found += [
        (
            p.name(),
            (
                f" ended with {bytes_text(p.peak_bytes)} of {bytes_text(p.limit_bytes)},"
                f" {percent_text(p.share)}: it may have been killed for its memory."
            ),
        )
        for p in unknown[:3]
    ]
    tasks = Counter({s.task_name: s.killed for s in names if s.killed}).most_common()
    if sum(count for _, count in tasks) > 1:
        parts = ["Under way then: "]
        for i, (name, count) in enumerate(tasks[:3]):
            parts += [", " if i else "", _name(name), f" ({count:,})" if count > 1 else ""]
        found.append(
            (
                *parts,
                (
                    f", and {count_text(len(tasks) - 3, 'more name', 'more names', '1')}."
                    if len(tasks) > 3
                    else "."
                ),
            )
        )
    return found


def _cause(p):
    if p.signal is not None and p.signal != signal.SIGKILL:
        name = _signal_text(p.signal) or f"signal {p.signal}"
        return f"by a crash ({name})" if p.signal in _CRASHES else f"by {name}, which somebody sent"
    if p.share is None:
        return "no limit is known"
    if p.share < NANNY:
        return f"{'by SIGKILL, ' if p.signal else ''}probably not for want of memory"
    return (
        "by Dask's nanny, which ends a worker at 95 %, or by the kernel"
        if p.worker
        else "most likely by the kernel, for want of memory"
    )


def _missing(names, processes, missing):
    """Tasks without a record of their own: what the figures here have of them."""
    lost, dropped, found = missing.lost, missing.dropped, []
    if missing.counted:
        tasks = sum(s.count for s in names)
        found.append(
            (
                (
                    f"{missing.counted:,} of {count_text(tasks, 'task has', 'tasks have', '1')} no"
                    " record of their own: they ended faster than they could be stored. Counts,"
                    " sums and maxima include them; medians are from histograms, within 5 %."
                ),
            )
        )
    if lost:
        found.append(
            (
                (
                    f"{count_text(lost, 'record was', 'records were')} lost: tasks ended faster"
                    " than they could be stored. The table leaves them out; the figures of"
                    " processes are complete. Larger tasks would all be recorded."
                ),
            )
        )
    without_room = sum(
        health.get("tasks_dropped") or 0
        for _, health in processes
        if health.get("room_for_tasks") == 0
    )
    if without_room:
        found.append(
            (
                (
                    f"{count_text(without_room, 'task was', 'tasks were')} not measured: there was"
                    " no room for them on the board (a line on stderr said why)."
                ),
            )
        )
    if dropped > without_room:
        found.append(
            (
                (
                    f"{count_text(dropped - without_room, 'task was', 'tasks were')} not measured:"
                    " too many were under way at once in one process."
                ),
            )
        )
    return found


def _ooms(names):
    """Allocations that were refused: these tasks failed, they were not killed."""
    found = []
    for s in sorted((s for s in names if s.ooms), key=lambda s: -s.ooms)[:3]:
        requested, live = s.oom.get("requested_bytes"), s.oom.get("live_bytes")
        asked = (
            ": the largest request was for"
            f" {bytes_text(requested)}{f' beside {bytes_text(live)} of its own' if live else ''}"
            if requested
            else ""
        )
        where = "host" if s.oom.get("where") == "host" else "device"
        found.append(
            (
                _name(s.task_name),
                (
                    f" ran out of {where} memory in"
                    f" {count_text(s.ooms, 'task', 'tasks', 'one')}{asked}."
                ),
            )
        )
    return found


def _binds(names, on_device):
    """Which memory a larger block would exhaust first."""
    if not on_device:
        return ("Host memory binds: a larger block would exhaust it before the device's.",)
    s = max(names, key=lambda s: s.device_ratio or 0)
    return (
        "Device memory binds: one task of ",
        _name(s.task_name),
        (
            f" took {percent_text(s.device_ratio)} of the device, and {percent_text(s.host_ratio)}"
            f" of the host's limit{'' if s.killed else ' at most'}."
        ),
    )


def _advice(biggest, nearest, dead, outlook):
    tight = _is_tight(nearest, dead)
    # killed far below the limit: then the limit says nothing about room
    if biggest is None or (dead and not tight):
        return []
    kind = "gpu" if nearest is not None and nearest.device else "alloc"
    found = []
    word, scale = ("half", 0.5) if tight else ("twice", 2.0)
    other = outlook.at_scale(biggest.task_name, scale, kind) if outlook else None
    if other is not None and other.trust in ("fair", "good"):
        found.append(
            (
                (
                    f"A block of {word} the volume of the largest would need about"
                    f" {bytes_text(other.mean)} in "
                ),
                _name(biggest.task_name),
                (
                    f"{' on the device' if kind == 'gpu' else ''}, with 99 % no more than"
                    f" {bytes_text(other.upper(0.99))}"
                    f"{'' if other.promised(0.99) else ' (not promised yet)'}."
                ),
            )
        )
    if nearest is not None:
        found[:0] = _room(
            biggest, nearest, tight, outlook, 0.0 if nearest.device else biggest.held_bytes, kind
        )
    return found


def _is_tight(nearest, dead):
    return nearest is not None and (
        nearest.share >= NEAR or any((p.share or 0) >= NANNY for p in dead)
    )


def _room(biggest, nearest, tight, outlook, held, kind):
    """What to change, from what is free beside what the process holds anyway."""
    together, limit, scale = biggest.overlap + 1, nearest.limit_bytes, None
    if outlook is not None and held is not None:
        scale = outlook.largest_scale(
            biggest.task_name, (NEAR * limit - min(held, nearest.peak_bytes)) / together, kind
        )
    beside = f" with {together} tasks at once" if together > 1 else ""
    if tight and scale is not None and scale < 0.95:
        return [
            (
                (
                    f"Use smaller blocks: at most {outlook.inputs_text(biggest.task_name, scale)},"
                    f" {percent_text(scale)} of the largest one. They keep "
                ),
                _name(biggest.task_name),
                f" below {percent_text(NEAR)} of {nearest.whose}{beside}.",
            )
        ]
    if tight:
        fewer = (
            f"Run fewer tasks at once ({together} shared a process), or use"
            if together > 1
            else "Use"
        )
        larger = (
            f"a device of more than {bytes_text(limit)}"
            if nearest.device
            else f"give each process more than {bytes_text(limit)}"
        )
        return [(f"{fewer} smaller blocks, or {larger}.",)]
    if scale is not None and scale < 0.95 and together > 1:
        return [
            (
                "It could have been tighter: ",
                f"{together} of the largest ",
                _name(biggest.task_name),
                (
                    f" tasks at once may pass {percent_text(NEAR)} of {nearest.whose}. Blocks of"
                    f" {percent_text(scale)} of the volume would not."
                ),
            )
        ]
    if scale is not None and scale >= 1.25:
        most = "8 times and more" if scale > 7.9 else f"about {scale:.1f} times"
        return [
            (
                "There is room: blocks of ",
                (
                    f"{most} the largest volume would fit below {percent_text(NEAR)} of"
                    f" {nearest.whose}{beside}."
                ),
            )
        ]
    return []
