"""Groups: tasks that people see as one row, and that the model learns as one.

A group has one name and one chain. The name is the record's operation, the job's own function, or
the task name where there is none. Where several chains share a name, a label tells them apart.
Used by the model, and by every view of a run (report/, serve/).
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ARROW = " → "


class Group(namedtuple("Group", ("name", "chain"), defaults=((),))):
    """chain: names of the functions inside the task; (): there is only one, or it is unknown."""

    __slots__ = ()
    if TYPE_CHECKING:
        name: str
        chain: tuple[str, ...]

    @property
    def text(self) -> str:
        """The group in one text, the same in every run: "smooth [getitem → smooth → store]"."""
        return f"{self.name} [{chain_text(self.chain)}]" if self.chain else self.name


def chain_text(chain: Sequence[str]) -> str:
    return _ARROW.join(chain)


def group_of(task_name: str, operation: str | None, chain: Sequence[str] | None) -> Group:
    """Of a record's three fields."""
    return Group(operation or task_name, tuple(chain or ()))


def labels(groups: Iterable[Group]) -> dict[Group, str]:
    """What each group is called beside the others: "smooth", or "smooth (1 of 2)" where several
    chains share the name. Shorter chains come first."""
    by_name: dict[str, list[Group]] = {}
    for group in sorted(set(groups), key=lambda one: (one.name, len(one.chain), one.chain)):
        by_name.setdefault(group.name, []).append(group)
    return {
        group: name if len(found) == 1 else f"{name} ({number} of {len(found)})"
        for name, found in by_name.items()
        for number, group in enumerate(found, 1)
    }


def is_asked(asked: str, group: Group, label: str, task_names: Iterable[str]) -> bool:
    """Whether a user who wrote `asked` means this group: by its name, its label, its text, a
    function of its chain, or the name of one of its tasks (Dask's prefix of the key)."""
    return asked in (group.name, label, group.text) or asked in group.chain or asked in task_names
