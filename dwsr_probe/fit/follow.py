"""From the block of a dataset to the inputs of a task, as the tasks of a run were seen.

A user types the chunk of the dataset; a task may receive it with a halo, beside parts of its
neighbours, or a share of it. Which of these, is read from the lengths of the largest inputs, axis
by axis, in comparison with the run's block:

| length of the input | at another block |
| -- | -- |
| the block's | the block's |
| the whole array's | the whole array's |
| up to half a block longer | the block's plus as much: a halo |
| shorter, beside an input that has the block's length | the same: a part of a neighbour |
| any other | the same share of the block |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.fit.error import FitError
from dwsr_probe.predict.blocks import scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    Inputs = list[dict[str, Any]]

_TABLES = ("DataFrame", "Series", "Table")
_PUT_TOGETHER_LEAST = 1.5  # times what is read: else `rechunk` only moves the edges of blocks
_HANDLE_SHARE = 0.01  # of the array that it stands for: what a task takes that opens an array


@dataclass
class Dataset:
    """block: the largest block of the run. itemsize: bytes per element; not whole for columns of
    several types. shape: of the whole array; None: not known. task: the text of the group whose
    tasks had the block."""

    block: tuple[int, ...]
    itemsize: float
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    task: str = ""
    is_table: bool = False  # rows and columns of a partition


class TaskOfRun(NamedTuple):
    """The task of a group with the largest inputs. own_bytes: the largest own peak of the group;
    output: of the task that had it."""

    inputs: Inputs
    own_bytes: float
    output: dict[str, Any] | None


class _Found(NamedTuple):
    given: dict[str, Any]
    text: str  # of the group


def find_dataset(tasks: dict[str, TaskOfRun], asks_for_one: bool = False) -> Dataset:
    """The array that the tasks of a run worked on, and the block they used: the largest part of an
    array in a file that a task read, or else the largest input. `rechunk` puts larger blocks
    together. If the user asks for one kind of task, it is the largest input of this. The shape of
    the array is known if a task received the array itself. tasks: by the text of their group."""
    handles: Inputs = []  # the arrays themselves
    reads: list[_Found] = []
    others: list[_Found] = []
    for text, task in tasks.items():
        for given in task.inputs:
            shape, nbytes = given.get("shape"), given.get("nbytes") or 0
            if not shape or None in shape or not nbytes:
                continue
            if given.get("lazy") and task.own_bytes < _HANDLE_SHARE * nbytes:
                handles.append(given)
            else:
                is_read = given.get("lazy") or given.get("late")
                (reads if is_read and not asks_for_one else others).append(_Found(given, text))
    put_together = [
        _Found(task.output, text)
        for text, task in tasks.items()
        if "rechunk" in text and task.output and task.output.get("shape")
    ]
    found = max(reads or others, key=lambda one: _bytes_of(one.given), default=None)
    if found is None:
        raise FitError(
            "no task of this run has an input whose size is known: there is no block to scale"
        )
    for one in put_together:
        if _bytes_of(one.given) >= _PUT_TOGETHER_LEAST * _bytes_of(found.given):
            found = one
    given = found.given
    block = tuple(given["shape"])
    whole = [one for one in handles if len(one["shape"]) == len(block)]
    return Dataset(
        block,
        _bytes_of(given) / max(1, math.prod(block)),
        given.get("dtype"),
        tuple(max(whole, key=_bytes_of)["shape"]) if whole else None,
        found.text,
        str(given.get("type")).rpartition(".")[2] in _TABLES,
    )


def _bytes_of(given: dict[str, Any]) -> int:
    return given.get("nbytes") or 0


def inputs_at(
    inputs: Inputs, dataset: Dataset, block: Sequence[int], is_rechunked: bool = False
) -> Inputs:
    """The inputs of a task at another block. is_rechunked: inputs are the chunks that a block is
    put together from, so their number changes and not their lengths."""
    ratio = math.prod(block) / math.prod(dataset.block)
    if is_rechunked:
        return [
            {**given, "count": max(1, round((given.get("count") or 1) * ratio))} for given in inputs
        ]
    lengths_present = _lengths_present(inputs, dataset)
    found = []
    for given in inputs:
        shape = given.get("shape")
        if not shape or None in shape:
            found += scaled([given], ratio) if given.get("nbytes") else [given]
            continue
        offset = len(shape) - len(dataset.block)
        if offset < 0:
            found += scaled([given], ratio)
            continue
        lengths = list(shape[:offset]) + [
            _length_at(shape[offset + axis], axis, dataset, int(block[axis]), lengths_present)
            for axis in range(len(dataset.block))
        ]
        before, now = max(1, math.prod(shape)), math.prod(lengths)
        sizes = {
            name: round(given[name] * now / before)
            for name in ("nbytes", "logical_bytes")
            if given.get(name) is not None
        }
        found.append({**given, "shape": lengths, **sizes})
    return found


def _length_at(
    length: int, axis: int, dataset: Dataset, now: int, lengths_present: Sequence[set[int]]
) -> int:
    block = dataset.block[axis]
    whole = dataset.shape[axis] if dataset.shape else None
    if length == block:
        return now
    if length == whole:
        return length
    if block < length <= block + block // 2:
        return min(now + length - block, whole or now + length)
    if length < block and block in lengths_present[axis]:
        return min(length, now)  # a part of a neighbour
    return max(1, round(length * now / block))


def _lengths_present(inputs: Inputs, dataset: Dataset) -> list[set[int]]:
    """The lengths of the inputs along each axis of the dataset."""
    found: list[set[int]] = [set() for _ in dataset.block]
    for given in inputs:
        shape = given.get("shape") or ()
        if len(shape) >= len(dataset.block) and None not in shape:
            for axis, length in enumerate(shape[len(shape) - len(dataset.block) :]):
                found[axis].add(length)
    return found


def halo_of(inputs: Inputs, dataset: Dataset) -> list[int]:
    """The halo of a task that receives parts of its block's neighbours: their least length along
    each axis, where it is shorter than the block; or what an input is longer than the block."""
    halo = []
    for block, present in zip(dataset.block, _lengths_present(inputs, dataset), strict=True):
        shorter = [length for length in present if length < block and block in present]
        longer = [length - block for length in present if block < length <= block + block // 2]
        halo.append(min(shorter) if shorter else -(-max(longer) // 2) if longer else 0)
    return halo
