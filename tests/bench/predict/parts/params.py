"""Tasks whose memory depends on a parameter: three values seen, a fourth forecast. A model that
does not know of parameters answers as well as it can."""

from typing import NamedTuple

from tests.bench import Section
from tests.bench.predict import protocol, records
from tests.bench.predict.rates import percent, rate


class Split(NamedTuple):
    """Records to learn, and records to forecast."""

    what: str  # was seen
    train: list
    test: list


def value_and_shape(record):
    value, shape = records.VALUE.fullmatch(record["key"]).groups()
    return float(value), int(shape)


def splits(found):
    """A Split by what was seen. Tested is the largest value, at all shapes that were measured
    with it."""
    shapes = {
        "three values at one shape": records.VALUE_SHAPES[:1],
        "three values at three shapes": records.VALUE_SHAPES,
    }
    for what, seen in shapes.items():
        train, test = [], []
        for rows in found.values():
            largest = max(value_and_shape(record)[0] for record in rows)
            for record in rows:
                value, shape = value_and_shape(record)
                if value == largest:
                    test.append(record)
                elif shape in seen:
                    train.append(record)
        yield Split(what, train, test)


def run(data):
    section = Section(
        "A parameter: three values seen, a fourth forecast",
        "median error ≤ 5 %, truth above the 99 % bound ≤ 2 %",
        (
            "operators",
            "seen",
            "method",
            "median error",
            "truth above the bound",
            "bound / truth, median",
            "95 %",
        ),
    )
    kinds = (("windows", data.groups), ("simulations", data.simulation_groups))
    single = []
    for kind, groups in kinds:
        for group, names in groups.items():
            found = records.chosen(data.measured, records.VALUE, names)
            for what, train, test in splits(found) if found else ():
                if kind == "simulations" and what != "three values at one shape":
                    continue
                for method, make in data.methods.items():
                    scores = protocol.train_and_test(train, test, make)
                    section.rows.append(row_of(f"{kind}, {group}", what, method, scores))
                    if method == "ours":
                        single += [
                            f"`{name}` {percent(protocol.figures(rows)['error'], 0)}"
                            for name, rows in protocol.by_name(scores).items()
                            if data.may_be_named(name)
                        ]
    section.notes.append(
        "Windows: sizes 3, 5 and 7 seen and 9 forecast, or like it. Simulations have no input."
        f" Ours, by operator and what was seen: {', '.join(single)}."
    )
    return [section]


def row_of(operators, what, method, scores):
    f = protocol.figures(scores)
    return (
        operators,
        what if not operators.startswith("simulations") else "three values",
        method,
        percent(f["error"]),
        rate(f["failed"], f["count"]),
        f"{f['slack']:.2f}",
        f"{f['slack_95']:.2f}",
    )
