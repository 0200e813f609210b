"""`dataclass`, `field` and `fields` of the standard library, as far as the modules need them
that every run loads.

Importing dataclasses (which imports inspect) and making a class with it take a third of the CPU
time that a run may cost. dataclasses' own functions (fields, replace, asdict) accept the classes
that are made here.
"""

MISSING = object()


class Field:
    __slots__ = ("default", "default_factory", "metadata", "name", "type")

    def __init__(self, default, default_factory, metadata):
        self.default, self.default_factory, self.metadata = default, default_factory, metadata


def field(*, default=MISSING, default_factory=MISSING, metadata=None):
    return Field(default, default_factory, metadata or {})


def fields(cls):
    return tuple(cls.__dict__["__fields__"])


class _ForDataclasses:
    """What dataclasses' functions ask a class for, made by dataclasses when they do."""

    def __get__(self, _, cls):
        import dataclasses

        def copy(one):
            given = {
                name: getattr(one, name)
                for name in ("default", "default_factory")
                if getattr(one, name) is not MISSING
            }
            return one.name, one.type, dataclasses.field(metadata=one.metadata, **given)

        return dataclasses.make_dataclass(cls.__name__, map(copy, fields(cls))).__dataclass_fields__


def dataclass(cls=None, *, slots=False):
    """With __init__, __repr__ and __eq__ over the annotated names of the class, not over those
    of its bases."""
    if cls is None:
        return lambda cls: dataclass(cls, slots=slots)
    members, found = dict(vars(cls)), []
    for name, kind in cls.__annotations__.items():
        given = members.pop(name, MISSING)
        one = given if isinstance(given, Field) else field(default=given)
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
        __dataclass_fields__=_ForDataclasses(),
    )
    if slots:
        members["__slots__"] = names
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    return type(cls)(cls.__name__, cls.__bases__, members)


def _methods(title, found):
    """__init__ is written out for these fields: there are a million records to make."""
    parameters, body, known = [], [], {"MISSING": MISSING}
    for one in found:
        known[f"_default_of_{one.name}"] = (
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
    exec(f"def __init__(self, {', '.join(parameters)}):\n    {'; '.join(body)}", known)
    names = tuple(one.name for one in found)

    def __eq__(self, other):
        return (
            all(getattr(self, name) == getattr(other, name) for name in names)
            if other.__class__ is self.__class__
            else NotImplemented
        )

    def __repr__(self):
        return f"{title}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return {"__init__": known["__init__"], "__eq__": __eq__, "__repr__": __repr__}
