"""Tables with dask.dataframe: read_parquet, map_partitions, merge, groupby.

`python tables.py FOLDER --block ROWS`: ROWS is the number of rows of a file, which is a partition.
"""

import os

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from session import arguments, session

ROWS, STATIONS = 800_000, 2_000


def make(folder, rows):
    os.makedirs(f"{folder}/records-{rows}")
    random = np.random.default_rng(1)
    for part in range(ROWS // rows):
        pd.DataFrame(
            {
                "station": [f"station {n:05}" for n in random.integers(0, STATIONS, rows)],
                "day": random.integers(0, 366, rows),
                "value": random.random(rows),
                "weight": random.random(rows),
            }
        ).to_parquet(f"{folder}/records-{rows}/{part:03}.parquet")
    names = [f"station {n:05}" for n in range(STATIONS)]
    pd.DataFrame(
        {"station": names, "region": [f"region {n % 97}" for n in range(STATIONS)]}
    ).to_parquet(f"{folder}/stations.parquet")


def calibrate(frame):
    """Weighted values, and the rank of each within its day."""
    scaled = frame.value * frame.weight / frame.weight.mean()
    return frame.assign(value=scaled, rank=frame.groupby("day").value.rank())


def work(folder, rows):
    records = dd.read_parquet(f"{folder}/records-{rows}/*.parquet")
    stations = dd.read_parquet(f"{folder}/stations.parquet")
    calibrated = records.map_partitions(calibrate)
    both = calibrated[calibrated.value > 0.1].merge(stations, on="station")
    dask.compute(
        both.groupby("region").value.agg(["mean", "std"]),
        both.groupby(["region", "day"]).value.sum(),
    )
    daily = records.groupby(["station", "day"]).value.mean(split_out=4).reset_index()
    records.merge(daily, on=["station", "day"]).value_x.sum().compute()
    records.station.str.upper().nunique().compute()


if __name__ == "__main__":
    chosen = arguments(__doc__, block=100_000)
    if not os.path.exists(f"{chosen.folder}/records-{chosen.block}"):
        make(chosen.folder, chosen.block)
    with session(chosen):
        for _ in range(chosen.times):
            work(chosen.folder, chosen.block)
