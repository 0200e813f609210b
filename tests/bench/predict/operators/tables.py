"""Operators of pandas. Texts are Python's objects: with texts in Arrow own peaks would not be
exact."""

import numpy as np
import pandas as pd

from tests.bench.predict.operators.operator import ROWS, one, row_ladder, table

# About 1 MB and more: of a column of texts the probe sees eight bytes per row
TEXT_ROWS = row_ladder(130_000, 1_600_000, lambda i: 1)
WIDE_ROWS = row_ladder(30_000, 600_000, lambda i: 3 + i * 5 % 4)


def two_tables(shape, chance):
    left = table(shape, chance)[0]
    return [
        left,
        pd.DataFrame(
            {
                "key": np.arange(left["key"].max() + 1),
                "weight": chance.random(left["key"].max() + 1),
            }
        ),
    ]


def words(shape, chance):
    """A column of texts, each about forty times."""
    vocabulary = np.array(
        [f"{w:x}_{w * w % 8191}_word" for w in range(max(2, shape[0] // 40))], dtype=object
    )
    return [pd.Series(vocabulary[chance.integers(0, len(vocabulary), shape[0])], dtype=object)]


def named_table(shape, chance):
    """Numbers, and a column of a thousand names."""
    frame = pd.DataFrame(chance.random(shape), columns=[f"c{i}" for i in range(shape[1])])
    names = np.array([f"name {n}" for n in range(1000)], dtype=object)
    frame["name"] = pd.Series(names[chance.integers(0, 1000, shape[0])], dtype=object)
    return [frame]


def gaps(shape, chance):
    """A tenth of the numbers is missing."""
    values = chance.random(shape)
    values[values < 0.1] = np.nan
    return [pd.DataFrame(values, columns=[f"c{i}" for i in range(shape[1])])]


def crossed(shape, chance):
    """Two keys of 500 and 40 values, and numbers."""
    frame = pd.DataFrame(chance.random(shape), columns=[f"c{i}" for i in range(shape[1])])
    frame["row"] = chance.integers(0, 500, shape[0])
    frame["column"] = chance.integers(0, 40, shape[0])
    return [frame]


def bins(t):
    return pd.cut(t["c0"], np.linspace(0, 1, 21))


OPERATORS = [
    one("groupby_mean", lambda t: t.groupby("key").mean(), shapes=ROWS, make=table, grows=(0,)),
    one(
        "merge",
        lambda t, weights: t.merge(weights, on="key"),
        shapes=ROWS,
        make=two_tables,
        grows=(0,),
    ),
    one("sort_values", lambda t: t.sort_values("c0"), shapes=ROWS, make=table, grows=(0,)),
    one("rolling_mean", lambda t: t.rolling(50).mean(), shapes=ROWS, make=table, grows=(0,)),
    one("describe", lambda t: t.describe(), shapes=ROWS, make=table, grows=(0,)),
]
NEW = [
    *(
        one(name, function, shapes=TEXT_ROWS, make=words, grows=(0,))
        for name, function in {
            "text_upper": lambda s: s.str.upper(),
            "text_length": lambda s: s.str.len(),
            "text_contains": lambda s: s.str.contains("1_", regex=False),
            "text_split": lambda s: s.str.split("_", n=1, expand=True),
            "text_join": lambda s: s + "/" + s,
            "text_categories": lambda s: s.astype("category"),
            "value_counts": lambda s: s.value_counts(),
            "drop_duplicates": lambda s: s.drop_duplicates(),
            "text_sort": lambda s: s.sort_values(),
        }.items()
    ),
    *(
        one(name, function, shapes=WIDE_ROWS, make=make, grows=(0,))
        for name, make, function in [
            ("group_by_name", named_table, lambda t: t.groupby("name").sum()),
            ("dummies", named_table, lambda t: pd.get_dummies(t["name"].str[:6])),
            ("pivot_table", crossed, lambda t: t.pivot_table("c0", "row", "column")),
            ("melt", crossed, lambda t: t.melt(["row", "column"])),
            ("multi_index_sort", crossed, lambda t: t.set_index(["row", "column"]).sort_index()),
            ("interpolate", gaps, lambda t: t.interpolate()),
            ("drop_missing", gaps, lambda t: t.dropna()),
            ("rank", gaps, lambda t: t.rank()),
            ("bins", gaps, bins),
            ("exponential_mean", gaps, lambda t: t.ewm(span=20).mean()),
            ("table_quantiles", gaps, lambda t: t.quantile([0.05, 0.5, 0.95])),
        ]
    ),
]
