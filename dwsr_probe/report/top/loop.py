"""The loop of `top`: looks from a thread, keys and signals here, at most four pictures a second.
Also the plain lines for what is not a terminal."""

import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager

from dwsr_probe.export.client import StreamError
from dwsr_probe.report.top.moment import WatchError
from dwsr_probe.report.top.picture import Picture
from dwsr_probe.report.top.screen import Screen, plain_line
from dwsr_probe.report.top.terminal import Terminal, TerminalGone, is_screen

INTERVAL_LEAST_S, PLAIN_S = 0.25, 1.0
_KEYS_S = 0.05  # between two drawings for keys; also how long the rest of a sequence may take
_FORECAST_S = 2.0
_WAIT_S = 2.0  # a look at a port that takes longer is said
# for who reads lines: a port that has not answered, and a place where nothing has run for so long,
# have ended
_GONE_S = 10.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Looks(threading.Thread):
    """Looks again and again, and keeps the newest; records of looks that nobody took are kept
    for who comes."""

    def __init__(self, watch, interval_s, wake):
        super().__init__(daemon=True)  # a port that does not answer does not hold up the end
        self._watch, self._interval_s, self._wake = watch, interval_s, wake
        self._lock, self._moment, self._trouble, self._failed = threading.Lock(), None, None, None
        self._begun = time.monotonic()

    def run(self):
        while not self._failed:
            begin, interval_s = time.monotonic(), self._interval_s
            self._begun = begin
            try:
                moment = self._watch.read()
                if moment.behind:  # much has ended before we came
                    interval_s = INTERVAL_LEAST_S
                self._keep(moment)
            except WatchError as error:
                with self._lock:
                    self._trouble = str(error)
            # the main thread raises it, and gives the terminal back first
            except Exception as error:
                self._failed = error
            self._begun = None
            self._wake()
            time.sleep(max(0.02, begin + interval_s - time.monotonic()))

    def _keep(self, moment):
        with self._lock:
            if self._moment is not None:
                moment.records = self._moment.records + moment.records
            self._moment, self._trouble = moment, None

    def take(self):
        """(moment or None, trouble or None): what is new."""
        if self._failed:
            raise self._failed
        with self._lock:
            moment, self._moment = self._moment, None
            return moment, self._trouble

    @property
    def waiting(self):
        """Text, while a port takes long to answer."""
        begun, port = self._begun, getattr(self._watch, "waits_for", None)
        slow = port and begun is not None and time.monotonic() > begun + _WAIT_S
        return f"waiting for {port}" if slow else ""


class Forecasts(threading.Thread):
    """Of a predictor, every two seconds, if there is one; a slow one does not hold up the looks."""

    def __init__(self, predictor):
        super().__init__(daemon=True)
        self._predictor, self.chances, self.trouble = predictor, None, ""
        if predictor:
            self.start()

    def run(self):
        while True:
            try:
                self.chances, self.trouble = self._predictor.read(), ""
            except StreamError as error:
                self.chances, self.trouble = None, f"no forecasts: {error}"
            time.sleep(_FORECAST_S)


class Signals:
    """Wakes a select; remembers which have come."""

    def __init__(self):
        self.readable, self._writable = os.pipe()
        for end in (self.readable, self._writable):
            os.set_blocking(end, False)
        self.came = set()

    @contextmanager
    def caught(self, *numbers):
        before = {
            number: signal.signal(number, lambda number, _: self.came.add(number))
            for number in numbers
        }
        wakeup = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def wake(self):
        """From another thread."""
        try:
            os.write(self._writable, b"\0")
        except BlockingIOError:  # it will wake up anyway
            pass

    def wait(self, descriptors, seconds):
        """Those that can be read, after waiting at most so long for anything."""
        ready, _, _ = select.select([self.readable, *descriptors], [], [], max(0.0, seconds))
        if self.readable in ready:
            try:
                os.read(self.readable, 4096)
            except BlockingIOError:
                pass
        return [one for one in ready if one != self.readable]

    @property
    def ending(self):
        return bool(self.came & set(_ENDING))


