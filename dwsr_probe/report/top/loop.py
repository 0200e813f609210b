"""The loop of `top`: a thread reads moments, the main thread handles keys and signals and draws at
most four pictures a second. Also the plain lines where stdout is no terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from dwsr_probe.export.client import StreamError
from dwsr_probe.live.wire import TaskIdentity
from dwsr_probe.report.top.moment import Moment, Watch, WatchError
from dwsr_probe.report.top.picture import Picture
from dwsr_probe.report.top.port import PredictorPort
from dwsr_probe.report.top.screen import Screen, plain_line
from dwsr_probe.report.top.terminal import Terminal, TerminalGone, is_screen

INTERVAL_LEAST_S, PLAIN_S = 0.25, 1.0
_REDRAW_S = 0.05  # between two drawings for keys; also how long the rest of a sequence may take
_FORECAST_S = 2.0
_SLOW_S = 2.0  # a port that takes longer to answer is reported
# lines end when a port has not answered, or no process has been there, for so long
_GONE_S = 10.0
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class MomentReader(threading.Thread):
    """Reads moments again and again, and keeps the newest, with the records of those before it
    that were not fetched."""

    def __init__(self, watch: Watch, interval_s: float, wake: Callable[[], None]) -> None:
        super().__init__(daemon=True)  # a port that does not answer does not hold up the end
        self._watch, self._interval_s, self._wake = watch, interval_s, wake
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        self._trouble: str | None = None
        self._failure: Exception | None = None
        self._begun: float | None = time.monotonic()  # of the present read

    def run(self) -> None:
        while not self._failure:
            begin, interval_s = time.monotonic(), self._interval_s
            self._begun = begin
            try:
                moment = self._watch.read()
                if moment.behind:  # there is more to read at once
                    interval_s = INTERVAL_LEAST_S
                self._keep(moment)
            except WatchError as error:
                with self._lock:
                    self._trouble = str(error)
            # the main thread raises it, and gives the terminal back first
            except Exception as error:
                self._failure = error
            self._begun = None
            self._wake()
            time.sleep(max(0.02, begin + interval_s - time.monotonic()))

    def _keep(self, moment: Moment) -> None:
        with self._lock:
            if self._moment is not None:
                moment.records = self._moment.records + moment.records
            self._moment, self._trouble = moment, None

    def take_newest(self) -> tuple[Moment | None, str | None]:
        """Returns the newest moment and removes it here (None: there is no new one), and why
        the last read failed."""
        if self._failure:
            raise self._failure
        with self._lock:
            moment, self._moment = self._moment, None
            return moment, self._trouble

    @property
    def waiting_text(self) -> str:
        """A text while a port takes long to answer; else empty."""
        begun, port = self._begun, getattr(self._watch, "waits_for", None)
        slow = port and begun is not None and time.monotonic() > begun + _SLOW_S
        return f"waiting for {port}" if slow else ""


class ForecastReader(threading.Thread):
    """Reads forecasts of a predictor, if there is one, every two seconds. In a thread of its own: a
    slow predictor does not hold up the moments."""

    def __init__(self, predictor: PredictorPort | None) -> None:
        super().__init__(daemon=True)
        self._predictor, self.trouble = predictor, ""
        self.overrun_ratios: Mapping[TaskIdentity, float] | None = None
        if predictor:
            self.start()

    def run(self) -> None:
        while self._predictor:
            try:
                self.overrun_ratios, self.trouble = self._predictor.read(), ""
            except StreamError as error:
                self.overrun_ratios, self.trouble = None, f"no forecasts: {error}"
            time.sleep(_FORECAST_S)


class Signals:
    """Wakes a select; remembers which signals were received."""

    def __init__(self) -> None:
        self.readable, self._writable = os.pipe()
        for end in (self.readable, self._writable):
            os.set_blocking(end, False)
        self.received: set[int] = set()

    @contextmanager
    def catch(self, *numbers: int) -> Iterator[Signals]:
        before = {
            number: signal.signal(number, lambda number, _: self.received.add(number))
            for number in numbers
        }
        wakeup = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def wake(self) -> None:
        """From another thread."""
        try:
            os.write(self._writable, b"\0")
        except BlockingIOError:  # it will wake up anyway
            pass

    def wait(self, descriptors: Iterable[int], seconds: float) -> list[int]:
        """Waits for a signal or a descriptor, at most so long. Returns the descriptors that can be
        read."""
        ready, _, _ = select.select([self.readable, *descriptors], [], [], max(0.0, seconds))
        if self.readable in ready:
            try:
                os.read(self.readable, 4096)
            except BlockingIOError:
                pass
        return [one for one in ready if one != self.readable]

    @property
    def ending(self) -> bool:
        return bool(self.received & set(_END_SIGNALS))


def show(
    watch: Watch, predictor: PredictorPort | None = None, interval_s: float = INTERVAL_LEAST_S
) -> None:
    """Draws on the terminal, until q or a signal. WatchError if the first read fails."""
    signals = Signals()
    with signals.catch(*_END_SIGNALS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
        begun = _begin(watch, interval_s, signals)
        if begun is None:
            return
        moments, picture = begun
        forecasts, screen = ForecastReader(predictor), Screen(picture)
        try:
            with Terminal() as terminal:
                _follow(terminal, screen, picture, moments, forecasts, signals)
        except TerminalGone:
            pass


def _begin(
    watch: Watch, interval_s: float, signals: Signals
) -> tuple[MomentReader, Picture] | None:
    """A reader, and a picture of its first moment; None: a signal came before that moment."""
    moments, picture = MomentReader(watch, interval_s, signals.wake), Picture(watch.title)
    moments.start()
    waiting = ""
    while not signals.ending:
        moment, trouble = moments.take_newest()
        if moment is not None:
            picture.add(moment)
            return moments, picture
        if trouble:
            raise WatchError(trouble)
        if not waiting and (waiting := moments.waiting_text):
            print(f"{time.strftime('%H:%M:%S')}; {waiting}", flush=True)
        signals.wait((), min(1.0, _SLOW_S))
    return None


def _add_newest(picture: Picture, moments: MomentReader, forecasts: ForecastReader) -> bool:
    """Adds what is new to the picture; False: nothing is."""
    moment, trouble = moments.take_newest()
    if moment is not None:
        picture.add(moment, forecasts.overrun_ratios)
    else:
        trouble = trouble or moments.waiting_text
    if moment is not None or trouble:
        picture.moment.stale, picture.moment.trouble = bool(trouble), trouble or forecasts.trouble
    return moment is not None or bool(trouble)


def _follow(
    terminal: Terminal,
    screen: Screen,
    picture: Picture,
    moments: MomentReader,
    forecasts: ForecastReader,
    signals: Signals,
) -> None:
    dirty, drawn, keyboard = True, 0.0, [] if terminal.keyboard is None else [terminal.keyboard]
    while not signals.ending:
        if signal.SIGTSTP in signals.received:
            _suspend(terminal, signals)
        if signals.received & {signal.SIGWINCH, signal.SIGCONT}:
            signals.received.clear()
            terminal.invalidate()
            dirty = True
        if _add_newest(picture, moments, forecasts):
            dirty = dirty or not screen.paused
        now = time.monotonic()
        if dirty and now >= drawn + _REDRAW_S:
            terminal.show(screen.lines(*terminal.size()))
            dirty, drawn = False, now
        for _ in signals.wait(keyboard, _REDRAW_S if dirty or terminal.has_incomplete else 1.0):
            for key in terminal.read():
                dirty = True
                if not screen.handle_key(key):
                    return
            break
        else:
            for key in terminal.take_incomplete() if terminal.has_incomplete else ():
                screen.handle_key(key)
                dirty = True


def _suspend(terminal: Terminal, signals: Signals) -> None:
    """Ctrl-Z: gives the terminal to the shell and stops this process until SIGCONT."""
    signals.received.discard(signal.SIGTSTP)
    terminal.give_back()
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    terminal.take_over()
    signals.received.add(signal.SIGCONT)


def print_lines(
    watch: Watch, predictor: PredictorPort | None = None, interval_s: float = PLAIN_S
) -> None:
    """Prints a line a second or less often, none twice, until the job has ended, no process is
    left, the reader has gone, or a signal. WatchError if the first read fails."""
    signals, interval_s = Signals(), max(PLAIN_S, interval_s)
    with signals.catch(*_END_SIGNALS):
        begun = _begin(watch, interval_s, signals)
        if begun is None:
            return
        moments, picture = begun
        forecasts = ForecastReader(predictor)
        answered = lived = due = time.monotonic()
        shown = None
        while not signals.ending and not _reader_has_gone():
            now, moment = time.monotonic(), picture.moment
            if moment.processes:
                lived = now
            elif not moment.job_end and not moment.stale and now > lived + _GONE_S:
                moment.job_end = f"no process with a probe for {_GONE_S:.0f} seconds"
            clock, _, line = plain_line(picture).partition("; ")
            if line != shown:
                print(f"{clock}; {line}", flush=True)
                shown = line
            if moment.job_end or now > answered + interval_s + _GONE_S:
                return
            due += interval_s
            while (left := due - time.monotonic()) > 0 and not signals.ending:
                signals.wait((), left)
            if _add_newest(picture, moments, forecasts) and not picture.moment.stale:
                answered = time.monotonic()


def _reader_has_gone() -> bool:
    """Whether the other end of a pipe is closed. Where nothing changes, nothing is written, and no
    write would fail."""
    if sys.stdout is None:
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups are reported anyway
    return bool(poll.poll(0))


def can_draw() -> bool:
    """Whether stdout is a terminal for show()."""
    return sys.stdout is not None and is_screen(sys.stdout)
