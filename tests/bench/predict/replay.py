"""Partial runs of UNICAMP's operators, replayed: how long before a run passes a limit is it
known? And how often is it said of one that does not? Called by __main__."""

from dataclasses import dataclass

from tests.bench.predict import unicamp

BELOW, ABOVE = (0.6, 0.8, 0.95), (1.05, 1.2, 1.5)  # limits, by the run's true peak


@dataclass(slots=True)
class Alarm:
    name: str
    share: float  # limit by true peak
    seconds: float | None  # before it passed the limit; None: not before
    part: float | None  # the same, by the duration of the run
    raised: bool


def replay(model, name, shape, samples, shares=BELOW + ABOVE):
    """One alarm for each limit. Each sample is a running record with the peak so far, learned as
    the service does, and dropped at the end: the next run begins with the same model."""
    peak = max(value for _, value in samples)
    first, crossed, so_far = {}, {}, 0.0
    for seconds, value in samples:
        so_far = max(so_far, value)
        running = unicamp.record_of(
            name, shape, so_far, state="running", process="replayed", thread=1, start=1.0
        )
        model.learn(running)
        forecast = model.predict(unicamp.described(shape), name, running=running)
        for share in shares:
            if so_far > share * peak:
                crossed.setdefault(share, seconds)
            if forecast.exceeds(share * peak, above=so_far) > 0.5:
                first.setdefault(share, seconds)
    model.forget_running("replayed")
    return alarms(name, samples, shares, first, crossed)


def threshold(name, samples, level, shares=BELOW + ABOVE):
    """The customary alarm: so much of the limit is in use."""
    peak = max(value for _, value in samples)
    first, crossed = (
        {
            share: next((s for s, value in samples if value > share * peak * part), None)
            for share in shares
        }
        for part in (level, 1.0)
    )
    return alarms(
        name,
        samples,
        shares,
        {k: v for k, v in first.items() if v is not None},
        {k: v for k, v in crossed.items() if v is not None},
    )


def alarms(name, samples, shares, first, crossed):
    found, duration = [], max(samples[-1][0], 1e-9)
    for share in shares:
        lead = crossed[share] - first[share] if share in first and share in crossed else None
        lead = None if lead is None or lead <= 0 else lead
        found.append(
            Alarm(name, share, lead, None if lead is None else lead / duration, share in first)
        )
    return found
