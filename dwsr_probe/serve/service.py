"""The predictor as a service: looks at its targets each second, learns, keeps its state. Its
HTTP side is handlers.py and metrics.py.

One thread learns (the caller of `turn`), a pool takes looks, the server's thread asks. One lock
around the model, held for a few records at a time.
Targets are not trusted: whatever one of them sends, memory is bounded and the others are asked.
"""

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from prometheus_client import generate_latest

from dwsr_probe import __version__, _core
from dwsr_probe.export.client import (
    SEQ_MOST,
    StreamError,
    StreamNonsense,
    StreamRefused,
    parse_state,
)
from dwsr_probe.export.exposition import registry
from dwsr_probe.export.sources.source import MetricsSource
from dwsr_probe.export.totals import visible
from dwsr_probe.predict import Model
from dwsr_probe.predict.sizes import non_negative_int
from dwsr_probe.serve.ledger import Ledger
from dwsr_probe.serve.metrics import METRICS
from dwsr_probe.serve.overrun import OverrunForecasts
from dwsr_probe.serve.pool import Pool
from dwsr_probe.serve.targets import LOOK_S, TARGETS_MOST
from dwsr_probe.serve.watch import RECORDS_MOST, UPDATE_BYTES, Login, Worker, unpacked

TURN_S = 0.2  # for the results of looks, and as much for learning, between two looks at signals
PIECE = 16  # records, at up to a millisecond each: between two chances for a request
AGAIN_MOST_S = REFUSED_S = 60.0
# a look that took longer; how long its target stays in the slow lane
SLOW_S, PROBATION_S = 1.0, 60.0
WAITING_BYTES = 64 << 20  # of records that wait to be learned, with what looks under way may bring
# more: we do not keep up, and take a piece of each target instead of all that it has
PRESSED_BYTES = WAITING_BYTES // 4
HEADROOM = "process_headroom_bytes"
_PROCESSES_MOST, _WHO_MOST = 20_000, 512


class Watched:
    """A target and when it is looked at."""

    def __init__(self, target, state):
        self.target, self.learned_state = target, state
        self.due, self.failures, self.busy, self.gone = 0.0, 0, False, False
        self.slow_until = 0.0
        self.up = None  # not known yet
        self.ours = True  # False: it has no /dwsr/tasks
        self.old = False  # its running tasks have no headroom, and that was said


@dataclass
class View:
    """One moment, as metrics.py reads it."""

    forecasts: list  # (name, kind, Forecast) at the largest inputs seen
    accounts: list  # (name, kind, Account)
    overruns: list
    ledger: Ledger
    up: int
    down: int
    models: int
    looked: int
    failed: int
    turn_seconds: float
    waiting_bytes: int
    version: str = __version__
    board_version: str = str(_core.BOARD_VERSION)


