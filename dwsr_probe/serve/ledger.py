"""The quality of past forecasts: error, coverage and reward by task name and kind, in bounded
space; and the largest inputs seen of each name. Fed by the service, read by its metrics and by
/models, saved with its state.

Names are bounded as in export/totals.py: the first 80, then `other`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dwsr_probe.export.totals import NAMES_MOST, OTHER, escape_unprintable
from dwsr_probe.predict.learner import FLOORS
from dwsr_probe.predict.sizes import BYTES_MOST, non_negative_int, parse_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dwsr_probe.predict import Model, Round

    Inputs = list[dict[str, Any]]

# Weight of the newest round in the relative error: older rounds are forgotten within about twenty.
ERROR_WEIGHT = 0.1
_LARGEST_MOST = 1_000  # names whose largest inputs are kept
_INPUTS_MOST = 256
# A task name has up to 10,000 characters. One that cannot be printed is shown as ten.
_NAME_CHARS_MOST = 100_000


@dataclass
class Account:
    """Of one task name and kind."""

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
        self.accounts: dict[str, dict[str, Account]] = {}  # by name as shown, and kind
        self._largest: dict[str, tuple[int, Inputs]] = {}  # input bytes and inputs, by task name
        self.learned = self.refused = self.lost = 0

    def add_rounds(self, rounds: Iterable[Round]) -> None:
        for round_ in rounds:
            self.accounts.setdefault(self.label(round_.task_name), {}).setdefault(
                round_.kind, Account()
            ).add(round_)

    def add_record(self, record: dict[str, Any]) -> None:
        """Count a record that was learned, and keep its inputs if they are the largest."""
        self.learned += 1
        name, size = record["task_name"], record.get("input_bytes")
        if size is None:  # unknown for some input: the others count
            size = sum(array.nbytes for array in parse_inputs(record["inputs"] or []))
        self.accounts.setdefault(self.label(name), {})
        if (
            name in self._largest or len(self._largest) < _LARGEST_MOST
        ) and size >= self._largest.get(name, (-1,))[0]:
            self._largest[name] = size, record["inputs"]

    def count_missed(self, lost: int, refused: int) -> None:
        """Count records that a target lost or that were refused. A target may claim any number:
        the sums are limited to what can be shown and saved."""
        self.lost, self.refused = (
            min(BYTES_MOST, self.lost + lost),
            min(BYTES_MOST, self.refused + refused),
        )

    def account(self, name: str, kind: str) -> Account | None:
        return self.accounts.get(escape_unprintable(name), {}).get(kind)

    def largest_inputs(self, name: str, model: Model, kind: str) -> Inputs:
        """The largest inputs seen of a task name; for a name whose inputs are not kept, the
        largest input bytes that the model has seen."""
        if name in self._largest:
            return self._largest[name][1]
        seen = model.seen(name, kind)
        return [{"nbytes": max(size for size, *_ in seen)}] if seen else []

    def label(self, name: str) -> str:
        """The label of a task name in metrics."""
        name = escape_unprintable(name)
        return (
            name
            if name in self.accounts or len(self.accounts) - (OTHER in self.accounts) < NAMES_MOST
            else OTHER
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "accounts": {
                name: {kind: asdict(account) for kind, account in kinds.items()}
                for name, kinds in self.accounts.items()
            },
            "largest": {name: list(found) for name, found in self._largest.items()},
            "learned": self.learned,
            "refused": self.refused,
            "lost": self.lost,
        }

    @classmethod
    def from_dict(cls, saved: Any) -> Ledger:
        """From to_dict. TypeError, KeyError, ValueError, OverflowError or AttributeError from
        anything else."""
        made = cls()
        made.accounts = {
            _checked_name(name): {
                _checked_kind(kind): _parse_account(account) for kind, account in kinds.items()
            }
            for name, kinds in saved["accounts"].items()
        }
        made._largest = {
            _checked_name(name): (
                non_negative_int(size, "input bytes", BYTES_MOST << 10),
                _checked_inputs(inputs),
            )
            for name, (size, inputs) in saved["largest"].items()
        }
        if len(made.accounts) > NAMES_MOST + 1 or len(made._largest) > _LARGEST_MOST:
            raise ValueError("damaged scores: names")
        made.learned, made.refused, made.lost = (
            non_negative_int(saved[count], count) for count in ("learned", "refused", "lost")
        )
        return made


def _checked_name(name: str) -> str:
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
