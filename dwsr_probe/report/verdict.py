"""A run in a few sentences: what needed most, how near the limit, what was killed and by what, which memory binds, what to do.

Every sentence comes from the run's numbers; what they do not tell is not said. The HTML page shows them on top, the table ends with the first. A sentence is a tuple of texts, names among
them as Name, so that each view can set them apart.
"""
from collections import Counter
from dataclasses import dataclass

from dwsr_probe.report.summary import process_limit
from dwsr_probe.report.words import bytes_text, line_of, percent_text

NEAR, NANNY = 0.80, 0.90  # Dask pauses a worker at 80 % of its limit and ends it at 95 %, looking every 100 ms
_LEVELS = ("empty", "good", "near", "bad")


class Name(str):
    """A task's or process's name inside a sentence."""


def _name(text):
    return Name(line_of(text))


@dataclass(frozen=True)
class Verdict:
    level: str  # of _LEVELS
    headline: tuple
    sentences: list
    advice: list

    def line(self):
        """For a terminal."""
        return "".join(self.headline) + "".join(" " + "".join(one) for one in self.advice[:1])


@dataclass(frozen=True)
class _Process:
    """One process against its limit."""

    record: object
    limit_bytes: int | None
    worker: str | None  # its Dask worker's address

    @property
    def share(self):
        return self.record.rss_peak_bytes / self.limit_bytes if self.limit_bytes and self.record.rss_peak_bytes else None

    def name(self):
        return _name(f"worker {self.worker}" if self.worker else f"{self.record.task_name} {self.record.pid}")


def verdict(names, processes, outlook=None, held_bytes=None):
    """names: of summarise; processes: (record, health); held_bytes: {task name: resident size at begin, median}."""
    all_processes = _against_limits(processes)
    biggest = max((s for s in names if s.need_bytes is not None), key=lambda s: s.need_bytes, default=None)
    nearest = max((p for p in all_processes if p.share is not None), key=lambda p: p.share, default=None)
    killed = [p for p in all_processes if p.record.state == "killed"]
    sentences = [_most(biggest)] if biggest else []
    sentences += [_nearness(nearest)] if nearest and nearest not in killed else []
    sentences += _losses(names, killed)
    sentences += [_binding(names)] if any(s.gpu_peaks for s in names) else []
    level, headline = _headline(names, processes, nearest, killed)
    return Verdict(level, headline, [s for s in sentences if s], _advice(biggest, nearest, killed, outlook, held_bytes or {}))


def _against_limits(processes):
    return [_Process(record, process_limit(health), next((w["address"] for w in health.get("workers") or () if w.get("address")), None)) for record, health in processes]


def _headline(names, processes, nearest, killed):
    tasks, failed, died = (sum(getattr(s, field) for s in names) for field in ("count", "errors", "killed"))
    if not names and not processes:
        return "empty", ("Nothing was recorded in this run.",)
    share = nearest.share if nearest else None
    of_limit = f" at {percent_text(share)} of the limit" if share is not None else ""
    if killed:
        own = max(killed, key=lambda p: p.share or 0)
        at = f" at {percent_text(own.share)} of {'its' if len(killed) == 1 else 'the'} limit" if own.share is not None else ""
        return "bad", (f"{_count(len(killed), 'process was', 'processes were')} killed{at}" + (f", with {_count(died, 'task', 'tasks', 'one')} under way." if died else "."),)
    if died:
        return "bad", (f"{_count(died, 'task was', 'tasks were')} killed{of_limit}.",)
    if not names:
        return "good", (f"No task was marked; the largest process peaked{of_limit}." if of_limit else "No task was marked.",)
    if failed:
        return "near", (f"{failed:,} of {_count(tasks, 'task', 'tasks', '1')} failed; memory peaked{of_limit}." if of_limit else f"{failed:,} of {_count(tasks, 'task', 'tasks', '1')} failed.",)
    if share is not None and share >= NEAR:
        return "near", (f"It fitted, narrowly: memory peaked{of_limit}.",)
    return "good", (f"Everything fitted: memory peaked{of_limit}." if of_limit else f"{_count(tasks, 'task', 'tasks')} ended well.",)


def _count(n, one, many, word="One"):
    return f"{word if n == 1 else f'{n:,}'} {one if n == 1 else many}"


def _most(s):
    own = s.alloc_peak_max_bytes is not None
    typical = s.alloc_peak_median_bytes if own else s.growth_median_bytes
    text = f" needed most: {bytes_text(s.need_bytes)} {'of its own' if own else 'of growth in resident size'} at most"
    return (_name(s.task_name), text + (f", {bytes_text(typical)} in the median of {s.count:,} tasks." if s.count > 1 else "."))


