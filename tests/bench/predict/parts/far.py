"""Two runs of about 1 MB seen, inputs 30 and 300 times larger forecast."""

from tests.bench import Section
from tests.bench.predict import protocol, records
from tests.bench.predict.rates import percent, rate

ERRORS = dict(zip(records.FAR_TIMES, (0.06, 0.15), strict=True))


def run(data):
    section = Section(
        "Two runs of about 1 MB seen, inputs 30 and 300 times larger forecast",
        "median error ≤ 6 % (30 times) and ≤ 15 % (300 times), truth above the 99 % bound ≤ 2 %",
        (
            "group",
            "inputs larger",
            "method",
            "operators",
            "median error",
            "truth above the bound",
            "bound / truth, median",
            "95 %",
        ),
    )
    found = records.chosen(data.measured, records.FAR, data.own)
    train = [r for rows in found.values() for r in rows if r["key"].startswith("far 1.")]
    missed = []
    for times, error in ERRORS.items():
        test = [r for rows in found.values() for r in rows if r["key"].startswith(f"far {times}.")]
        for method, make in data.methods.items():
            scores = protocol.train_and_test(train, test, make)
            for group, names in data.groups.items():
                chosen = [s for s in scores if s.name in names]
                if not chosen:
                    continue
                f = protocol.figures(chosen)
                section.rows.append(
                    (
                        group,
                        times,
                        method,
                        len({s.name for s in chosen}),
                        percent(f["error"]),
                        rate(f["failed"], f["count"]),
                        f"{f['slack']:.2f}",
                        f"{f['slack_95']:.2f}",
                    )
                )
            if method == "ours":
                missed += worst(scores, times, error, data.may_be_named)
    section.notes += [
        "The two runs differ in size by a quarter. Left out: operators whose peak would be above"
        f" {records.FAR_PEAK_MOST / 1e9} GB, or that would take long.",
        f"Ours, largest errors: {', '.join(missed)}.",
    ]
    return [section]


def worst(scores, times, error, may_be_named, count=8):
    errors = {
        name: protocol.figures(found)["error"]
        for name, found in protocol.by_name(scores).items()
        if may_be_named(name)
    }
    ranked = sorted(errors, key=errors.get, reverse=True)
    return [
        f"`{name}` ×{times} {percent(errors[name], 0)}"
        for name in ranked[:count]
        if errors[name] > error
    ]
