"""Operators of xarray: arrays with names of axes, a time and a grid."""

import numpy as np
import pandas as pd
import xarray as xr

from tests.bench.predict.operators.operator import M, one


def series(shape, chance):
    """Days × latitudes × longitudes of float32."""
    days, rows, columns = shape
    return [
        xr.DataArray(
            chance.random(shape, dtype=np.float32),
            dims=("time", "y", "x"),
            coords={
                "time": pd.date_range("2001-01-01", periods=days),
                "y": np.linspace(-90.0, 90.0, rows),
                "x": np.linspace(0.0, 360.0, columns, endpoint=False),
            },
        )
    ]


def anomalies(x):
    groups = x.groupby("time.month")
    return groups - groups.mean()


def regrid(x):
    rows, columns = x.sizes["y"] * 2 // 3, x.sizes["x"] * 2 // 3
    return x.interp(y=np.linspace(-80, 80, rows), x=np.linspace(10, 350, columns))


def weighted_mean(x):
    return x.weighted(np.cos(np.deg2rad(x.y))).mean(("y", "x"))


NEW = [
    one(name, function, low=M // 4, high=high, make=series)
    for name, high, function in [
        ("xr_rolling_mean", 2 * M, lambda x: x.rolling(time=5).mean()),
        ("xr_monthly_mean", 8 * M, lambda x: x.groupby("time.month").mean()),
        ("xr_anomalies", 4 * M, anomalies),
        ("xr_regrid", 4 * M, regrid),
        ("xr_resample", 4 * M, lambda x: x.resample(time="7D").mean()),
        ("xr_coarsen", 8 * M, lambda x: x.coarsen(y=2, x=2, boundary="trim").mean()),
        ("xr_standard_score", 8 * M, lambda x: (x - x.mean("time")) / x.std("time")),
        ("xr_weighted_mean", 8 * M, weighted_mean),
        ("xr_quantile", 4 * M, lambda x: x.quantile(0.9, "time")),
        ("xr_to_table", 4 * M, lambda x: x.to_dataframe(name="value")),
        ("xr_difference", 8 * M, lambda x: x.diff("time")),
        ("xr_fill", 4 * M, lambda x: x.where(x > 0.2).fillna(0.0)),
        ("xr_gradient", 8 * M, lambda x: x.differentiate("x")),
        ("xr_cumulative", 8 * M, lambda x: x.cumsum("time")),
    ]
]
