"""A run in a few sentences: what needed most, how near the limit, what was killed and by what, which memory binds, what to do.

Every sentence comes from the run's numbers; what they do not tell is not said. The HTML page shows them on top, the table ends with the first. A sentence is a tuple of texts, names among
them as Name, so that each view can set them apart.
"""
from collections import Counter
from dataclasses import dataclass

from dwsr_probe.report.summary import binding, process_limit
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
class _Use:
    """What a process used of the host's memory, or of a device's."""

    record: object
    peak_bytes: int | None
    limit_bytes: int | None
    worker: str | None = None  # its Dask worker's address
    device: str | None = None

    @property
    def share(self):
        return self.peak_bytes / self.limit_bytes if self.limit_bytes and self.peak_bytes else None

    @property
    def whose(self):
        return "the device" if self.device else "the limit"

    def name(self):
        return _name(f"worker {self.worker}" if self.worker else f"{self.record.task_name} {self.record.pid}")


def verdict(names, processes, outlook=None, held_bytes=None):
    """names: of summarise; processes: (record, health); held_bytes: {task name: resident size at begin, median}."""
    on_device = binding(names) == "device"
    hosts, devices = _uses(processes)
    biggest = max((s for s in names if _need(s, on_device) is not None), key=lambda s: _need(s, on_device), default=None)
    nearest = max((use for use in (devices if on_device else hosts) if use.share is not None), key=lambda use: use.share, default=None)
    killed = [use for use in hosts if use.record.state == "killed"]
    sentences = [_most(biggest, on_device)] if biggest else []
    sentences += [_nearness(nearest)] if nearest and nearest not in killed else []
    sentences += _losses(names, killed) + _ooms(names)
    sentences += [_binds(names, on_device)] if any(s.gpu_peaks for s in names) else []
    level, headline = _headline(names, processes, nearest, killed)
    return Verdict(level, headline, sentences, _advice(biggest, nearest, killed, outlook, held_bytes or {}))


def _uses(processes):
    hosts, devices = [], []
    for record, health in processes:
        worker = next((w["address"] for w in health.get("workers") or () if w.get("address")), None)
        hosts.append(_Use(record, record.rss_peak_bytes, process_limit(health), worker))
        for d in health.get("devices") or ():
            devices.append(_Use(record, d.get("peak_bytes"), d.get("pool_limit_bytes") or d.get("total_bytes"), worker, f"device {d['device']}" + (f" ({line_of(d['name'])})" if d.get("name") else "")))
    return hosts, devices


def _need(summary, on_device):
    return summary.gpu_peak_max_bytes if on_device else summary.need_bytes


def _headline(names, processes, nearest, killed):
    tasks, failed, died = (sum(getattr(s, field) for s in names) for field in ("count", "errors", "killed"))
    if not names and not processes:
        return "empty", ("Nothing was recorded in this run.",)
    share = nearest.share if nearest else None
    of_limit = f" at {percent_text(share)} of {nearest.whose}" if share is not None else ""
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


def _most(s, on_device):
    if on_device:
        most, typical, what = s.gpu_peak_max_bytes, s.gpu_peak_median_bytes, "on a device"
    elif s.alloc_peak_max_bytes is not None:
        most, typical, what = s.alloc_peak_max_bytes, s.alloc_peak_median_bytes, "of its own"
    else:
        most, typical, what = s.growth_max_bytes, s.growth_median_bytes, "of growth in resident size"
    return (_name(s.task_name), f" needed most: {bytes_text(most)} {what} at most" + (f", {bytes_text(typical)} in the median of {s.count:,} tasks." if s.count > 1 else "."))


def _nearness(use):
    where, what = (f"the limit of {use.device}", "by its tasks") if use.device else ("its limit", "resident")
    return (use.name(), f" came nearest to {where}: {bytes_text(use.peak_bytes)} {what} of {bytes_text(use.limit_bytes)}, {percent_text(use.share)}.")


def _losses(names, killed):
    """What died, and by what as far as the numbers tell."""
    causes = {}
    for p in sorted(killed, key=lambda p: -(p.share or 0)):
        causes.setdefault(_cause(p), []).append(p)
    found = []
    for cause, dead in causes.items():
        shares = [p.share for p in dead if p.share is not None]
        at = f" with {bytes_text(dead[0].peak_bytes)} of {bytes_text(dead[0].limit_bytes)}, {percent_text(shares[0])}" if len(dead) == 1 and shares else \
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


