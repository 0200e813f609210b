"""`dwsr_probe.dask.records(client)`: what all workers of a cluster have measured, as a pandas DataFrame."""
import json

import pandas as pd

from dwsr_probe.dask.held import of_this_worker
from dwsr_probe.record import FIELDS, NESTED


class Records(pd.DataFrame):
    """One row per task, named as in the record (docs/figures.md). `lost`: records that were overwritten before they were asked for."""

    _metadata = ["lost", "unmeasured"]

    @property
    def _constructor(self):
        return Records

    def summary(self):
        """One row per task name, the largest own peak first."""
        growth = (self["rss_peak_bytes"] - self["rss_before_bytes"]).clip(lower=0)
        device = self["gpu"].map(lambda devices: max((d["peak_bytes"] for d in devices), default=0) if isinstance(devices, list) else float("nan"))
        groups = self.assign(rss_growth_bytes=growth, gpu_peak_bytes=device.astype(float), failed=self["state"] != "ok").groupby("task_name")
        table = groups.agg(
            count=("task_name", "size"), failed=("failed", "sum"), alloc_peak_median_bytes=("alloc_peak_bytes", "median"),
            alloc_peak_max_bytes=("alloc_peak_bytes", "max"), gpu_peak_median_bytes=("gpu_peak_bytes", "median"),
            gpu_peak_max_bytes=("gpu_peak_bytes", "max"), rss_growth_median_bytes=("rss_growth_bytes", "median"),
            rss_growth_max_bytes=("rss_growth_bytes", "max"), input_median_bytes=("input_bytes", "median"),
            output_median_bytes=("output_bytes", "median"), duration_median=("duration", "median"), duration_max=("duration", "max"))
        return pd.DataFrame(table.sort_values(["alloc_peak_max_bytes", "rss_growth_max_bytes"], ascending=False))


_PROCESS, _SEQ = FIELDS.index("process"), FIELDS.index("seq")


def records(client):
    """Finished tasks that the workers' boards still hold (at least 8,192 of the newest per process), and those of killed workers that
    were restarted. `.lost` counts what was overwritten, `.unmeasured` names workers without a probe. An awaitable with an asynchronous client."""
    answers = client.run(of_this_worker, on_error="return")
    if client.asynchronous:
        async def later():
            return _frame(await answers)
        return later()
    return _frame(answers)


def _frame(answers):
    rows, lost, unmeasured = {}, {}, []
    for address, answer in answers.items():
        if not isinstance(answer, dict):  # no probe there, or it could not answer
            unmeasured.append(address)
            continue
        lost.update(answer["lost"])  # several workers may share a process
        rows.update(((row[_PROCESS], row[_SEQ]), row) for row in answer["rows"])
    nested = [FIELDS.index(name) for name in NESTED]
    frame = Records([[json.loads(value) if i in nested and value is not None else value for i, value in enumerate(row)] for row in rows.values()],
                    columns=list(FIELDS))
    numbers = [name for name in FIELDS if name.endswith("_bytes") or name in ("seq", "start", "duration", "alloc_count", "overlap")]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    frame.lost, frame.unmeasured = sum(lost.values()), unmeasured
    return frame