class Predictor(MetricsSource):
    metrics = METRICS

    def __init__(
        self,
        places,
        directories=(),
        login=None,
        state=None,
        interval_s=1.0,
        save_s=30.0,
        say=lambda text: None,
    ):
        """places: of targets.py. directories: RunDirectory makers, called with their saved
        state. state: a State, or None to keep nothing."""
        self._login, self._state, self._interval_s, self._save_s, self._say = (
            login or Login(),
            state,
            interval_s,
            save_s,
            say,
        )
        # seen: (host, process) → the newest seq that was learned
        self.model, self.ledger, self._seen = Model(), Ledger(), {}
        self.overruns, self._watched, self._saved_states = OverrunForecasts(), {}, {}
        self._lock, self._asking = threading.RLock(), 0
        self._found, self._rounds = {}, []
        # records to be learned, and looks being taken
        self._backlog, self.waiting_bytes, self._under_way = deque(), 0, 0
        self._short_of_memory = False
        self.looked, self.failed, self._changed, self._turn_seconds = 0, 0, False, 0.0
        if state is not None:
            state.load(self._restore)
        self._places = {place: 0.0 for place in places}  # when each is asked again
        for name, make in directories:
            self._watched[name] = Watched(
                make(self._saved_states.get(name)), self._saved_states.get(name)
            )
        self._save_due = time.monotonic() + save_s
        self._pool = Pool()

    # -- the server's side

    @contextmanager
    def locked(self):
        """For a request: the learner leaves it the lock at its next piece."""
        self._asking += 1  # by the server's thread alone
        try:
            with self._lock:
                yield
        finally:
            self._asking -= 1

    def view(self):
        """Called while locked."""
        shown = {
            visible(name): name
            for name in self.model.names()
            if visible(name) in self.ledger.accounts
        }
        forecasts = [
            (
                label,
                kind,
                self.model.predict(self.ledger.inputs_of(name, self.model, kind), name, kind=kind),
            )
            for label, name in shown.items()
            for kind in self.model.kinds(name)
        ]
        accounts = [
            (name, kind, account)
            for name, kinds in self.ledger.accounts.items()
            for kind, account in kinds.items()
        ]
        watched = [w for w in self._watched.values() if w.ours and w.up is not None]
        up = sum(w.up for w in watched)
        return View(
            forecasts,
            accounts,
            self.overruns.most_probable(),
            self.ledger,
            up,
            len(watched) - up,
            len(self.model.names()),
            self.looked,
            self.failed,
            self._turn_seconds,
            self.waiting_bytes,
        )

    # -- the learner's side

    def turn(self):
        """One round of everything that is due. True: there is more to do at once."""
        try:
            more = self._turn()
            self._short_of_memory = False
            return more
        except MemoryError:  # what it was needed for is freed by now
            if not self._short_of_memory:
                self._say(
                    "there is not enough memory; some records or a save were left out, forecasts"
                    " go on"
                )
            self._short_of_memory = True
            return False

    def _turn(self):
        start = time.monotonic()
        self._discover(start)
        self._ask(start)
        for owner, result, error, seconds in self._pool.results():
            if error is not None and not isinstance(error, StreamError | MemoryError):
                raise error
            if isinstance(owner, Watched):
                self._under_way -= 1
                self._add_update(owner, result, error, seconds)
            else:
                self._found[owner] = result if result is not None else self._found.get(owner)
                self._choose()
            if time.monotonic() > start + TURN_S:
                break
        self._learn(time.monotonic() + TURN_S)
        if self._state is not None:
            self._state.append(self._rounds, time.time())
            self._rounds.clear()
            if time.monotonic() >= self._save_due:
                self.save()
        self._turn_seconds = time.monotonic() - start
        return bool(self._backlog) or self._pool.has_results()

    def _ask(self, now):
        """Those that have waited longest first, as many as there is memory for what they may
        send."""
        most = PIECE if self.waiting_bytes > PRESSED_BYTES else RECORDS_MOST
        for watched in sorted(
            (w for w in self._watched.values() if not w.busy and now >= w.due), key=lambda w: w.due
        ):
            if self.waiting_bytes + (self._under_way + 1) * UPDATE_BYTES > WAITING_BYTES:
                return
            self._pool.submit(
                watched, partial(watched.target.poll, most), slow=now < watched.slow_until
            )
            watched.busy = True
            self._under_way += 1

    def _discover(self, now):
        for place, due in self._places.items():
            if now >= due:
                self._places[place] = now + LOOK_S
                self._pool.submit(place, place.find)

    def _choose(self):
        """The targets of all places that have answered."""
        wanted = dict.fromkeys(url for found in self._found.values() if found for url in found)
        for url in list(wanted)[:TARGETS_MOST]:
            if url not in self._watched:
                state = self._saved_states.pop(url, None)
                try:
                    self._watched[url] = Watched(Worker(url, self._login, state), state)
                except (ValueError, AttributeError) as error:
                    self.failed += 1
                    self._watched[url] = Watched(None, None)  # so that it is said once
                    self._watched[url].busy = True
                    self._say(f"{url[:200]!r} is not a target: {error}")
        for url in [
            url
            for url, watched in self._watched.items()
            if url not in wanted and not isinstance(url, tuple)
        ]:
            watched = self._watched.pop(url)
            watched.gone = True
            if watched.learned_state:
                self._saved_states[url] = watched.learned_state  # it may come back
                while len(self._saved_states) > TARGETS_MOST:
                    self._saved_states.pop(next(iter(self._saved_states)))
            if watched.target is not None:
                self._drop(watched)

    def _add_update(self, watched, update, error, seconds):
        watched.busy, now = False, time.monotonic()
        if seconds > SLOW_S:
            watched.slow_until = now + PROBATION_S
        if watched.gone:
            return
        if error is not None:
            self.failed += 1
            watched.failures += 1
            refused = isinstance(error, StreamRefused)
            watched.ours = not (refused and error.status == 404)
            watched.due = now + (
                REFUSED_S
                if refused
                else min(AGAIN_MOST_S, self._interval_s * 2 ** min(watched.failures - 1, 10))
            )
            if watched.up is not False and watched.ours:
                how = "sent nonsense" if isinstance(error, StreamNonsense) else "does not answer"
                self._say(f"{watched.target.name} {how}: {error or 'out of memory'}; trying again")
            watched.up = False
            self._drop(watched)
            return
        watched.up, watched.ours, watched.failures = True, True, 0
        watched.due = now if update.more else now + self._interval_s
        if not watched.old and any(HEADROOM not in record for record in update.running):
            watched.old = True
            self._say(
                f"{watched.target.name} does not say how much memory its processes have left: it"
                " runs an older dwsr-probe; its running tasks have no probability of an overrun"
            )
        with self._lock:
            self.ledger.miss(update.lost, update.refused)
            learn, vanished = self.overruns.update(watched.target.name, update, self.model, now)
            for process in vanished:
                self.model.forget_running(process)
            for record in learn:
                self._learn_one(record)
        if update.records:
            watched.busy = True  # no further poll before this one is learned
            self._backlog.append((watched, update.state, deque(update.records)))
            self.waiting_bytes += sum(map(len, update.records))
        else:
            watched.learned_state = update.state
        self.looked += 1

    def _drop(self, watched):
        with self._lock:
            for process in self.overruns.drop(watched.target.name):
                self.model.forget_running(process)

    def _learn(self, deadline):
        """Targets take turns, a piece each."""
        while self._backlog and time.monotonic() < deadline:
            watched, state, records = self._backlog[0]
            with self._lock:
                for _ in range(min(PIECE, len(records))):
                    packed = records.popleft()
                    self.waiting_bytes -= len(packed)
                    self._learn_one(unpacked(packed))
            if records:
                self._backlog.rotate(-1)
            else:
                self._backlog.popleft()
                watched.learned_state, watched.busy = state, False
            # a lock alone is not fair: we would have it back before they wake up
            while self._asking:
                time.sleep(0.0005)

    def _learn_one(self, record):
        """Of checked(): whole, and in range as far as that can be seen without the model."""
        if record["state"] != "running":
            who = f"{record.get('host')} {record['process']}"
            if record["seq"] <= self._seen.get(who, 0):
                return  # by another way: a worker's port and an exporter tell of the same tasks
            self._seen.pop(who, None)
            self._seen[who] = record["seq"]
            while len(self._seen) > _PROCESSES_MOST:
                self._seen.pop(next(iter(self._seen)))
        try:
            rounds = self.model.learn(record)
        # figures that cannot be: they come from elsewhere
        except (ValueError, TypeError, KeyError, OverflowError):
            self.ledger.refused += 1
            return
        self._changed = True
        if record["state"] != "running":
            self.ledger.note(record)
        self.ledger.add(rounds)
        self._rounds += rounds

    # -- state

    def save(self):
        self._save_due = time.monotonic() + self._save_s
        if self._state is None or not self._changed:
            return
        states = self._saved_states | {
            name: w.learned_state for name, w in self._watched.items() if w.learned_state
        }
        self._state.save(
            {  # without the lock: nobody else changes anything
                "model": self.model.to_dict(),
                "ledger": self.ledger.to_dict(),
                "seen": list(self._seen.items()),
                "targets": [
                    [list(name) if isinstance(name, tuple) else name, state]
                    for name, state in states.items()
                ],
            }
        )
        self._changed = False

    def _restore(self, found):
        """Of a saved state, checked as what targets send is: an earlier version may have kept
        anything. ValueError and the like: it cannot be used."""
        model, ledger, seen = (
            Model.from_dict(found["model"]),
            Ledger.from_dict(found["ledger"]),
            dict(found["seen"]),
        )
        if len(seen) > _PROCESSES_MOST or not all(
            len(who) <= _WHO_MOST and non_negative_int(seq, "seq", SEQ_MOST) == seq
            for who, seq in seen.items()
        ):
            raise ValueError("what was learned of each process")
        states = {
            tuple(name) if isinstance(name, list) else name: state
            for name, state in found["targets"]
        }
        for name, state in states.items():
            if isinstance(name, str):
                parse_state(state)
            else:
                non_negative_int(state["position"], "position")
        before = self.model, self.ledger
        self.model, self.ledger = model, ledger
        try:
            generate_latest(registry(self))  # as every scrape will
        except Exception as error:
            self.model, self.ledger = before
            raise ValueError(f"its figures cannot be shown: {error!r}") from error
        self._seen, self._saved_states = seen, states

    def end(self):
        """Learns what it has, for a moment, and keeps the state."""
        self._learn(time.monotonic() + 1.0)
        if self._state is not None:
            self._state.append(self._rounds, time.time())
            self.save()
            self._state.close()
