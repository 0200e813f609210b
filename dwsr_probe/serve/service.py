"""The predictor as a service: polls its targets each second, learns, keeps its state. Its HTTP side
is handlers.py and metrics.py.

Three kinds of threads: the caller of `turn` learns, the threads of a pool poll the targets, the
server's thread answers requests. One lock protects the model and is held for a few records at a
time. Targets are not trusted: whatever one of them sends, memory is bounded and the others are
polled.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest

from dwsr_probe import __version__, _core
from dwsr_probe.export.client import (
    SEQ_MOST,
    StreamError,
    parse_state,
)
from dwsr_probe.export.exposition import registry
from dwsr_probe.export.sources.source import MetricsSource
from dwsr_probe.predict import Model
from dwsr_probe.predict.sizes import non_negative_int
from dwsr_probe.serve.discovery import FIND_INTERVAL_S, TARGETS_MOST
from dwsr_probe.serve.ledger import Ledger, shown_pair
from dwsr_probe.serve.metrics import METRICS
from dwsr_probe.serve.overrun import OverrunForecasts
from dwsr_probe.serve.pool import Pool, Result
from dwsr_probe.serve.targets import (
    RECORDS_MOST,
    UPDATE_BYTES_MOST,
    Login,
    PortTarget,
    RunTarget,
    TargetUpdate,
    unpack,
)
from dwsr_probe.serve.watched import Backlog, WatchedTarget

if TYPE_CHECKING:
    from dwsr_probe.predict.forecast import Forecast, Round
    from dwsr_probe.serve.discovery import Discovery
    from dwsr_probe.serve.ledger import Account, Pair
    from dwsr_probe.serve.overrun import OverrunForecast
    from dwsr_probe.serve.state import State

    TargetName = str | tuple[str, ...]  # of a target: its URL, or ("run", directory)

# For the results of polls, and the same for learning; then the caller of `turn` handles signals.
TURN_BUDGET_S = 0.2
PIECE = 16  # records learned under one lock, up to a millisecond each; then requests are served
# The target of a poll that took longer than SLOW_S stays in the slow lane for PROBATION_S.
SLOW_S, PROBATION_S = 1.0, 60.0
# Of records that wait to be learned, including what the polls under way may bring.
WAITING_BYTES_MOST = 64 << 20
# With more waiting, the service does not keep up: it requests only PIECE records of each target.
THROTTLED_ABOVE_BYTES = WAITING_BYTES_MOST // 4
_PROCESSES_MOST, _PROCESS_CHARS_MOST = 20_000, 512


@dataclass
class PredictorView:
    """One moment, as metrics.py reads it."""

    forecasts: list[tuple[Pair, str, Forecast]]  # by pair and kind, for the largest inputs seen
    accounts: list[tuple[Pair, str, Account]]  # by pair and kind
    overruns: list[OverrunForecast]
    ledger: Ledger
    up: int
    down: int
    models: int
    polls_ok: int
    polls_failed: int
    turn_seconds: float
    waiting_bytes: int
    version: str = __version__
    board_version: str = str(_core.BOARD_VERSION)


class Predictor(MetricsSource):
    metrics = METRICS

    def __init__(
        self,
        discoveries: Iterable[Discovery],
        directories: Iterable[tuple[tuple[str, ...], Callable[[Any], RunTarget]]] = (),
        login: Login | None = None,
        state: State | None = None,
        interval_s: float = 1.0,
        save_s: float = 30.0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """discoveries: where targets come from. directories: names and makers of RunTargets, called
        with their saved states. state: None to keep nothing."""
        self._login, self._state, self._interval_s, self._save_s, self._say = (
            login or Login(),
            state,
            interval_s,
            save_s,
            say,
        )
        self.model, self.ledger, self.overruns = Model(), Ledger(), OverrunForecasts()
        self._learned_seqs: dict[str, int] = {}  # the newest, by host and process
        self._watched: dict[TargetName, WatchedTarget] = {}
        self._saved_states: dict[TargetName, Any] = {}  # of targets that are not watched now
        self._lock, self._requests = threading.RLock(), 0  # requests that wait for the lock
        self._found_urls: dict[Discovery, list[str] | None] = {}
        self._rounds: list[Round] = []
        self._backlogs: deque[Backlog] = deque()
        self.waiting_bytes, self._polls_under_way = 0, 0  # waiting_bytes: of the backlogs
        self._short_of_memory = False
        self.polls_ok, self.polls_failed, self._changed, self._turn_seconds = 0, 0, False, 0.0
        if state is not None:
            state.load(self._restore)
        self._discoveries = dict.fromkeys(discoveries, 0.0)  # when find() is called again
        for name, make in directories:
            saved = self._saved_states.get(name)
            self._watched[name] = WatchedTarget(make(saved), saved)
        self._save_due = time.monotonic() + save_s
        self._pool = Pool()

    # -- the server's side

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For a request: `_learn` releases the lock to it after the present piece."""
        self._requests += 1  # by the server's thread alone
        try:
            with self._lock:
                yield
        finally:
            self._requests -= 1

    def view(self) -> PredictorView:
        """Called while locked."""
        accounts = [
            (pair, kind, account)
            for pair, kinds in self.ledger.accounts.items()
            for kind, account in kinds.items()
        ]
        watched = [w for w in self._watched.values() if w.serves_tasks and w.up is not None]
        up = sum(bool(w.up) for w in watched)
        return PredictorView(
            self._shown_forecasts(),
            accounts,
            self.overruns.most_probable(),
            self.ledger,
            up,
            len(watched) - up,
            len(self.model.names()),
            self.polls_ok,
            self.polls_failed,
            self._turn_seconds,
            self.waiting_bytes,
        )

    def _shown_forecasts(self) -> list[tuple[Pair, str, Forecast]]:
        """By pair and kind, for the largest inputs seen. Of groups that share a pair: the forecast
        with the largest mean."""
        found: dict[tuple[Pair, str], Forecast] = {}
        for group in self.model.groups():
            pairs = {shown_pair(name, group.name) for name in self.model.task_names(group)}
            pairs &= self.ledger.accounts.keys()
            for kind in self.model.kinds(group) if pairs else ():
                largest = self.ledger.largest(group.text, self.model, kind)
                forecast = self.model.predict(
                    largest.inputs, group, kind=kind, params=largest.params
                )
                for pair in pairs:
                    other = found.get((pair, kind))
                    if other is None or _is_larger(forecast, other):
                        found[pair, kind] = forecast
        return [(pair, kind, forecast) for (pair, kind), forecast in found.items()]

    # -- the learner's side

    def turn(self) -> bool:
        """Does everything that is due, once. True: there is more to do at once."""
        try:
            more = self._turn()
            self._short_of_memory = False
            return more
        except MemoryError:  # the memory is free again by now
            if not self._short_of_memory:
                self._say(
                    "there is not enough memory; some records or a save were left out, forecasts"
                    " go on"
                )
            self._short_of_memory = True
            return False

    def _turn(self) -> bool:
        start = time.monotonic()
        self._discover(start)
        self._submit_polls(start)
        for result in self._pool.results():
            error, owner = result.error, result.owner
            if error is not None and not isinstance(error, StreamError | MemoryError):
                raise error
            if isinstance(owner, WatchedTarget):
                self._polls_under_way -= 1
                self._handle_poll(owner, result)
            else:
                if result.value is not None:
                    self._found_urls[owner] = result.value
                self._choose_targets()
            if time.monotonic() > start + TURN_BUDGET_S:
                break
        self._learn(time.monotonic() + TURN_BUDGET_S)
        if self._state is not None:
            self._state.append(self._rounds, time.time())
            self._rounds.clear()
            if time.monotonic() >= self._save_due:
                self.save()
        self._turn_seconds = time.monotonic() - start
        return bool(self._backlogs) or self._pool.has_results()

    def _submit_polls(self, now: float) -> None:
        """Polls the targets that are due, those that have waited longest first, as long as there is
        memory for what they may send."""
        most = PIECE if self.waiting_bytes > THROTTLED_ABOVE_BYTES else RECORDS_MOST
        for watched in sorted(
            (w for w in self._watched.values() if not w.busy and now >= w.due), key=lambda w: w.due
        ):
            if (
                self.waiting_bytes + (self._polls_under_way + 1) * UPDATE_BYTES_MOST
                > WAITING_BYTES_MOST
            ):
                return
            assert watched.target is not None  # a target without a URL stays busy
            self._pool.submit(
                watched, partial(watched.target.poll, most), slow=now < watched.slow_until
            )
            watched.busy = True
            self._polls_under_way += 1

    def _discover(self, now: float) -> None:
        for discovery, due in self._discoveries.items():
            if now >= due:
                self._discoveries[discovery] = now + FIND_INTERVAL_S
                self._pool.submit(discovery, discovery.find)

    def _choose_targets(self) -> None:
        """Watches the targets of all discoveries that have answered, and no others."""
        wanted = dict.fromkeys(url for found in self._found_urls.values() if found for url in found)
        for url in list(wanted)[:TARGETS_MOST]:
            if url not in self._watched:
                state = self._saved_states.pop(url, None)
                try:
                    self._watched[url] = WatchedTarget(PortTarget(url, self._login, state), state)
                except (ValueError, AttributeError) as error:
                    self.polls_failed += 1
                    # kept, so that it is reported once; busy, so that it is never polled
                    self._watched[url] = WatchedTarget(None, None, busy=True)
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
                self._forget_running(watched)

    def _handle_poll(self, watched: WatchedTarget, result: Result) -> None:
        """After a poll: learns the running tasks, and queues the finished ones."""
        watched.busy, now = False, time.monotonic()
        if result.seconds > SLOW_S:
            watched.slow_until = now + PROBATION_S
        if watched.gone:
            return
        if result.error is not None:
            self.polls_failed += 1
            if message := watched.note_failure(result.error, now, self._interval_s):
                self._say(message)
            self._forget_running(watched)
            return
        update: TargetUpdate = result.value
        if message := watched.note_success(update, now, self._interval_s):
            self._say(message)
        with self._lock:
            self.ledger.count_missed(update.lost, update.refused)
            learn, vanished = self.overruns.update(watched.name, update, self.model, now)
            for process in vanished:
                self.model.forget_running(process)
            for record in learn:
                self._learn_one(record)
        if update.records:
            watched.busy = True  # not polled again before these are learned
            self._backlogs.append(Backlog(watched, update.reader_state, deque(update.records)))
            self.waiting_bytes += sum(map(len, update.records))
        else:
            watched.learned_state = update.reader_state
        self.polls_ok += 1

    def _forget_running(self, watched: WatchedTarget) -> None:
        """Forgets the running tasks of a target."""
        with self._lock:
            for process in self.overruns.drop(watched.name):
                self.model.forget_running(process)

    def _learn(self, deadline: float) -> None:
        """Learns from the backlogs in turn, a piece of each."""
        while self._backlogs and time.monotonic() < deadline:
            backlog = self._backlogs[0]
            with self._lock:
                for _ in range(min(PIECE, len(backlog.records))):
                    packed = backlog.records.popleft()
                    self.waiting_bytes -= len(packed)
                    self._learn_one(unpack(packed))
            if backlog.records:
                self._backlogs.rotate(-1)
            else:
                self._backlogs.popleft()
                backlog.watched.learned_state, backlog.watched.busy = backlog.reader_state, False
            # A lock alone is not fair: this thread would have it back before others wake up.
            while self._requests:
                time.sleep(0.0005)

    def _learn_one(self, record: dict[str, Any]) -> None:
        """record: of checked_record(), so that types and ranges are valid."""
        if record["state"] != "running":
            process = f"{record.get('host')} {record['process']}"
            if record["seq"] <= self._learned_seqs.get(process, 0):
                return  # from another target: a worker's port and an exporter send the same tasks
            self._learned_seqs.pop(process, None)
            self._learned_seqs[process] = record["seq"]
            while len(self._learned_seqs) > _PROCESSES_MOST:
                self._learned_seqs.pop(next(iter(self._learned_seqs)))
        try:
            rounds = self.model.learn(record)
        # impossible figures: records come from other machines
        except (ValueError, TypeError, KeyError, OverflowError):
            self.ledger.refused += 1
            return
        self._changed = True
        if record["state"] != "running":
            self.ledger.add_record(record)
        self.ledger.add_rounds(rounds)
        self._rounds += rounds

    # -- state

    def save(self) -> None:
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
                "seen": list(self._learned_seqs.items()),
                "targets": [
                    [list(name) if isinstance(name, tuple) else name, state]
                    for name, state in states.items()
                ],
            }
        )
        self._changed = False

    def _restore(self, found: dict[str, Any]) -> None:
        """Uses a saved state, checked as strictly as what targets send: an earlier version may
        have kept anything. ValueError and the like: it cannot be used."""
        model, ledger, seen = (
            Model.from_dict(found["model"]),
            Ledger.from_dict(found["ledger"]),
            dict(found["seen"]),
        )
        if len(seen) > _PROCESSES_MOST or not all(
            len(process) <= _PROCESS_CHARS_MOST and non_negative_int(seq, "seq", SEQ_MOST) == seq
            for process, seq in seen.items()
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
        self._learned_seqs, self._saved_states = seen, states

    def end(self) -> None:
        """Learns from the backlogs for at most a second, and saves the state."""
        self._learn(time.monotonic() + 1.0)
        if self._state is not None:
            self._state.append(self._rounds, time.time())
            self.save()
            self._state.close()


def _is_larger(one: Forecast, other: Forecast) -> bool:
    """By the mean; a forecast without one is the smallest."""
    return other.is_unknown or (not one.is_unknown and one.mean > other.mean)
