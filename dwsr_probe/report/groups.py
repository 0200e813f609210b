"""The rows of a run's views: which row a task belongs to, what rows are called, and which rows a
user asked for by name.

A row is a Group (predict/group.py): one operation, or task name, and one chain. Used by
report/summary.py, the page, and the `report` command.

Where records of a process are lost, its totals stand in for them. Totals do not know chains. So all
tasks of a name that such totals count are in one row without a chain, those of other processes as
well: a row for each chain, and one more for the unknown chains, would show every name twice.
"""

from __future__ import annotations

from dwsr_probe.predict.group import Group, chain_text, group_of, is_asked, labels
from dwsr_probe.words import line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from dwsr_probe.record import TaskRecord
    from dwsr_probe.store import Store
    from dwsr_probe.total import Total

    ProcessRow = tuple[TaskRecord, Mapping[str, Any]]  # of store.processes(): record and health
    Totals = Mapping[str, Sequence[Total]]  # by process

OTHER = "other"  # stands for all names beyond the most that a board can count apart
_CHAIN_CHARS_MOST = 400
_NAMED_MOST = 30  # rows in an error message
_CACHE_MOST = 100_000


class _Kind:
    """Tasks with the same task name, operation and chain. row: where views show them."""

    __slots__ = ("chain", "row")

    def __init__(self, row: Group, chain: object) -> None:
        self.row = row
        self.chain = chain  # kept, so that no other chain gets its id


class Grouping:
    """processes, totals: of the store. Totals are used for processes that have lost records."""

    def __init__(self, processes: Iterable[ProcessRow] = (), totals: Totals | None = None) -> None:
        # By process: the totals that stand in for its records
        self.counted: dict[str | None, Sequence[Total]] = {
            record.process: totals[record.process]
            for record, health in processes
            if totals
            and health.get("records_lost")
            and record.process is not None
            and record.process in totals
        }
        self._pairs = {
            process: {total.pair for total in found} for process, found in self.counted.items()
        }
        # Names whose chains are not known of all tasks
        self._without_chain = {
            total.operation or total.name for found in self.counted.values() for total in found
        }
        # By task name, operation and the id of the chain: most records share their parsed chain.
        self._kinds: dict[tuple[str, str | None, int], _Kind] = {}
        self._task_names: dict[Group, set[str]] = {}
        # Groups with their chains, of tasks that have a record
        self._members: dict[Group, set[Group]] = {}
        for found in self.counted.values():
            for total in found:
                if total.count:
                    self._add(self.of_total(total), total.name or OTHER)

    def of(self, record: TaskRecord) -> Group:
        """The row of a task."""
        if (
            self._pairs
            and record.process in self._pairs
            and record.state != "killed"
            and (record.task_name, record.operation) not in self._pairs[record.process]
        ):
            return self._add(Group(OTHER), record.task_name)
        chain = record.chain
        key = record.task_name, record.operation, id(chain)
        return (self._kinds.get(key) or self._add_kind(key, chain)).row

    def of_total(self, total: Total) -> Group:
        return Group(OTHER if total.name is None else total.operation or total.name)

    def _add_kind(self, key: tuple[str, str | None, int], chain: Sequence[str] | None) -> _Kind:
        task_name, operation, _ = key
        group = group_of(task_name, operation, chain)
        row = Group(group.name) if group.name in self._without_chain else group
        self._add(row, task_name)
        self._members[row].add(group)
        if len(self._kinds) >= _CACHE_MOST:
            self._kinds.clear()
        kind = self._kinds[key] = _Kind(row, chain)
        return kind

    def _add(self, row: Group, task_name: str) -> Group:
        self._task_names.setdefault(row, set()).add(task_name)
        self._members.setdefault(row, set())
        return row

    def labels(self) -> dict[Group, str]:
        """What each row is called, of all rows so far."""
        return labels(self._task_names)

    def task_names(self, row: Group) -> set[str]:
        """Dask's prefixes of the keys of its tasks."""
        return self._task_names.get(row, set())

    def learned_as(self, row: Group) -> Group:
        """The group that the model knows the tasks of a row by."""
        members = self._members.get(row, set())
        return next(iter(members)) if len(members) == 1 else row

    def asked(self, name: str) -> set[Group]:
        """The rows that a user means by a name: key prefix, operation, label, or any function of a
        chain. Raises NoSuchTask, if there are none."""
        found_labels = self.labels()
        found = {
            row
            for row, label in found_labels.items()
            if any(
                is_asked(name, group, label, self._task_names[row])
                for group in (row, *self._members[row])
            )
        }
        if not found:
            raise NoSuchTask(name, found_labels.values())
        return found


def asked_groups(grouping: Grouping, store: Store, name: str) -> set[Group]:
    """The rows of a run that a user means by a name; reads all tasks. Raises NoSuchTask."""
    for record in store.tasks():
        grouping.of(record)
    return grouping.asked(name)


def asked_tasks(store: Store, name: str) -> Iterator[TaskRecord]:
    """The tasks of a run that a user means by a name. Raises NoSuchTask before the first one."""
    grouping = Grouping(store.processes(), store.totals())
    asked = asked_groups(grouping, store, name)
    return (record for record in store.tasks() if grouping.of(record) in asked)


class NoSuchTask(Exception):
    """A user asked for a name that no task has; the text says which names there are."""

    def __init__(self, name: str, there_are: Iterable[str]) -> None:
        known = sorted(there_are)
        some = ", ".join(line_of(one, 80) for one in known[:_NAMED_MOST])
        more = f" and {len(known) - _NAMED_MOST:,} more" if len(known) > _NAMED_MOST else ""
        super().__init__(
            f"no task is called {name!r}; "
            + (
                f"there are {some}{more}; key prefixes and functions of a chain are names, too"
                if known
                else "the run has no tasks"
            )
        )


def chain_lines(rows: Iterable[tuple[Group, str]]) -> Iterator[str]:
    """ "smooth (1 of 2): getitem → smooth → store": a line for each row whose label is numbered.
    rows: groups with their labels."""
    for group, label in rows:
        if label != group.name:
            yield f"{line_of(label)}: {row_chain_text(group)}"


def row_chain_text(group: Group) -> str:
    """The chain of a row on one line; for a task with one function, that function alone."""
    return line_of(chain_text(group.chain) or f"{group.name} alone", _CHAIN_CHARS_MOST)
