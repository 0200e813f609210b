"""Tasks that run now: how probable it is that each one exceeds what its process has left for it,
and when. Fed by the service with each look.

What is left for a task: its own live bytes and the headroom of its process, as if its neighbours
stood still. A task whose allocations are not accounted is followed by the growth of its process
instead.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count

WINDOW_S, POINTS_MOST = 30.0, 64
SHOWN_MOST = 256
NEWS = 1.01  # a peak that grew by less is no news
# after which a probability is computed anew, news or not: the model has learned meanwhile
AGAIN_S = 5.0


@dataclass(frozen=True)
class Slot:
    """One running task, as metrics show it."""

    target: str
    pid: str
    # numbers a process's running tasks as they were met: thread numbers would be new series for
    # ever
    slot: str
    task_name: str
    room_bytes: float
    probability: float
    seconds: float | None


class Track:
    """One running task over the looks at it."""

    def __init__(self, number=0):
        self.number = number
        self.points = deque(maxlen=POINTS_MOST)  # (when, peak so far)
        self.looks, self.learned_bytes = 0, -1.0
        # the probability, and what it was computed for: when, peak, room
        self._chance, self._for = None, None

    def add(self, now, peak):
        self.looks += 1
        while self.points and self.points[0][0] < now - WINDOW_S:
            self.points.popleft()
        self.points.append((now, peak))

    def seconds_until(self, room):
        """At the pace of the window, from its first to its last point; None for a peak that does
        not grow."""
        (first, low), (last, high) = self.points[0], self.points[-1]
        if high >= room:
            return 0.0
        return (room - high) * (last - first) / (high - low) if high > low else None

    def chance(self, now, peak, room, compute):
        """Anew if something has changed: each costs about a millisecond, and there may be a
        thousand tasks."""
        if (
            self._for is None
            or now >= self._for[0] + AGAIN_S
            or peak > NEWS * self._for[1]
            or not 1 / NEWS < (room + 1) / (self._for[2] + 1) < NEWS
        ):
            self._chance, self._for = compute(), (now, peak, room)
        return self._chance

    def is_news(self, peak):
        """For the model. A task that was seen once only may have ended by now: most tasks are
        short."""
        return self.looks > 1 and peak > NEWS * self.learned_bytes


_NEVER = Track()


def identity(record):
    """As the model identifies a running task."""
    return record.get("process"), record.get("thread"), record.get("start")


def need_of(record, room):
    """(kind, peak so far, bytes that it has now), or None: not known."""
    peak, live = record.get("alloc_peak_bytes"), record.get("alloc_end_bytes")
    if _is_bytes(peak) and _is_bytes(live):
        return "alloc", peak, live
    peak, before = record.get("rss_peak_bytes"), record.get("rss_before_bytes")
    if (
        _is_bytes(peak)
        and _is_bytes(before)
        and room is not None
        and room.resident_bytes is not None
    ):
        return "rss", max(0, peak - before), max(0, room.resident_bytes - before)
    return None


def _chance(model, record, kind, peak, room):
    return float(
        model.predict(record["inputs"], record["task_name"], kind=kind, running=record).exceeds(
            room, peak
        )
    )


def _is_bytes(value):
    return type(value) in (int, float) and 0 <= value < 1 << 62


class Slots:
    """Of all targets."""

    def __init__(self):
        self._tracks = {}  # target → {identity: Track}
        self._shown = {}  # target → {identity: Slot}

    def follow(self, target, look, model, now):
        """Takes what runs at a target now. What the model should learn of it, and the processes
        of which a task has gone without an end that was told."""
        before, tracks, shown, news = self._tracks.get(target, {}), {}, {}, []
        taken = {
            (who[0], before[who].number) for who in map(identity, look.running) if who in before
        }
        for record in look.running:
            who, room = identity(record), look.rooms.get(str(record.get("pid")))
            need = need_of(record, room)
            if need is None:
                continue
            kind, peak, live = need
            track = tracks[who] = before.get(who) or Track(
                next(n for n in count() if (who[0], n) not in taken)
            )
            taken.add((who[0], track.number))
            track.add(now, peak)
            if track.is_news(peak):
                track.learned_bytes = peak
                news.append(record)
            if room is not None and room.headroom_bytes is not None:
                left = live + room.headroom_bytes
                try:
                    chance = track.chance(
                        now, peak, left, partial(_chance, model, record, kind, peak, left)
                    )
                except (ValueError, TypeError, KeyError):  # of inputs that are none
                    continue
                shown[who] = Slot(
                    target,
                    str(record["pid"]),
                    str(track.number),
                    record["task_name"],
                    left,
                    chance,
                    track.seconds_until(left),
                )
        self._tracks[target], self._shown[target] = tracks, shown
        gone = {
            who[0]
            for who, track in before.items()
            if who not in tracks and who not in look.ended and track.learned_bytes >= 0
        }
        # The model forgets a process's running tasks together: those that still run are told again.
        told = set(map(identity, news))
        news += [
            record
            for record in look.running
            if record["process"] in gone
            and identity(record) not in told
            and tracks.get(identity(record), _NEVER).learned_bytes >= 0
        ]
        return news, gone

    def drop(self, target):
        """It has gone; the processes whose running tasks the model knew."""
        self._shown.pop(target, None)
        tracks = self._tracks.pop(target, {})
        return {who[0] for who, track in tracks.items() if track.learned_bytes >= 0}

    def shown(self):
        """Each task once, though two targets may tell of it; those most in danger first, as many
        as are shown."""
        once = {
            who: slot for target in sorted(self._shown) for who, slot in self._shown[target].items()
        }
        return sorted(once.values(), key=lambda slot: -slot.probability)[:SHOWN_MOST]
