"""Light stand-ins for `dataclasses` (dataclass, field, fields) and for `typing.NamedTuple`.

Used by the modules that every run loads. Importing `dataclasses` (which imports `inspect`) and
making a class with it take a third of the CPU time that a run may cost. The functions of
`dataclasses` (fields, replace, asdict) accept the classes that are made here. A type checker sees
the standard library's own names.
"""

from __future__ import annotations

from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MISSING: Any = object()


class Field:
    __slots__ = ("default", "default_factory", "metadata", "name", "type")
    name: str
    type: Any

    def __init__(self, default: Any, default_factory: Any, metadata: dict[str, Any]) -> None:
        self.default, self.default_factory, self.metadata = default, default_factory, metadata


class _FieldsForDataclasses:
    """`__dataclass_fields__`, which the functions of `dataclasses` read. Computed when they do."""

    def __get__(self, _: object, cls: type) -> dict[str, Any]:
        import dataclasses

        def copy(one: Field) -> tuple[str, Any, Any]:
            given = {
                name: getattr(one, name)
                for name in ("default", "default_factory")
                if getattr(one, name) is not MISSING
            }
            return one.name, one.type, dataclasses.field(metadata=one.metadata, **given)

        fields_of_cls: list[Field] = cls.__dict__["__fields__"]
        made: Any = dataclasses.make_dataclass(cls.__name__, map(copy, fields_of_cls))
        return made.__dataclass_fields__


def _dataclass(cls: Any = None, *, slots: bool = False) -> Any:
    """Add __init__, __repr__ and __eq__ over the annotated names of the class.

    Annotated names of its bases are not included.
    """
    if cls is None:
        return lambda cls: _dataclass(cls, slots=slots)
    members, found = dict(vars(cls)), []
    for name, kind in cls.__annotations__.items():
        given = members.pop(name, MISSING)
        one = given if isinstance(given, Field) else Field(given, MISSING, {})
        one.name, one.type = name, kind
        if one.default is not MISSING and not slots:
            members[name] = one.default
        found.append(one)
    names = tuple(one.name for one in found)
    members.update(
        _methods(cls.__name__, found),
        __fields__=found,
        __match_args__=names,
        __hash__=None,
        __dataclass_fields__=_FieldsForDataclasses(),
    )
    if slots:
        members["__slots__"] = names
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    return type(cls)(cls.__name__, cls.__bases__, members)


def _methods(class_name: str, found: list[Field]) -> dict[str, Callable[..., Any]]:
    """__init__ is generated as source text: a loop over the fields is too slow for a million
    records."""
    parameters, body, namespace = [], [], {"MISSING": MISSING}
    for one in found:
        namespace[f"_default_of_{one.name}"] = (
            one.default if one.default_factory is MISSING else one.default_factory
        )
        if one.default_factory is not MISSING:
            parameters.append(f"{one.name}=MISSING")
            body.append(
                f"self.{one.name} = _default_of_{one.name}() if {one.name} is MISSING else"
                f" {one.name}"
            )
        else:
            parameters.append(
                one.name if one.default is MISSING else f"{one.name}=_default_of_{one.name}"
            )
            body.append(f"self.{one.name} = {one.name}")
    exec(f"def __init__(self, {', '.join(parameters)}):\n    {'; '.join(body)}", namespace)
    names = tuple(one.name for one in found)

    def __eq__(self: object, other: object) -> bool:
        return (
            all(getattr(self, name) == getattr(other, name) for name in names)
            if other.__class__ is self.__class__
            else NotImplemented
        )

    def __repr__(self: object) -> str:
        return f"{class_name}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return {"__init__": namespace["__init__"], "__eq__": __eq__, "__repr__": __repr__}


class _NamedTupleMaker(type):
    """Makes a tuple class of a class with annotated names. Its module needs
    `from __future__ import annotations`: newer Pythons keep other annotations elsewhere.

    `collections.namedtuple` compiles a function for each class, which takes 0.1 ms.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(mcs, name, bases, members)
        names = tuple(members["__annotations__"])
        defaults = {one: members.pop(one) for one in names if one in members}

        def __new__(cls: type, *values: Any, **named: Any) -> Any:
            if named or len(values) != len(names):
                values = _completed(name, names, values, named, defaults)
            return tuple.__new__(cls, values)

        def __repr__(self: tuple[Any, ...]) -> str:
            return f"{name}({', '.join(f'{n}={v!r}' for n, v in zip(names, self, strict=True))})"

        members.update({one: property(itemgetter(i)) for i, one in enumerate(names)})
        members.update(__new__=__new__, __repr__=__repr__, __slots__=())
        members.update(_fields=names, _field_defaults=defaults, __match_args__=names)
        return type(name, (tuple,), members)


def _completed(
    class_name: str,
    names: tuple[str, ...],
    values: tuple[Any, ...],
    named: dict[str, Any],
    defaults: dict[str, Any],
) -> tuple[Any, ...]:
    """The values of all names, from positional and named arguments and defaults."""
    given = dict(zip(names, values, strict=False))
    if len(values) > len(names) or given.keys() & named.keys() or named.keys() - set(names):
        raise TypeError(f"{class_name}() takes {', '.join(names)}, each once")
    given = {**defaults, **given, **named}
    if missing := [one for one in names if one not in given]:
        raise TypeError(f"{class_name}() misses {', '.join(missing)}")
    return tuple(given[one] for one in names)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from typing import NamedTuple as NamedTuple
else:
    dataclass = _dataclass

    def field(*, default=MISSING, default_factory=MISSING, metadata=None):
        return Field(default, default_factory, metadata or {})

    def fields(cls):
        return tuple(cls.__dict__["__fields__"])

    class NamedTuple(metaclass=_NamedTupleMaker):
        pass
