"""Runs of UNICAMP's operators, replayed sample by sample: how long before a run exceeds a limit is
the alarm raised, and how often is it raised for a run that does not? Called by __main__."""

from dataclasses import dataclass

from tests.bench.predict import unicamp

# Limits, divided by the run's true peak: exceeded, and not exceeded.
BELOW, ABOVE = (0.6, 0.8, 0.95), (1.05, 1.2, 1.5)
ALARM_PROBABILITY = 0.5


@dataclass(slots=True)
class Alarm:
    """lead_seconds: from the alarm until the run exceeded the limit; None: no alarm before that.
    lead_share: the same, divided by the duration of the run."""

    name: str
    share: float  # limit divided by the true peak
    lead_seconds: float | None
    lead_share: float | None
    raised: bool


def replay(model, name, shape, samples, shares=BELOW + ABOVE):
    """An Alarm for each limit. Each sample is learned as a running record with the peak so far, as
    the service does, and forgotten at the end: the next run begins with the same model."""
    true_peak = max(value for _, value in samples)
    raised_at, exceeded_at, peak = {}, {}, 0.0  # seconds by share
    for seconds, value in samples:
        peak = max(peak, value)
        running = unicamp.record_of(
            name, shape, peak, state="running", process="replayed", thread=1, start=1.0
        )
        model.learn(running)
        forecast = model.predict(unicamp.inputs_of(shape), name, running=running)
        for share in shares:
            if peak > share * true_peak:
                exceeded_at.setdefault(share, seconds)
            if forecast.exceeds(share * true_peak, above=peak) > ALARM_PROBABILITY:
                raised_at.setdefault(share, seconds)
    model.forget_running("replayed")
    return alarms(name, samples, shares, raised_at, exceeded_at)


def threshold(name, samples, level, shares=BELOW + ABOVE):
    """The customary alarm: raised when this share of the limit is in use."""
    true_peak = max(value for _, value in samples)

    def first_above(part):
        """Seconds by share, of the first sample above this part of the limit."""
        return {
            share: above[0]
            for share in shares
            if (above := [s for s, value in samples if value > share * true_peak * part])
        }

    return alarms(name, samples, shares, first_above(level), first_above(1.0))


def alarms(name, samples, shares, raised_at, exceeded_at):
    found, duration = [], max(samples[-1][0], 1e-9)
    for share in shares:
        lead = None
        if share in raised_at and share in exceeded_at and raised_at[share] < exceeded_at[share]:
            lead = exceeded_at[share] - raised_at[share]
        lead_share = None if lead is None else lead / duration
        found.append(Alarm(name, share, lead, lead_share, share in raised_at))
    return found
