"""A question to the model and its answer: texts and JSON in, JSON out. Used by `dwsr-probe predict`
and by the service's /forecast."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.predict import KINDS
from dwsr_probe.predict.params import parse_params
from dwsr_probe.words import parse_bytes, parse_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dwsr_probe.predict import Forecast, Model
    from dwsr_probe.predict.group import Group

QUANTILE = 0.99
_INPUTS_MOST, _AXES_MOST = 256, 64
_COUNT_MOST = 1 << 20  # of equal inputs in succession
_NAME_CHARS_MOST = 30_000  # a group's text has a name and a chain
_INPUT_FIELDS = ("type", "dtype", "shape", "nbytes", "logical_bytes", "count", "lazy", "late")
_FIELDS = {"task", "inputs", "params", "kind", "q", "limit", "above"}
_PARAMS_MOST = 64


@dataclass
class Question:
    """ValueError, with a text for the user, if it cannot be answered. limit and above may be given
    as texts with units."""

    task: str  # a task name, an operation, or whatever else Model.groups understands
    inputs: list[dict[str, Any]] = field(default_factory=list)  # {dtype, shape} or {nbytes}
    kind: str = "alloc"
    q: float = QUANTILE
    limit: Any = None  # bytes: how probable is more?
    above: Any = 0.0  # bytes that a running task has used already
    params: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not 0 < len(self.task) <= _NAME_CHARS_MOST:
            raise ValueError("name the task, as in the record's task_name or operation")
        if self.kind not in KINDS:
            raise ValueError(f"kind is one of {', '.join(KINDS)}")
        if not isinstance(self.inputs, list) or len(self.inputs) > _INPUTS_MOST:
            raise ValueError(f"inputs are a list of at most {_INPUTS_MOST}")
        self.inputs = [_checked_input(given) for given in self.inputs]
        parse_params(self.params)
        if len(self.params) > _PARAMS_MOST:
            raise ValueError(f"params are at most {_PARAMS_MOST}")
        self.q = parse_number(self.q, "q")
        if not 0 < self.q < 1:
            raise ValueError("q is a probability between 0 and 1, such as 0.99")
        self.limit = None if self.limit is None else parse_bytes(self.limit)
        self.above = parse_bytes(self.above)


def parse_question(given: Any) -> Question:
    """From JSON; ValueError with a text for the user."""
    if not isinstance(given, dict):
        raise ValueError(
            'a question is an object, such as {"task": "smooth", "inputs": [{"dtype": "float32",'
            ' "shape": [512, 512]}]}'
        )
    unknown = set(given) - _FIELDS
    if unknown:
        raise ValueError(
            f"{min(unknown)!r} is not known; a question has {', '.join(sorted(_FIELDS))}"
        )
    present = {name: value for name, value in given.items() if value is not None}
    return Question(present.pop("task", None), **present)


def inputs_from_text(
    shapes: Sequence[str], dtypes: Sequence[str], sizes: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """From texts: shapes as 512,512,512, with one dtype for each or one for all; sizes in bytes of
    inputs without a shape."""
    if len(dtypes) not in (1, len(shapes)) and shapes:
        raise ValueError(
            "give one dtype for all shapes, or one for each"
            if dtypes
            else "a shape needs its dtype, such as float32"
        )
    of_each = [*dtypes] * len(shapes) if len(dtypes) == 1 else dtypes
    found: list[dict[str, Any]] = [
        {"dtype": dtype, "shape": parse_shape(shape)}
        for shape, dtype in zip(shapes, of_each, strict=False)
    ]
    return found + [{"nbytes": int(parse_bytes(size))} for size in sizes]


def params_from_text(given: Sequence[str]) -> dict[str, float]:
    """From texts such as sigma=30 or periodic=true."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        number = {"true": "1", "false": "0"}.get(value.lower(), value)
        try:
            found[name] = parse_number(number, "a parameter")
        except ValueError:
            name = ""
        if not name:
            raise ValueError(f"{text!r} is not a parameter; write sigma=30 or periodic=true")
    return found


def answer_all(model: Model, question: Question) -> dict[str, Any]:
    """If the question may mean several groups of tasks: the answer for a task that may be of any
    of them, with the largest of their bounds; and in `groups` the answer for each."""
    groups = model.groups(question.task)
    if len(groups) <= 1:
        return answer(model, question)
    found = [answer(model, question, group) for group in groups]
    return {**answer(model, question), "groups": found}


