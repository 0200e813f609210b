"""Climate on zarr with xarray: climatology, anomaly, rolling mean, regridding, smoothing, seasons.

`python climate.py FOLDER --block STEPS`: STEPS is the number of time steps in a block.
"""

import os

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
from scipy.ndimage import gaussian_filter
from session import arguments, session

STEPS, LATITUDES, LONGITUDES = 512, 96, 180  # a block of 64 steps has 4.2 MiB
STORED = 64  # steps of a chunk on disk


def make(path):
    random = np.random.default_rng(1)
    shape = STEPS, LATITUDES, LONGITUDES
    season = np.sin(np.arange(STEPS, dtype=np.float32) * 2 * np.pi / 365)[:, None, None]
    noise = random.standard_normal((STORED, LATITUDES, LONGITUDES), dtype=np.float32)
    noise = np.tile(noise, (STEPS // STORED, 1, 1))
    dims = "time", "lat", "lon"
    dataset = xr.Dataset(
        {
            "temperature": (dims, np.round((280 + 15 * season + noise) * 100) / 100),
            "rain": (dims, np.round(np.abs(noise + season) * 100) / 100),
        },
        {
            "time": pd.date_range("2000-01-01", periods=STEPS),
            "lat": np.linspace(-89, 89, LATITUDES),
            "lon": np.linspace(0, 358, LONGITUDES),
        },
    )
    assert dataset.temperature.shape == shape and dataset.temperature.dtype == np.float32
    chunks = {"chunks": (STORED, LATITUDES, LONGITUDES)}
    dataset.to_zarr(path, encoding={name: chunks for name in dataset.data_vars})


def smooth(block):
    return gaussian_filter(block, sigma=(0, 1, 1))


def regrid(block, rows, columns):
    """From the last two axes to rows × columns by weights, as regridding libraries do."""
    weights_rows = weights(block.shape[-2], rows)
    weights_columns = weights(block.shape[-1], columns)
    return np.matmul(np.matmul(weights_rows, block), weights_columns.T)


def weights(many, few):
    nearest = np.abs(np.linspace(0, 1, few)[:, None] - np.linspace(0, 1, many))
    found = np.maximum(0, 1 - nearest * (few - 1)).astype(np.float32)
    return found / found.sum(axis=1, keepdims=True)


def detrend(block):
    """Without the mean of each day; called with a DataArray."""
    return block - block.mean(("lat", "lon"))


def work(folder, block):
    dataset = xr.open_zarr(f"{folder}/climate.zarr", chunks={"time": block})
    temperature, rain = dataset.temperature, dataset.rain
    tropics = temperature.sel(lat=slice(-23, 23))

    def save(result, name):
        result = result.drop_encoding().to_dataset(name=name)
        result.to_zarr(f"{folder}/{name}-{block}.zarr", mode="w")

    with xr.set_options(use_flox=False):
        climatology = tropics.groupby("time.month").mean("time").compute()
        rain.groupby("time.season").mean("time").compute()
    # xarray makes a block of each step here: half of the steps is enough
    save(tropics.isel(time=slice(0, 256)).groupby("time.month") - climatology, "anomaly")
    rolling = temperature.rolling(time=5).mean()
    save(rolling.chunk(time=block, lat=-1, lon=-1), "rolling")
    regridded = xr.apply_ufunc(
        regrid,
        rain,
        input_core_dims=[["lat", "lon"]],
        output_core_dims=[["row", "column"]],
        dask="parallelized",
        output_dtypes=[np.float32],
        dask_gufunc_kwargs={"output_sizes": {"row": 48, "column": 90}},
        kwargs={"rows": 48, "columns": 90},
    )
    save(regridded, "regridded")
    rain.coarsen(lat=4, lon=4).mean().max().compute()
    rain.interp(lat=np.linspace(-80, 80, 60), method="linear").mean("time").compute()
    smoothed = da.map_overlap(
        smooth, temperature.data, depth={1: 4, 2: 4}, boundary="reflect", dtype=np.float32
    )
    save(temperature.copy(data=smoothed), "smoothed")
    xr.map_blocks(detrend, temperature, template=temperature).std("time").compute()
    with xr.set_options(use_flox=True):
        rain.groupby("time.season").mean("time").compute()
        tropics.groupby("time.dayofyear").max("time").mean().compute()


if __name__ == "__main__":
    chosen = arguments(__doc__, block=64)
    if not os.path.exists(f"{chosen.folder}/climate.zarr"):
        make(f"{chosen.folder}/climate.zarr")
    with session(chosen):
        for _ in range(chosen.times):
            work(chosen.folder, chosen.block)
