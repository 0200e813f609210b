"""What `dwsr-probe doctor` checks. A check is a function without arguments that returns a Finding,
or None if it does not concern this machine.

`machine`: kernel, Python, directories, memory limit. `trial`: the probe itself, in a fresh
interpreter. `following`: threads, allocators inside libraries, shared memory. `libraries`: Dask,
CuPy and others, only where they are installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class CheckResult(IntEnum):
    """The larger, the worse."""

    OK = 0
    LIMITED = 1
    FAILED = 2


@dataclass(frozen=True)
class Finding:
    state: CheckResult
    title: str
    text: str
    advice: str | None = None  # what to do


def ok(title: str, text: str) -> Finding:
    return Finding(CheckResult.OK, title, text)


def limited(title: str, text: str, advice: str | None = None) -> Finding:
    return Finding(CheckResult.LIMITED, title, text, advice)


def failed(title: str, text: str, advice: str | None = None) -> Finding:
    return Finding(CheckResult.FAILED, title, text, advice)