def show(watch, predictor=None, interval_s=INTERVAL_LEAST_S):
    """On the terminal, until q or a signal. WatchError if the first look fails."""
    signals = Signals()
    with signals.caught(*_ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
        looks, picture = _begun(watch, interval_s, signals)
        if looks is None:
            return
        forecasts, screen = Forecasts(predictor), Screen(picture)
        try:
            with Terminal() as terminal:
                _follow(terminal, screen, picture, looks, forecasts, signals)
        except TerminalGone:
            pass


def _begun(watch, interval_s, signals):
    """(looks, picture) after the first look; (None, None) if somebody was impatient."""
    looks, picture = Looks(watch, interval_s, signals.wake), Picture(watch.title)
    looks.start()
    told = ""
    while not signals.ending:
        moment, trouble = looks.take()
        if moment is not None:
            picture.take(moment)
            return looks, picture
        if trouble:
            raise WatchError(trouble)
        if not told and (told := looks.waiting):
            print(f"{time.strftime('%H:%M:%S')}; {told}", flush=True)
        signals.wait((), min(1.0, _WAIT_S))
    return None, None


def _add(picture, looks, forecasts):
    """What is new, to the picture; False: nothing is."""
    moment, trouble = looks.take()
    if moment is not None:
        picture.take(moment, forecasts.chances)
    else:
        trouble = trouble or looks.waiting
    if moment is not None or trouble:
        picture.moment.stale, picture.moment.trouble = bool(trouble), trouble or forecasts.trouble
    return moment is not None or bool(trouble)


def _follow(terminal, screen, picture, looks, forecasts, signals):
    dirty, drawn, keyboard = True, 0.0, [] if terminal.keys is None else [terminal.keys]
    while not signals.ending:
        if signal.SIGTSTP in signals.came:
            _stop(terminal, signals)
        if signals.came & {signal.SIGWINCH, signal.SIGCONT}:
            signals.came.clear()
            terminal.redraw()
            dirty = True
        if _add(picture, looks, forecasts):
            dirty = dirty or not screen.paused
        now = time.monotonic()
        if dirty and now >= drawn + _KEYS_S:
            terminal.show(screen.lines(*terminal.size()))
            dirty, drawn = False, now
        for _ in signals.wait(keyboard, _KEYS_S if dirty or terminal.waits else 1.0):
            for key in terminal.read():
                dirty = True
                if not screen.key(key):
                    return
            break
        else:
            for key in terminal.rest() if terminal.waits else ():
                screen.key(key)
                dirty = True


def _stop(terminal, signals):
    """Ctrl-Z: the terminal is the shell's until we go on."""
    signals.came.discard(signal.SIGTSTP)
    terminal.give_back()
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    terminal.take()
    signals.came.add(signal.SIGCONT)


def print_lines(watch, predictor=None, interval_s=PLAIN_S):
    """One line a second or less often, none twice, until the job has ended, nothing is left to
    look at, the reader has gone, or a signal. WatchError if the first look fails."""
    signals, interval_s = Signals(), max(PLAIN_S, interval_s)
    with signals.caught(*_ENDING):
        looks, picture = _begun(watch, interval_s, signals)
        forecasts = Forecasts(predictor)
        answered = lived = due = time.monotonic()
        shown = None
        while looks is not None and not signals.ending and not _reader_has_gone():
            now, moment = time.monotonic(), picture.moment
            if moment.processes:
                lived = now
            elif not moment.ended and not moment.stale and now > lived + _GONE_S:
                moment.ended = f"no process with a probe for {_GONE_S:.0f} seconds"
            clock, _, line = plain_line(picture).partition("; ")
            if line != shown:
                print(f"{clock}; {line}", flush=True)
                shown = line
            if moment.ended or now > answered + interval_s + _GONE_S:
                return
            due += interval_s
            while (left := due - time.monotonic()) > 0 and not signals.ending:
                signals.wait((), left)
            if _add(picture, looks, forecasts) and not picture.moment.stale:
                answered = time.monotonic()


def _reader_has_gone():
    """Of a pipe: where nothing changes nothing is written, and no write would fail."""
    if sys.stdout is None:
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups are told anyway
    return bool(poll.poll(0))


def can_draw():
    """On stdout, for show()."""
    return sys.stdout is not None and is_screen(sys.stdout)
