"""`dwsr_probe.dask.records(client)`: what all workers of a cluster have measured, as a pandas DataFrame."""
import json

import pandas as pd

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
        groups = self.assign(rss_growth_bytes=growth, failed=self["state"] != "ok").groupby("task_name")
        table = groups.agg(
            count=("task_name", "size"), failed=("failed", "sum"), alloc_peak_median_bytes=("alloc_peak_bytes", "median"),
            alloc_peak_max_bytes=("alloc_peak_bytes", "max"), rss_growth_median_bytes=("rss_growth_bytes", "median"),
            rss_growth_max_bytes=("rss_growth_bytes", "max"), input_median_bytes=("input_bytes", "median"),
            output_median_bytes=("output_bytes", "median"), duration_median=("duration", "median"), duration_max=("duration", "max"))
        return pd.DataFrame(table.sort_values(["alloc_peak_max_bytes", "rss_growth_max_bytes"], ascending=False))


def records(client):
    """Finished tasks that the workers' boards still hold (at least 8,192 of the newest per process), and those of killed workers that
    were restarted. `.lost` counts what was overwritten, `.unmeasured` names workers without a probe."""
    answers = client.run(of_this_worker)
    rows, lost, unmeasured = {}, {}, []
    for address, answer in answers.items():
        if answer is None:
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


_PROCESS, _SEQ = FIELDS.index("process"), FIELDS.index("seq")


def of_this_worker():
    """Runs in each worker: {rows, lost by process}, or None without a probe."""
    from dwsr_probe import _core
    from dwsr_probe.board import Board
    from dwsr_probe.dask import dead
    from dwsr_probe.record import row_of
    path = _core.board_path()
    if path is None:
        return None
    board, rows, position = Board(path), [], 0
    try:
        while True:
            raws, position = board.records(position)
            if not raws:
                break
            rows.extend(row_of(board, raw) for raw in raws)
        written = board.live()["records_written"] or 0
        return {"rows": [*dead.rows(), *rows], "lost": {board.process: max(0, written - len(rows))}}
    finally:
        board.close()
