"""The quality of past forecasts: error, coverage and reward by kind, in bounded space; and the
largest inputs seen of each group. Fed by the service, read by its metrics and by /models, saved
with its state.

Accounts are kept twice: by group for /models, and by the pair of task name and operation for
metrics, where chains would be too many series. Pairs are bounded as names in export/totals.py: the
first 80, then `other`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.export.totals import NAMES_MOST, OTHER, escape_unprintable
from dwsr_probe.predict.group import group_of
from dwsr_probe.predict.history import LargestTask, known_input_bytes
from dwsr_probe.predict.learner import FLOORS
from dwsr_probe.predict.params import parse_params
from dwsr_probe.predict.sizes import BYTES_MOST, non_negative_int, parse_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dwsr_probe.predict import Model, Round

    Inputs = list[dict[str, Any]]

# Weight of the newest round in the relative error: older rounds are forgotten within about twenty.
ERROR_WEIGHT = 0.1
_GROUPS_MOST = 1_000  # whose accounts and largest inputs are kept
_INPUTS_MOST = 256
# A task name has up to 10,000 characters. One that cannot be printed is shown as ten.
_NAME_CHARS_MOST = 100_000


class Pair(NamedTuple):
    """Labels of metrics. operation: that of the record, or the task name where there is none."""

    task_name: str
    operation: str


OTHERS = Pair(OTHER, OTHER)


@dataclass
class Account:
    """Of one kind of a group or pair."""

    scored: int = 0  # rounds, including those of tasks that were killed above the bound
    exceeded: int = 0  # of them: the value lay above the 99 % bound
    error: float | None = None  # relative error of the mean, exponentially weighted
    reward: float = 0.0  # sum

    def add(self, round_: Round) -> None:
        self.reward += round_.reward
        exceeded = round_.actual > round_.bound
        if not round_.censored:
            error = abs(round_.predicted - round_.actual) / max(round_.actual, FLOORS[round_.kind])
            self.error = (
                error if self.error is None else self.error + ERROR_WEIGHT * (error - self.error)
            )
        elif not exceeded:
            return  # a killed task below the forecast's bound neither confirms nor refutes it
        self.scored += 1
        self.exceeded += exceeded


class Ledger:
    """learned, refused, lost: counts of records."""

    def __init__(self) -> None:
        self.accounts: dict[Pair, dict[str, Account]] = {}  # by pair as shown, and kind
        # The following two by the text of a group. With its input bytes:
        self._largest: dict[str, tuple[int, LargestTask]] = {}
        self._group_accounts: dict[str, dict[str, Account]] = {}  # by kind
        self.learned = self.refused = self.lost = 0

    def add_rounds(self, rounds: Iterable[Round]) -> None:
        for round_ in rounds:
            pair = self.pair(round_.task_name, round_.operation)
            self.accounts.setdefault(pair, {}).setdefault(round_.kind, Account()).add(round_)
            text, groups = round_.group.text, self._group_accounts
            if text in groups or len(groups) < _GROUPS_MOST:
                groups.setdefault(text, {}).setdefault(round_.kind, Account()).add(round_)

    def add_record(self, record: dict[str, Any]) -> None:
        """Count a record that was learned, and keep what is asked of it if its inputs are the
        largest."""
        self.learned += 1
        name, operation = record["task_name"], record.get("operation")
        self.accounts.setdefault(self.pair(name, operation), {})
        text, size = group_of(name, operation, record.get("chain")).text, known_input_bytes(record)
        if (text in self._largest or len(self._largest) < _GROUPS_MOST) and (
            size or 0
        ) >= self._largest.get(text, (-1,))[0]:
            self._largest[text] = size or 0, LargestTask(record["inputs"], record.get("params"))

    def count_missed(self, lost: int, refused: int) -> None:
        """Count records that a target lost or that were refused. A target may claim any number:
        the sums are limited to what can be shown and saved."""
        self.lost, self.refused = (
            min(BYTES_MOST, self.lost + lost),
            min(BYTES_MOST, self.refused + refused),
        )

    def account(self, text: str, kind: str) -> Account | None:
        """text: of a group."""
        return self._group_accounts.get(text, {}).get(kind)

    def largest(self, text: str, model: Model, kind: str) -> LargestTask:
        """The largest inputs seen of a group, by its text; for a group whose inputs are not kept,
        the largest input bytes that the model has seen."""
        if text in self._largest:
            return self._largest[text][1]
        seen = model.seen(text, kind)
        return LargestTask([{"nbytes": max(size for size, *_ in seen)}] if seen else [])

    def pair(self, task_name: str, operation: str | None) -> Pair:
        """The labels of a record in metrics."""
        found = shown_pair(task_name, operation)
        has_room = len(self.accounts) - (OTHERS in self.accounts) < NAMES_MOST
        return found if found in self.accounts or has_room else OTHERS

    def to_dict(self) -> dict[str, Any]:
        return {
            "accounts": [
                [*pair, _saved_accounts(accounts)] for pair, accounts in self.accounts.items()
            ],
            "groups": {
                text: _saved_accounts(accounts) for text, accounts in self._group_accounts.items()
            },
            "largest": {text: [size, *task] for text, (size, task) in self._largest.items()},
            "learned": self.learned,
            "refused": self.refused,
            "lost": self.lost,
        }

    @classmethod
    def from_dict(cls, saved: Any) -> Ledger:
        """From to_dict, or from that of an earlier version, which had accounts by task name alone.
        TypeError, KeyError, ValueError, OverflowError or AttributeError from anything else."""
        made = cls()
        accounts = saved["accounts"]
        if isinstance(accounts, dict):
            groups = {name: kinds for name, kinds in accounts.items() if name != OTHER}
            accounts = [(name, name, kinds) for name, kinds in accounts.items()]
        else:
            groups = saved["groups"]
        made.accounts = {
            Pair(_checked_name(name), _checked_name(operation)): _parse_accounts(kinds)
            for name, operation, kinds in accounts
        }
        made._group_accounts = {
            _checked_name(text): _parse_accounts(kinds) for text, kinds in groups.items()
        }
        made._largest = {
            _checked_name(text): (
                non_negative_int(size, "input bytes", BYTES_MOST << 10),
                LargestTask(_checked_inputs(inputs), dict(parse_params(*params)) or None),
            )
            for text, (size, inputs, *params) in saved["largest"].items()
        }
        if (
            len(made.accounts) > NAMES_MOST + 1
            or len(made._group_accounts) > _GROUPS_MOST
            or len(made._largest) > _GROUPS_MOST
        ):
            raise ValueError("damaged scores: names")
        made.learned, made.refused, made.lost = (
            non_negative_int(saved[count], count) for count in ("learned", "refused", "lost")
        )
        return made


def shown_pair(task_name: str, operation: str | None) -> Pair:
    """The labels of a record in metrics, were there room for all."""
    name = escape_unprintable(task_name)
    return Pair(name, escape_unprintable(operation) if operation else name)


def _saved_accounts(accounts: dict[str, Account]) -> dict[str, Any]:
    return {kind: asdict(account) for kind, account in accounts.items()}


def _parse_accounts(saved: dict[str, Any]) -> dict[str, Account]:
    return {_checked_kind(kind): _parse_account(account) for kind, account in saved.items()}


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise ValueError("damaged scores: a name")
    if len(name) > _NAME_CHARS_MOST:
        raise ValueError("damaged scores: a name that is too long")
    return name


def _checked_kind(kind: str) -> str:
    if kind not in FLOORS:
        raise ValueError("damaged scores: a kind")
    return kind


def _parse_account(saved: dict[str, Any]) -> Account:
    account = Account(**saved)
    if non_negative_int(account.exceeded, "exceeded") > non_negative_int(
        account.scored, "scored"
    ) or not all(map(math.isfinite, (account.reward, account.error or 0.0))):
        raise ValueError("damaged scores: not a number")
    return account


def _checked_inputs(inputs: Inputs) -> Inputs:
    parse_inputs(inputs)
    if len(inputs) > _INPUTS_MOST:
        raise ValueError("damaged scores: inputs")
    return inputs
