"""Shares with their 95 % interval, and figures as text. Called by the parts."""

from math import sqrt

NORMAL_95 = 1.96


def wilson(k, n):
    """The 95 % interval of a share, k of n (Wilson's score interval). Forecasts of one operator are
    not independent: the true interval is wider."""
    if not n:
        return 0.0, 1.0
    share, z = k / n, NORMAL_95
    middle, half = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return (
        max(0.0, (middle - half) / (1 + z * z / n)),
        min(1.0, (middle + half) / (1 + z * z / n)),
    )


def percent(value, digits=1):
    return f"{100 * value:.{digits}f} %"


def rate(k, n):
    """12 of 612: 2.0 % (1.1 – 3.4)"""
    if not n:
        return "–"
    low, high = wilson(k, n)
    return f"{k:,} of {n:,}: {100 * k / n:.1f} % ({100 * low:.1f} – {100 * high:.1f})"
