"""A question to the model and its answer, as the command line and the service's HTTP side ask
it: texts and JSON in, JSON out."""

import math
import re
from dataclasses import dataclass, field

import numpy as np

from dwsr_probe.predict import KINDS

QUANTILE = 0.99
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_INPUTS_MOST, _AXES_MOST, _NAME_MOST = 256, 64, 10_000
_FIELDS = {"task", "inputs", "kind", "q", "limit", "above"}


@dataclass
class Question:
    task: str
    inputs: list = field(default_factory=list)  # as in the record: {dtype, shape} or {nbytes}
    kind: str = "alloc"
    q: float = QUANTILE
    limit: float | None = None  # bytes: how probable is more?
    above: float = 0.0  # bytes that a running task has had already

    def __post_init__(self):
        if not isinstance(self.task, str) or not 0 < len(self.task) <= _NAME_MOST:
            raise ValueError("name the task, as in the record's task_name")
        if self.kind not in KINDS:
            raise ValueError(f"kind is one of {', '.join(KINDS)}")
        if not isinstance(self.inputs, list) or len(self.inputs) > _INPUTS_MOST:
            raise ValueError(f"inputs are a list of at most {_INPUTS_MOST}")
        self.inputs = [_checked(given) for given in self.inputs]
        self.q = _number(self.q, "q")
        if not 0 < self.q < 1:
            raise ValueError("q is a probability between 0 and 1, such as 0.99")
        self.limit = None if self.limit is None else bytes_of(self.limit)
        self.above = bytes_of(self.above)


def question_of(given):
    """From JSON; ValueError with a text for whoever asks."""
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
    return Question(
        given.get("task"),
        **{name: value for name, value in given.items() if name != "task" and value is not None},
    )


def inputs_of(shapes, dtypes, sizes=()):
    """From words: shapes as 512,512,512, with a dtype each or one for all; sizes in bytes of
    inputs that have no shape."""
    if len(dtypes) not in (1, len(shapes)) and shapes:
        raise ValueError(
            "give one dtype for all shapes, or one for each"
            if dtypes
            else "a shape needs its dtype, such as float32"
        )
    found = [
        {"dtype": dtype, "shape": _shape(shape)}
        for shape, dtype in zip(
            shapes, dtypes * len(shapes) if len(dtypes) == 1 else dtypes, strict=False
        )
    ]
    return found + [{"nbytes": int(bytes_of(size))} for size in sizes]


def bytes_of(given):
    """8GiB, 500 MB, 1e9, 123: bytes. As everywhere, GB is 10**9 and GiB is 2**30."""
    if isinstance(given, str):
        found = re.fullmatch(
            r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgtp]?)(i?)b?\s*", given, re.IGNORECASE
        )
        if not found:
            raise ValueError(f"{given!r} is not a number of bytes; write 8GiB, 500MB or 1000000")
        number, unit, binary = found.groups()
        given = _number(number, "a size") * (1024 if binary else 1000) ** _UNITS[unit.lower()]
    given = _number(given, "a size")
    if given < 0:
        raise ValueError("a number of bytes is not negative")
    return given


def answer(model, question):
    """JSON-able."""
    forecast = model.predict(question.inputs, question.task, kind=question.kind)
    found = {
        "task": question.task,
        "kind": question.kind,
        "inputs": question.inputs,
        "mean_bytes": whole_bytes(forecast.mean),
        "q": question.q,
        "upper_bytes": whole_bytes(forecast.upper(question.q)),
        "promised": bool(forecast.promised(question.q)),
        "output": forecast.output,
        "n": forecast.n,
        "trust": forecast.trust,
        "notes": list(forecast.notes),
    }
    if question.limit is not None:
        found |= {
            "limit_bytes": question.limit,
            "exceeds": float(forecast.exceeds(question.limit, question.above)),
        }
    return found


def whole_bytes(value):
    """None: no bound; JSON has no infinity."""
    return round(value) if math.isfinite(value) else None


def _number(given, what):
    try:
        value = None if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = None
    if value is None or not math.isfinite(value):
        raise ValueError(f"{what} is a number")
    return value


def _shape(text):
    words = [word for word in re.split(r"[,x× ]+", text.strip().strip("()[]")) if word]
    if not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words) or len(words) > _AXES_MOST:
        raise ValueError(f"{text!r} is not a shape; write 512,512,512")
    return [int(word) for word in words]


def _checked(given):
    if not isinstance(given, dict):
        raise ValueError(
            'an input is an object: {"dtype": "float32", "shape": [512, 512]} or {"nbytes":'
            " 1048576}"
        )
    shape, dtype, nbytes = given.get("shape"), given.get("dtype"), given.get("nbytes")
    if shape is None and nbytes is None:
        raise ValueError("an input needs its shape and dtype, or its nbytes")
    if shape is not None and (
        not isinstance(shape, list)
        or len(shape) > _AXES_MOST
        or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
    ):
        raise ValueError("a shape is a list of numbers, such as [512, 512]")
    if nbytes is not None:
        bytes_of(nbytes)
    if dtype is not None or nbytes is None:
        try:
            if not isinstance(dtype, str):
                raise TypeError
            np.dtype(dtype)
        # SyntaxError: of texts with commas in them
        except (TypeError, ValueError, SyntaxError) as error:
            if nbytes is None:
                raise ValueError(
                    f"{dtype!r} is not a dtype; write float32, int16, complex64, ..."
                ) from error
    return {
        name: value
        for name, value in given.items()
        if name in ("type", "dtype", "shape", "nbytes") and value is not None
    }