def _ooms(names):
    """Allocations that were refused: these tasks failed, they were not killed."""
    found = []
    for s in sorted((s for s in names if s.ooms), key=lambda s: -s.ooms)[:3]:
        requested, live = s.oom.get("requested_bytes"), s.oom.get("live_bytes")
        asked = f": the largest request was for {bytes_text(requested)}{f' beside {bytes_text(live)} of its own' if live else ''}" if requested else ""
        found.append((_name(s.task_name), f" ran out of {'host' if s.oom.get('where') == 'host' else 'device'} memory in {_count(s.ooms, 'task', 'tasks', 'one')}{asked}."))
    return found


def _cause(p):
    if p.share is None:
        return "its limit is not known"
    if p.share < NANNY:
        return "not for its own memory; a signal, a crash, or a machine that others had filled"
    return "by Dask's nanny, which ends a worker at 95 %, or by the kernel" if p.worker else "most likely by the kernel, for want of memory"


def _binds(names, on_device):
    """Which memory a larger block would exhaust first."""
    if not on_device:
        return ("Host memory binds: a larger block would exhaust it before the device's.",)
    s = max(names, key=lambda s: s.device_ratio or 0)
    return ("Device memory binds: one task of ", _name(s.task_name), f" took {percent_text(s.device_ratio)} of the device, and {percent_text(s.host_ratio)} of the host's limit at most.")


def _advice(biggest, nearest, killed, outlook, held):
    if biggest is None:
        return []
    kind = "gpu" if nearest is not None and nearest.device else "alloc"
    found, tight = [], _is_tight(nearest, killed)
    word, scale = ("half", 0.5) if tight else ("twice", 2.0)
    other = outlook.at(biggest.task_name, scale, kind) if outlook else None
    if other is not None and other.trust in ("fair", "good"):
        found.append((f"A block of {word} the volume of the largest would need about {bytes_text(other.mean)} in ", _name(biggest.task_name),
                      f"{' on the device' if kind == 'gpu' else ''}, with 99 % no more than {bytes_text(other.upper(0.99))}{'' if other.promised(0.99) else ' (not promised yet)'}."))
    if nearest is not None:
        found[:0] = _room(biggest, nearest, tight, outlook, 0.0 if nearest.device else held.get(biggest.task_name), kind)
    return found


def _is_tight(nearest, killed):
    return nearest is not None and (nearest.share >= NEAR or any((p.share or 0) >= NANNY for p in killed))


def _room(biggest, nearest, tight, outlook, held, kind):
    """What to change, from what is free beside what the process holds anyway."""
    together, limit, scale = biggest.overlap + 1, nearest.limit_bytes, None
    if outlook is not None and held is not None:
        scale = outlook.largest_scale(biggest.task_name, (NEAR * limit - min(held, nearest.peak_bytes)) / together, kind)
    beside = f" with {together} tasks at once" if together > 1 else ""
    if tight and scale is not None and scale < 0.95:
        return [("Use blocks of at most ", f"{percent_text(scale)} of the largest volume: they keep ", _name(biggest.task_name), f" below {percent_text(NEAR)} of {nearest.whose}{beside}.")]
    if tight:
        fewer = f"Run fewer tasks at once ({together} shared a process), or use" if together > 1 else "Use"
        return [(f"{fewer} smaller blocks, or a device of more than {bytes_text(limit)}." if nearest.device else f"{fewer} smaller blocks, or give each process more than {bytes_text(limit)}.",)]
    if scale is not None and scale < 0.95 and together > 1:
        return [("It could have been tighter: ", f"{together} of the largest ", _name(biggest.task_name), f" tasks at once may pass {percent_text(NEAR)} of {nearest.whose}. Blocks of {percent_text(scale)} of the volume would not.")]
    if scale is not None and scale >= 1.25:
        most = "8 times and more" if scale > 7.9 else f"about {scale:.1f} times"
        return [("There is room: blocks of ", f"{most} the largest volume would fit below {percent_text(NEAR)} of {nearest.whose}{beside}.")]
    return []