def answer(model: Model, question: Question, group: Group | None = None) -> dict[str, Any]:
    """As JSON has it: the same for the command and the service. group: that is meant; None: the
    only one, or none that is known."""
    if group is None and len(groups := model.groups(question.task)) == 1:
        (group,) = groups
    forecast = model.predict(
        question.inputs, group or question.task, kind=question.kind, params=question.params
    )
    found = {
        "task": question.task,
        **names_of(model, group),
        "kind": question.kind,
        "inputs": question.inputs,
        "params": question.params,
        "depends_on": list(forecast.params),
        "q": question.q,
        **bytes_of(forecast, question.q),
        "promised": bool(forecast.promised(question.q)),
        "output": forecast.output,
        "n": forecast.n,
        "trust": forecast.trust,
        "notes": list(forecast.notes),
    }
    if question.limit is not None:
        exceeds = float(forecast.exceeds(question.limit, question.above))
        # A small probability would promise that the task fits.
        known = not forecast.is_lower_bound or (exceeds >= 0.5 and not forecast.is_unknown)
        found |= {"limit_bytes": question.limit, "exceeds": exceeds if known else None}
    return found


def names_of(model: Model, group: Group | None) -> dict[str, Any]:
    """The part of an answer that says whose forecast it is: `group` can be asked for as a task."""
    return {
        "group": group and group.text,
        "operation": group and model.operation(group),
        "chain": list(group.chain) or None if group else None,
    }


def bytes_of(forecast: Forecast, q: float) -> dict[str, Any]:
    """The part of an answer that says how many bytes, and how far that includes all memory.
    mean_bytes is null if nothing is known, upper_bytes if there is no bound."""
    unseen = forecast.unseen
    return {
        "mean_bytes": None if forecast.is_unknown else whole_bytes(forecast.mean),
        "upper_bytes": whole_bytes(forecast.upper(q)),
        "reserve_bytes": whole_bytes(forecast.reserve(q)),
        "first_call_bytes": forecast.first_call_bytes,
        "at_least": forecast.is_lower_bound,
        "unseen": (
            {
                "tasks": unseen.tasks,
                "share": unseen.share,
                "alone": unseen.alone,
                "reasons": unseen.reasons,
            }
            if unseen.tasks
            else None
        ),
    }


def whole_bytes(value: float) -> int | None:
    """Rounded. None where there is no bound, because JSON has no infinity."""
    return round(value) if math.isfinite(value) else None


def parse_count(text: str | None, name: str) -> int | None:
    """Of an option: a whole number from 1; None if it is not given."""
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise ValueError(f"--{name} is a whole number from 1, not {text!r}")
    return int(text)


def parse_shape(text: str) -> list[int]:
    words = [word for word in re.split(r"[,x× ]+", text.strip().strip("()[]")) if word]
    if not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words) or len(words) > _AXES_MOST:
        raise ValueError(f"{text!r} is not a shape; write 512,512,512")
    return [int(word) for word in words]


def _checked_input(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(
            'an input is an object: {"dtype": "float32", "shape": [512, 512]} or {"nbytes":'
            " 1048576}"
        )
    shape, dtype, nbytes = given.get("shape"), given.get("dtype"), given.get("nbytes")
    if shape is None and nbytes is None:
        if isinstance(given.get("type"), str):  # of unknown size, as records have it
            return {"type": given["type"]}
        raise ValueError("an input needs its shape and dtype, or its nbytes")
    if shape is not None and (
        not isinstance(shape, list)
        or len(shape) > _AXES_MOST
        or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
    ):
        raise ValueError("a shape is a list of numbers, such as [512, 512]")
    for size in (nbytes, given.get("logical_bytes")):
        if size is not None:
            parse_bytes(size)
    count = given.get("count")
    if count is not None and (type(count) is not int or not 0 < count <= _COUNT_MOST):
        raise ValueError(f"the count of an input is a whole number from 1 to {_COUNT_MOST:,}")
    if dtype is not None or nbytes is None:
        try:
            if not isinstance(dtype, str):
                raise TypeError
            np.dtype(dtype)
        # NumPy raises SyntaxError for texts with commas in them.
        except (TypeError, ValueError, SyntaxError) as error:
            if nbytes is None:
                raise ValueError(
                    f"{dtype!r} is not a dtype; write float32, int16, complex64, ..."
                ) from error
    return {
        name: value for name, value in given.items() if name in _INPUT_FIELDS and value is not None
    }