def _nearness(p):
    return (p.name(), f" came nearest to its limit: {bytes_text(p.record.rss_peak_bytes)} resident of {bytes_text(p.limit_bytes)}, {percent_text(p.share)}.")


def _losses(names, killed):
    """What died, and by what as far as the numbers tell."""
    causes = {}
    for p in sorted(killed, key=lambda p: -(p.share or 0)):
        causes.setdefault(_cause(p), []).append(p)
    found = []
    for cause, dead in causes.items():
        shares = [p.share for p in dead if p.share is not None]
        at = f" with {bytes_text(dead[0].record.rss_peak_bytes)} of {bytes_text(dead[0].limit_bytes)}, {percent_text(shares[0])}" if len(dead) == 1 and shares else \
            f" at {percent_text(shares[-1])} to {percent_text(shares[0])} of their limits" if shares else ""
        who = (dead[0].name(), " was killed") if len(dead) == 1 else (f"{len(dead):,} processes were killed",)
        found.append((*who, f"{at}: {cause}."))
    tasks = Counter({s.task_name: s.killed for s in names if s.killed}).most_common()
    if tasks:
        parts = ["Under way then: "]
        for i, (name, count) in enumerate(tasks[:3]):
            parts += [", " if i else "", _name(name), f" ({count:,})" if count > 1 else ""]
        found.append((*parts, f", and {len(tasks) - 3:,} more names." if len(tasks) > 3 else "."))
    return found


def _cause(p):
    if p.share is None:
        return "its limit is not known"
    if p.share < NANNY:
        return "not for its own memory; a signal, a crash, or a machine that others had filled"
    return "by Dask's nanny, which ends a worker at 95 %, or by the kernel" if p.worker else "most likely by the kernel, for want of memory"


def _binding(names):
    """Which memory a larger block would exhaust first."""
    device = [s for s in names if s.binds == "device"]
    if not device:
        return ("Host memory binds: a larger block would exhaust it before the device's.",)
    s = max(device, key=lambda s: s.device_ratio)
    return ("Device memory binds: ", _name(s.task_name), f" took {bytes_text(s.gpu_peak_max_bytes)} on a device, {percent_text(s.device_ratio)} of it,"
            f" and {percent_text(s.host_ratio)} of the host's limit.")


def _advice(biggest, nearest, killed, outlook, held):
    if biggest is None:
        return []
    kind = "gpu" if biggest.binds == "device" and outlook and outlook.at(biggest.task_name, 2.0, "gpu") else "alloc"
    found, tight = [], _is_tight(nearest, killed)
    word, scale = ("half", 0.5) if tight else ("twice", 2.0)
    other = outlook.at(biggest.task_name, scale, kind) if outlook else None
    if other is not None and other.trust in ("fair", "good"):
        found.append((f"A block of {word} the volume of the largest would need about {bytes_text(other.mean)} in ", _name(biggest.task_name),
                      f"{' on the device' if kind == 'gpu' else ''}, with 99 % no more than {bytes_text(other.upper(0.99))}."))
    if kind == "alloc" and nearest is not None and nearest.limit_bytes:
        found[:0] = _room(biggest, nearest, tight, outlook, held.get(biggest.task_name))
    return found


def _is_tight(nearest, killed):
    return nearest is not None and (nearest.share >= NEAR or any((p.share or 0) >= NANNY for p in killed))


def _room(biggest, nearest, tight, outlook, held):
    """What to change, from what is free beside what the process holds anyway."""
    together, limit, scale = biggest.overlap + 1, nearest.limit_bytes, None
    if outlook is not None and held is not None:
        scale = outlook.largest_scale(biggest.task_name, (NEAR * limit - min(held, nearest.record.rss_peak_bytes)) / together)
    beside = f" with {together} tasks at once" if together > 1 else ""
    if tight and scale is not None and scale < 0.95:
        return [("Use blocks of at most ", f"{percent_text(scale)} of the largest volume: they keep ", _name(biggest.task_name), f" below {percent_text(NEAR)} of the limit{beside}.")]
    if tight and together > 1:
        return [(f"Run fewer tasks at once ({together} shared a process), or use smaller blocks, or give each process more than {bytes_text(limit)}.",)]
    if tight:
        return [(f"Use smaller blocks, or give the process more than {bytes_text(limit)}.",)]
    if scale is not None and scale < 0.95 and together > 1:
        return [("It could have been tighter: ", f"{together} of the largest ", _name(biggest.task_name), f" tasks at once may pass {percent_text(NEAR)} of the limit. Blocks of {percent_text(scale)} of the volume would not.")]
    if scale is not None and scale >= 1.25:
        most = "8 times and more" if scale > 7.9 else f"about {scale:.1f} times"
        return [("There is room: blocks of ", f"{most} the largest volume would fit below {percent_text(NEAR)} of the limit{beside}.")]
    return []
