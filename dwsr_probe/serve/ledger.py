"""What forecasts were worth: error, coverage and reward by task name and kind, in bounded space;
and the largest inputs seen of each name. Fed by the service, read by its metrics.

Names are kept as in export/totals.py: the first 80, then `other`.
"""

import math
from dataclasses import asdict, dataclass

from dwsr_probe.export.totals import NAMES_MOST, OTHER, visible
from dwsr_probe.predict.learner import FLOORS
from dwsr_probe.predict.sizes import BYTES_MOST, non_negative_int, parse_inputs

# of the newest round in the relative error: it forgets within some twenty rounds
ERROR_WEIGHT = 0.1
_LARGEST_MOST, _INPUTS_MOST = 1_000, 256
_NAME_MOST = 100_000  # of a model's name ten characters for each that cannot be printed


@dataclass
class Account:
    scored: int = 0  # with those that were killed above their bound
    exceeded: int = 0  # the truth lay above the 99 % bound
    error: float | None = None  # relative, of the mean; weighted towards the newest
    reward: float = 0.0

    def add(self, round_):
        self.reward += round_.reward
        exceeded = round_.actual > round_.bound
        if not round_.censored:
            error = abs(round_.predicted - round_.actual) / max(round_.actual, FLOORS[round_.kind])
            self.error = (
                error if self.error is None else self.error + ERROR_WEIGHT * (error - self.error)
            )
        elif not exceeded:
            return  # a lower bound below the bound says nothing
        self.scored += 1
        self.exceeded += exceeded


class Ledger:
    def __init__(self):
        self.accounts = {}  # name → {kind: Account}
        self._largest = {}  # name → (input bytes, inputs)
        self.learned = self.refused = self.lost = 0

    def add(self, rounds):
        for round_ in rounds:
            self.accounts.setdefault(self.label(round_.task_name), {}).setdefault(
                round_.kind, Account()
            ).add(round_)

    def note(self, record):
        """A record that was learned."""
        self.learned += 1
        name, size = record["task_name"], record.get("input_bytes")
        if size is None:  # of some input it is not known: the others count
            size = sum(array.nbytes for array in parse_inputs(record["inputs"] or []))
        self.accounts.setdefault(self.label(name), {})
        if (
            name in self._largest or len(self._largest) < _LARGEST_MOST
        ) and size >= self._largest.get(name, (-1,))[0]:
            self._largest[name] = size, record["inputs"]

    def miss(self, lost, refused):
        """Of a look. A target may claim any number: the sum stays one that can be shown and read
        again."""
        self.lost, self.refused = (
            min(BYTES_MOST, self.lost + lost),
            min(BYTES_MOST, self.refused + refused),
        )

    def account(self, name, kind):
        return self.accounts.get(visible(name), {}).get(kind)

    def inputs_of(self, name, model, kind):
        """The largest inputs seen of a task name, as far as they are known."""
        if name in self._largest:
            return self._largest[name][1]
        seen = model.seen(name, kind)
        return [{"nbytes": max(size for size, *_ in seen)}] if seen else []

    def label(self, name):
        """What a name is called in metrics."""
        name = visible(name)
        return (
            name
            if name in self.accounts or len(self.accounts) - (OTHER in self.accounts) < NAMES_MOST
            else OTHER
        )

    def to_dict(self):
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
    def from_dict(cls, found):
        """Of its own to_dict; TypeError, KeyError, ValueError, OverflowError or AttributeError
        of anything else."""
        made = cls()
        made.accounts = {
            _name(name): {_kind(kind): _account(account) for kind, account in kinds.items()}
            for name, kinds in found["accounts"].items()
        }
        made._largest = {
            _name(name): (non_negative_int(size, "input bytes", BYTES_MOST << 10), _inputs(inputs))
            for name, (size, inputs) in found["largest"].items()
        }
        if len(made.accounts) > NAMES_MOST + 1 or len(made._largest) > _LARGEST_MOST:
            raise ValueError("damaged scores: names")
        made.learned, made.refused, made.lost = (
            non_negative_int(found[count], count) for count in ("learned", "refused", "lost")
        )
        return made


def _name(name):
    if len(name) > _NAME_MOST:
        raise ValueError("damaged scores: a name that is too long")
    return name


def _kind(kind):
    if kind not in FLOORS:
        raise ValueError("damaged scores: a kind")
    return kind


def _account(found):
    account = Account(**found)
    if non_negative_int(account.exceeded, "exceeded") > non_negative_int(
        account.scored, "scored"
    ) or not all(map(math.isfinite, (account.reward, account.error or 0.0))):
        raise ValueError("damaged scores: not a number")
    return account


def _inputs(inputs):
    parse_inputs(inputs)
    if len(inputs) > _INPUTS_MOST:
        raise ValueError("damaged scores: inputs")
    return inputs
