"""Runs of UNICAMP's operators, replayed sample by sample."""

import numpy as np

from tests.bench import Section
from tests.bench.predict import replay, unicamp
from tests.bench.predict.baselines import Ours
from tests.bench.predict.rates import percent


def run(data):
    if not data.unicamp or "ours" not in data.methods:
        return []
    section = Section(
        "Partial runs of UNICAMP's operators, replayed",
        "lead time before an overshoot, and no false alarms",
        (
            "alarm",
            "limit / true peak",
            "runs",
            "known before",
            "lead, median, of the run",
            "seconds",
            "raised",
        ),
    )
    model = Ours().model
    for rows in data.unicamp.values():
        for record in rows:
            if unicamp.is_cube(record) and record["inputs"][0]["shape"][0] <= 300:
                model.learn(record)
    runs = [run for run in unicamp.histories() if np.prod(run.shape) > 300**3]
    found = {
        "ours: P(exceeds) > 0.5": [],
        "80 % of the limit in use": [],
        "95 % of the limit in use": [],
    }
    for name, shape, samples in runs[:: 5 if data.quick else 1]:
        found["ours: P(exceeds) > 0.5"] += replay.replay(model, name, shape, samples)
        found["80 % of the limit in use"] += replay.threshold(name, samples, 0.8)
        found["95 % of the limit in use"] += replay.threshold(name, samples, 0.95)
    for alarm, alarms in found.items():
        for share in replay.BELOW + replay.ABOVE:
            chosen = [a for a in alarms if a.share == share]
            lead_share = np.median([a.lead_share or 0.0 for a in chosen])
            seconds = np.median([a.lead_seconds or 0.0 for a in chosen])
            if share < 1:
                section.rows.append(
                    (
                        alarm,
                        share,
                        len(chosen),
                        percent(np.mean([a.lead_seconds is not None for a in chosen]), 0),
                        percent(lead_share, 0),
                        f"{seconds:.2f}",
                        "–",
                    )
                )
            else:
                section.rows.append(
                    (
                        alarm,
                        share,
                        len(chosen),
                        "–",
                        "–",
                        "–",
                        f"{percent(np.mean([a.raised for a in chosen]), 0)} (false)",
                    )
                )
    section.notes.append(
        "Models learned the cubes of 100, 200 and 300; every run of a larger volume is replayed,"
        " sampled each 10 ms. The true peak is that run's own. A run that passes the limit in its"
        " first sample cannot be known before."
    )
    return [section]
