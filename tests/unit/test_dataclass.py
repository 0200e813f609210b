"""Classes made here behave as the standard library's, and dataclasses' functions accept them."""

import copy
import dataclasses
import pickle
import typing

import pytest

from dwsr_probe import dataclass as ours


def point(kind):
    class Point:
        """A point."""

        x: int
        name: str | None = None
        _marks: list = kind.field(default_factory=list, metadata={"unit": "m"})

        @property
        def double(self):
            return 2 * self.x

    return Point


@pytest.mark.parametrize("slots", [False, True])
def test_as_the_standard_librarys(slots):
    one, other = (
        ours.dataclass(point(ours), slots=slots),
        dataclasses.dataclass(point(dataclasses), slots=slots),
    )
    for made in (one(1), one(x=1, name="a", _marks=[3])):
        twin = other(made.x, made.name, made._marks)
        assert repr(made) == repr(twin).replace("point.<locals>.", "") and dataclasses.asdict(
            made
        ) == dataclasses.asdict(twin)
        assert (
            made == copy.copy(made) == dataclasses.replace(made) != dataclasses.replace(made, x=9)
            and made != twin
        )
        assert (
            hasattr(made, "__dict__") == hasattr(twin, "__dict__") == (not slots)
            and made.double == 2
        )
    assert (
        one(1)._marks is not one(1)._marks
        and one.__doc__ == "A point."
        and one.__match_args__ == other.__match_args__
    )
    for asked in (dataclasses.fields, ours.fields):
        assert [(f.name, f.type, dict(f.metadata)) for f in asked(one)] == [
            (f.name, f.type, dict(f.metadata)) for f in dataclasses.fields(other)
        ]
    for wrong in ((), (1, None, [], 4)):
        with pytest.raises(TypeError):
            one(*wrong)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one(1))


def test_records_travel():
    from dwsr_probe import TaskRecord

    record = TaskRecord(seq=1, inputs=[{"nbytes": 3}])
    assert pickle.loads(pickle.dumps(record)) == record and dataclasses.is_dataclass(record)
    with pytest.raises(AttributeError):
        record.no_field = 1


def test_named_tuples_are_as_typings():
    class_of = {}
    for maker in (typing, ours):
        space = {"NamedTuple": maker.NamedTuple, "__name__": __name__}
        exec(
            "from __future__ import annotations\n"
            "class Pair(NamedTuple):\n"
            "    '''Two.'''\n"
            "    first: int\n"
            "    second: str | None = None\n"
            "    @property\n"
            "    def both(self): return (self.first, self.second)\n",
            space,
        )
        class_of[maker] = space["Pair"]
    one, other = class_of[ours], class_of[typing]
    assert one(1) == other(1) == (1, None) and repr(one(1, "a")) == repr(other(1, "a"))
    assert one(1, "a").both == one(second="a", first=1) and one.__doc__ == "Two."
    assert one._fields == other._fields and one._field_defaults == other._field_defaults
    assert one.__module__ == other.__module__ == __name__
    for wrong in ({}, {"first": 1, "third": 3}):
        with pytest.raises(TypeError):
            one(**wrong)
    for values, named in (((1, 2, 3), {}), ((1,), {"first": 1})):
        with pytest.raises(TypeError):
            one(*values, **named)
