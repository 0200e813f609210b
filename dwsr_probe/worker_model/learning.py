"""The thread that learns the records of its own process, and answers questions from other threads.

It reads finished tasks from the process's board like every reader, by position; records that were
overwritten before they were read are counted as lost. Rows of killed predecessors are read newest
first, because the tasks that were killed are the last ones. In turn the thread reads some records,
answers a question, and learns the record that is worth most, until its CPU time is used up. While
questions wait, repeats are not learned. Nor are running tasks, at any time. Imports numpy with the
first record.

A failure ends the thread: one line on stderr, `failed` in the figures, and no more answers.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from dwsr_probe import _core
from dwsr_probe.board import Board
from dwsr_probe.record import FIELDS, STATES, from_row, record_of
from dwsr_probe.say import say_once
from dwsr_probe.worker_model.answers import Answers, answer_of
from dwsr_probe.worker_model.budget import CpuBudget
from dwsr_probe.worker_model.waiting import BEFORE_QUESTIONS, EARLY, KINDS, WaitingRecords

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from dwsr_probe.predict.group import Group
    from dwsr_probe.predict.model import Model
    from dwsr_probe.record import Raw, Row
    from dwsr_probe.worker_model.answers import Answer

    class KilledPredecessorRows(Protocol):
        """What the boards of killed predecessors hold, as dwsr_probe.dask.dead has it."""

        def piece_count(self) -> int: ...
        def piece_rows(self, index: int) -> list[Row]: ...
        def piece_lost(self, index: int) -> int: ...


GROUPS_MOST = 96  # of the model; up to 115 KB each
_PERIOD_S = 0.25  # between two looks at the board, without a question
_READ_MOST = 64  # records at once
_CLEAR_EVERY = 256  # records learned, after which the vectors of size functions are forgotten
_JOIN_S = 0.5
_FORK_WAIT_S = 1.0
_EARLY_STATES = ("error", "cancelled", "killed")
_WORDS = {name: _core.TASK_FIELDS.index(name) for name in ("state", "alloc_peak_bytes")}
_COLUMNS = {
    name: FIELDS.index(name)
    for name in (
        "task_name",
        "operation",
        "chain",
        "inputs",
        "state",
        "alloc_peak_bytes",
        "kind",
        "params",
    )
}


class LearningThread:
    def __init__(self, predecessors: KilledPredecessorRows | None = None) -> None:
        self.answers = Answers(self._note_question)
        self._predecessors = predecessors
        self._pieces_seen, self._pieces_unread = 0, [0][:0]
        self._waiting = WaitingRecords()
        self._model: Model | None = None
        self._board: Board | None = None
        self._path: str | None = None
        self._position = self._seq = 0  # on the board
        self._learned = self._lost = self._refused = 0
        self._cpu_s, self._failed = 0.0, False
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._turn = threading.Lock()  # held while the thread works
        self._pausing: set[int] = set()  # threads that are about to fork
        self._paused_by: int | None = None
        self._thread = threading.Thread(target=self._work, name="dwsr-model", daemon=True)

    # -- any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join(_JOIN_S)

    def pause(self) -> None:
        """Before a fork. Waits until no turn is under way, but not for long."""
        self._pausing.add(threading.get_ident())
        if self._turn.acquire(timeout=_FORK_WAIT_S):
            self._paused_by = threading.get_ident()

    def resume(self) -> None:
        self._pausing.discard(threading.get_ident())
        if self._paused_by == threading.get_ident():
            self._paused_by = None
            self._turn.release()

    def figures(self) -> dict[str, float]:
        """By the names of live.process.MODEL_FIGURES."""
        skipped = {f"skipped_{kind}": n for kind, n in self._waiting.skipped.items()}
        return {
            "learned": self._learned,
            "expected": self._waiting.expected,
            **skipped,
            "lost": self._lost,
            "refused": self._refused,
            "questions": self.answers.questions,
            "unanswered": self.answers.unanswered,
            "cpu_seconds": round(self._cpu_s, 3),
            "failed": int(self._failed),
        }

    def _note_question(self) -> None:
        self._wake.set()

    # -- the thread itself

    def _work(self) -> None:
        try:
            _core.adopt_handle(0)  # it works for no task
            budget = CpuBudget()
            while not self._stopping.is_set():
                while self._pausing:  # a lock alone is not fair
                    time.sleep(0.001)
                with self._turn:
                    is_idle = not self._take_turn()
                rest_s = budget.rest_s()
                self._cpu_s = budget.used_s
                if rest_s:  # a question does not wake it
                    self._stopping.wait(rest_s)
                elif is_idle:
                    self._wake.wait(_PERIOD_S)
                    self._wake.clear()
        except Exception as error:
            if not self._stopping.is_set():
                self._failed = True
                say_once(
                    "worker model",
                    f"the model in this worker ends: {error!r}; it gives no more forecasts",
                )
        finally:
            self.answers.clear()
            self._model = None

    def _take_turn(self) -> bool:
        """A few milliseconds. False: there was nothing to do."""
        found = self._read_own() or self._read_predecessor()
        kinds: tuple[str, ...] = KINDS
        if self.answers.has_questions():
            self.answers.answer_next(self._predict)
            found, kinds = True, BEFORE_QUESTIONS
        waiting = self._waiting.take(kinds)
        if waiting is None:
            return found
        kind, make_record = waiting
        self._learn(make_record(), kind == EARLY)
        return True

    def _read_own(self) -> bool:
        """Read some records of this process. False: there are no new ones."""
        path = _core.board_path()
        if path != self._path:  # the probe was started again, or stopped
            if self._board is not None:
                self._board.close()
            self._board, self._path = Board(path) if path else None, path
            self._position = self._seq = 0
        board = self._board
        if board is None:
            return False
        frames = board.frames(self._position, _READ_MOST, self._seq)
        self._position = frames.position
        if not frames.count:
            return frames.any_read
        self._lost += frames.last_seq - self._seq - frames.count
        self._seq = frames.last_seq
        for raw in board.unpack(frames.packed):
            self._add_raw(board, raw)
        return True

    def _add_raw(self, board: Board, raw: Raw) -> None:
        words, name, _, inputs, _, _, _, _, operation, chain, params = raw
        self._waiting.add(
            (operation or name, chain or ""),
            inputs,
            words[_WORDS["alloc_peak_bytes"]],
            STATES.get(words[_WORDS["state"]] or 0) in _EARLY_STATES,
            partial(record_of, board, raw),
            params,
        )

    def _read_predecessor(self) -> bool:
        """Read a piece of a killed predecessor's rows. False: there is none that is new."""
        if self._predecessors is None:
            return False
        count = self._predecessors.piece_count()
        self._pieces_unread += range(self._pieces_seen, count)
        self._pieces_seen = count  # fewer than before: they were handed over
        if not self._pieces_unread:
            return False
        piece = self._pieces_unread.pop()
        try:
            rows = self._predecessors.piece_rows(piece)
            self._lost += self._predecessors.piece_lost(piece)
        except IndexError:
            return False
        for row in reversed(rows):
            self._add_row(row)
        return True

    def _add_row(self, row: Row) -> None:
        name, operation, chain, inputs, state, peak, kind, params = (
            row[column] for column in _COLUMNS.values()
        )
        if kind == "task":
            self._waiting.add(
                (operation or name, chain or ""),
                inputs,
                peak,
                state in _EARLY_STATES,
                partial(from_row, row),
                params or "",
            )

    def _loaded(self) -> Model:
        if self._model is None:
            from dwsr_probe.predict.model import Model

            # Answers are remembered here, in fewer bytes.
            self._model = Model(groups_most=GROUPS_MOST, answers_most=0)
        return self._model

    def _learn(self, record: Any, is_early: bool) -> None:
        from dwsr_probe.predict.group import group_of
        from dwsr_probe.predict.sizes import clear_caches

        model = self._loaded()
        group = group_of(record.task_name, record.operation, record.chain)
        is_new_group = not model.knows(group)
        try:
            model.learn(record)
        except ValueError:
            self._refused += 1
            return
        self._learned += 1
        self.answers.note_learned(group.text, is_early, is_new_group)
        if self._learned % _CLEAR_EVERY == 0:
            clear_caches()

    def _predict(self, inputs: Any, group: Group | str, params: Any) -> tuple[str, Answer | None]:
        """The text of the group that is meant, and the answer; None if the question has none, or
        means several groups: who asks has the task, and can name its group."""
        model, text = self._loaded(), str(getattr(group, "text", group))
        found = [] if model.knows(group) else model.groups(text)
        if len(found) > 1:
            return text, None
        try:
            answer = answer_of(model.predict(inputs, group, params=params))
        except ValueError:
            return text, None
        return (found[0].text if found else text), answer
