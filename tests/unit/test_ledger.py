"""Error, coverage and reward by name, bounded; and back from the disk."""

import json

import pytest

from dwsr_probe.export.totals import NAMES_MOST, OTHER
from dwsr_probe.predict import Model, Round
from dwsr_probe.serve.ledger import Account, Ledger
from tests.unit.workers import MIB, record


def made(
    predicted=110 * MIB,
    bound=120 * MIB,
    actual=100 * MIB,
    name="smooth",
    kind="alloc",
    censored=False,
    **names,
):
    return Round(name, kind, predicted, bound, actual, -1.5, 5, censored, **names)


def test_an_account():
    account = Account()
    account.add(made())
    assert (account.scored, account.exceeded, account.reward) == (
        1,
        0,
        -1.5,
    ) and account.error == pytest.approx(0.1)
    account.add(made(actual=130 * MIB))
    assert (account.scored, account.exceeded, account.reward) == (
        2,
        1,
        -3.0,
    ) and 0.1 < account.error < 0.11
    account.add(made(predicted=MIB, actual=0))  # below what means anything: no division by nothing
    assert account.error < 1


def test_lower_bounds_count_where_they_tell():
    account = Account()
    account.add(made(actual=50 * MIB, censored=True))  # killed below the bound: who knows
    assert (account.scored, account.exceeded, account.error, account.reward) == (0, 0, None, -1.5)
    account.add(made(actual=500 * MIB, censored=True))
    assert (account.scored, account.exceeded, account.error) == (1, 1, None)


def test_names_are_bounded():
    ledger = Ledger()
    for n in range(5_000):
        ledger.add_record(record(n, name=f"name {n}"))
        ledger.add_rounds([made(name=f"name {n}")])
    assert (
        len(ledger.accounts) == NAMES_MOST + 1
        and ledger.accounts[OTHER, OTHER]["alloc"].scored == 5_000 - NAMES_MOST
        and ledger.learned == 5_000
    )
    assert len(json.dumps(ledger.to_dict())) < 500_000


def test_pairs_of_name_and_operation_are_bounded():
    """Chains are no labels: accounts of a pair add up, accounts of groups do not."""
    ledger = Ledger()
    for n in range(200):
        names = {"operation": f"operator {n}", "chain": ("load", f"operator {n}")}
        ledger.add_record(record(n, name="store-map", **names))
        ledger.add_rounds([made(name="store-map", **names)])
    assert (
        len(ledger.accounts) == NAMES_MOST + 1
        and ledger.accounts["store-map", "operator 3"]["alloc"].scored == 1
        and ledger.accounts[OTHER, OTHER]["alloc"].scored == 200 - NAMES_MOST
    )
    for chain in (("a", "operator 3"), ("b", "operator 3")):
        ledger.add_rounds([made(name="store-map", operation="operator 3", chain=chain)])
    assert ledger.accounts["store-map", "operator 3"]["alloc"].scored == 3
    assert ledger.account("operator 3 [a → operator 3]", "alloc").scored == 1
    assert ledger.account("operator 3", "alloc") is None
    assert ledger.pair("plain", None) == (OTHER, OTHER)
    assert Ledger().pair("plain", None) == ("plain", "plain")


def test_the_largest_inputs_of_a_name():
    ledger, model = Ledger(), Model()
    for n, size in enumerate((2, 5, 3)):
        ledger.add_record(record(n + 1, size=size * MIB))
        model.learn(record(n + 1, size=size * MIB))
    assert ledger.largest("smooth", model, "alloc").inputs == record(1, size=5 * MIB)["inputs"]
    assert Ledger().largest("smooth", model, "alloc").inputs == [
        {"nbytes": 5 * MIB}
    ]  # of a model alone
    assert ledger.largest("unknown", model, "alloc").inputs == []


def test_there_and_back():
    ledger = Ledger()
    ledger.add_record(record(1))
    ledger.add_rounds([made(), made(kind="output")])
    ledger.refused, ledger.lost = 3, 4
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert (
        again.to_dict() == ledger.to_dict()
        and again.account("smooth", "output").scored == 1
        and again.account("smooth", "gpu") is None
    )
