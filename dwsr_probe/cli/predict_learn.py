"""What `dwsr-probe predict` answers from: a run, a saved model, records that other programs wrote;
and where the model is kept."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dwsr_probe.cli import fail
from dwsr_probe.cli.stored_run import stored_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from dwsr_probe.fit.bases import Bases
    from dwsr_probe.predict import Model
    from dwsr_probe.predict.blocks import VaryingAxes
    from dwsr_probe.predict.history import LargestTask, LearnedRun, RunSample
    from dwsr_probe.report.progress import Progress
    from dwsr_probe.serve.ledger import Ledger

STDIN = "-"
_EVERY = 4096  # records between two steps of the progress bar


class Learned(NamedTuple):
    model: Model
    largest: Callable[[str, str], LargestTask]  # of a group; by its text and the kind
    varying_axes: dict[str, VaryingAxes]  # by the text of a group
    is_kept: bool = True  # False: the model could not be saved
    base_bytes: float | None = None  # of a process of the run before its first task


class _Saved(NamedTuple):
    """A model from a file."""

    model: Model
    ledger: Ledger
    is_state: bool  # of the service, with a ledger


def learn(run: str | None, files: tuple[str, ...], kept: str | None) -> Learned:
    """From everything that the user named. run: a directory or a saved model. files: of records.
    kept: the file of the model that learns. Without all of them: from the last run. Exits with a
    message if something cannot be read; then nothing is saved."""
    from dwsr_probe.fit.bases import Bases

    starts_from_file = run is not None and os.path.isfile(run)
    if starts_from_file and kept:
        fail(f"{run} and --model {kept} are two models: name one", 2)
    if files.count(STDIN) > 1:
        fail("standard input can be read once: one --learn -", 2)
    learns_run = not starts_from_file and (run is not None or not (files or kept))
    learns = learns_run or bool(files)
    if kept and learns:
        _check_place(kept)
    saved = None
    if run is not None and starts_from_file:
        saved = _load(run, "a run directory or a model that was saved")
    elif kept and (not learns or os.path.exists(kept)):
        saved = _load(kept, "a file that --model has written")
    if saved and not learns:
        return Learned(saved.model, partial(_largest_saved, saved), {})
    if saved and saved.is_state and kept:
        fail(
            f"{kept} is the state of `predict serve`, which writes it itself; choose another file"
            " for --model"
        )
    bases = Bases()
    run_learned = _learn_new(run, learns_run, files, saved, bases)
    is_kept = _save(run_learned.model, kept) if kept else True
    return Learned(
        run_learned.model,
        partial(_largest, run_learned, saved),
        run_learned.varying_axes,
        is_kept,
        bases.typical_bytes,
    )


def _largest_saved(saved: _Saved, text: str, kind: str) -> LargestTask:
    return saved.ledger.largest(text, saved.model, kind)


def _largest(learned: LearnedRun, saved: _Saved | None, text: str, kind: str) -> LargestTask:
    """The largest inputs of a group, of what was learned now and of what was known before."""
    from dwsr_probe.predict.blocks import input_bytes
    from dwsr_probe.predict.history import LargestTask

    new = learned.largest.get(text, LargestTask([]))
    if saved is None:
        return new
    old = _largest_saved(saved, text, kind)
    return old if (input_bytes(old.inputs) or 0) > (input_bytes(new.inputs) or 0) else new


def _learn_new(
    run: str | None,
    learns_run: bool,
    files: tuple[str, ...],
    saved: _Saved | None,
    bases: Bases,
) -> LearnedRun:
    from dwsr_probe.predict.history import RunSample
    from dwsr_probe.report.progress import Progress
    from dwsr_probe.say import say
    from dwsr_probe.words import count_text

    sample = RunSample()
    with Progress() as progress:
        if learns_run:
            _add_run(sample, run, bases, progress)
        added = sum(_add_lines(sample, path, progress) for path in files)
        if files and not added and not learns_run:
            fail(
                f"nothing to learn in {' and '.join(map(_name_of, files))}; a record is a line such"
                ' as {"task_name": "sort", "input_bytes": 1000000, "alloc_peak_bytes": 2000000}'
            )
        learned = sample.learn(
            progress=partial(progress, "learning"), model=saved.model if saved else None
        )
    if learned.refused:
        say(
            f"left out {count_text(learned.refused, 'record', 'records', '1')} with figures that"
            " cannot be"
        )
    return learned


def _add_run(sample: RunSample, run: str | None, bases: Bases, progress: Progress) -> None:
    """The records of a run directory; exits if there is none."""
    with stored_run(run) as store:
        total = store.task_count()
        for done, record in enumerate(store.tasks()):
            sample.add(record)
            bases.add(record)
            if done % _EVERY == 0:
                progress("reading tasks", done, total)


def _name_of(path: str) -> str:
    return "standard input" if path == STDIN else path


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        if sys.stdin is None:
            raise OSError("it is closed")
        yield sys.stdin.buffer
    else:
        with open(path, "rb") as file:
            yield file


def _add_lines(sample: RunSample, path: str, progress: Progress) -> int:
    """The records of a file; their number. Lines that are no records are reported."""
    from dwsr_probe.predict.lines import RecordLines
    from dwsr_probe.say import say
    from dwsr_probe.words import count_text, line_of

    added = 0
    try:
        with _opened(path) as file:
            total = os.fstat(file.fileno()).st_size  # 0 of a pipe
            lines = RecordLines(file)
            for record in lines:
                sample.add(record)
                added += 1
                if added % _EVERY == 0:
                    progress("reading records", lines.bytes_read, total)
    except OSError as error:
        reason = error.strerror or error
        fail(f"cannot read {_name_of(path)}: {reason}; name a file with a record in each line")
    if lines.first_refused:
        number, message = lines.first_refused
        say(
            f"not learned: {lines.refused:,} of {count_text(lines.read, 'line', 'lines', '1')} of"
            f" {_name_of(path)}; the first is line {number:,}: {line_of(message, 300)}"
        )
    return added


def _load(path: str, advice: str) -> _Saved:
    """A saved model by itself, or the state of the service with a model in it. advice: what to name
    instead of a file that is neither."""
    from dwsr_probe.predict import Model
    from dwsr_probe.serve.ledger import Ledger

    damage = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
        if isinstance(found, dict) and "model" in found and "ledger" in found:
            return _Saved(
                Model.from_dict(found["model"]), Ledger.from_dict(found["ledger"]), is_state=True
            )
        return _Saved(Model.from_dict(found), Ledger(), is_state=False)
    except OSError as error:
        reason = error.strerror or str(error)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        reason = "not a model of dwsr-probe"
    except damage as error:
        reason = str(error)
    fail(f"cannot read {path}: {reason}; name {advice}")


def _check_place(path: str) -> None:
    """Exits if no model can be saved there: before minutes of reading, not after."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if os.path.exists(target) and not os.path.isfile(target):
        reason = "it is not a file"
    elif not os.path.isdir(folder):
        reason = f"there is no directory {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = f"{folder} cannot be written"
    else:
        return
    fail(f"cannot keep a model in {path}: {reason}; choose another file for --model")


def _save(model: Model, path: str) -> bool:
    """False, with a message, if that fails. The file then is as it was."""
    from dwsr_probe.say import say

    try:
        model.save(path)
    except OSError as error:
        say(
            f"cannot write {path}: {error.strerror or error}; nothing of this was kept, and the"
            " file is as it was"
        )
        return False
    return True
