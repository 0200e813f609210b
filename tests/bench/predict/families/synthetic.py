"""Families made from formulas: peak bytes by input bytes, as programs are known to behave. Each
function has the sizes and a random generator."""

import numpy as np

MB = 1e6
COUNT = 108
LOW, HIGH = 1 * MB, 200 * MB


def sizes_of(chance, count=COUNT, low=LOW, high=HIGH):
    return np.exp(chance.uniform(np.log(low), np.log(high), count))


def noise(chance, sizes, sd=0.01):
    return np.exp(chance.normal(0, sd, len(sizes)))


def saturating(sizes, chance):
    return (15 * MB + 4 * np.minimum(sizes, 30 * MB)) * noise(chance, sizes)


def saturating_early(sizes, chance):
    return (60 * MB + 12 * np.minimum(sizes, 4 * MB)) * noise(chance, sizes, 0.002)


def two_regimes(sizes, chance):
    return np.maximum(90 * MB + 0.5 * sizes, 3 * sizes) * noise(chance, sizes)


def two_regimes_late(sizes, chance):
    return np.maximum(250 * MB + 1.0 * sizes, 4 * sizes) * noise(chance, sizes, 0.003)


def constant(sizes, chance):
    return 300 * MB * noise(chance, sizes, 0.003)


def steps(sizes, chance):
    return 20 * MB + 48 * MB * np.ceil(sizes / (25 * MB)) * noise(chance, sizes, 0.001)


def doubling_buffer(sizes, chance):
    """A buffer that is copied to one of twice its length when it is full."""
    return 8 * MB + 1.5 * 2 ** np.ceil(np.log2(sizes)) * noise(chance, sizes, 0.001)


def linear(sizes, chance):
    return (30 * MB + 3 * sizes) * noise(chance, sizes, 0.002)


def linear_values(sizes, chance):
    """Values decide on up to 60 % more."""
    return (40 * MB + 3 * sizes) * chance.uniform(1, 1.6, len(sizes))


def heavy_tail(sizes, chance):
    return (20 * MB + sizes) * (1 + chance.pareto(2.5, len(sizes)))


def unrelated_tail(sizes, chance):
    """Of no use to know the size."""
    return 100 * MB * np.exp(chance.normal(0, 0.7, len(sizes)))


def bimodal(sizes, chance):
    return (20 * MB + np.where(chance.random(len(sizes)) < 0.3, 7, 2) * sizes) * noise(
        chance, sizes
    )


def bimodal_constant(sizes, chance):
    return np.where(chance.random(len(sizes)) < 0.15, 800, 250) * MB * noise(chance, sizes)


def square_root(sizes, chance):
    return (20 * MB + 300 * MB * np.sqrt(sizes / HIGH)) * noise(chance, sizes)


def quadratic(sizes, chance):
    return (20 * MB + 1500 * MB * (sizes / HIGH) ** 2) * noise(chance, sizes)


def equal_sizes(sizes, chance):
    """Nearly equal tasks, and one tiny one: 107 of 100 MB that need 1 GB, one of 100 kB."""
    sizes[:] = 100 * MB * noise(chance, sizes)
    sizes[0] = 0.1 * MB
    return np.where(sizes < MB, 30 * MB, 10 * sizes * noise(chance, sizes, 0.005))


def tiny_one(sizes, chance):
    """Nearly equal peaks at all sizes, and one tiny peak at a usual size."""
    peaks = 900 * MB * noise(chance, sizes)
    peaks[0] = 12 * MB
    return peaks


def large_one(sizes, chance):
    """Proportional, and one task that needs five times as much."""
    peaks = (10 * MB + 2 * sizes) * noise(chance, sizes)
    peaks[0] *= 5
    return peaks


FAMILIES = {
    function.__name__: function
    for function in (
        saturating,
        saturating_early,
        two_regimes,
        two_regimes_late,
        constant,
        steps,
        doubling_buffer,
        linear,
        linear_values,
        heavy_tail,
        unrelated_tail,
        bimodal,
        bimodal_constant,
        square_root,
        quadratic,
        equal_sizes,
        tiny_one,
        large_one,
    )
}


def tasks(name):
    """(input bytes, peak bytes) of each task."""
    chance = np.random.default_rng(sum(map(ord, name)))
    sizes = sizes_of(chance)
    peaks = FAMILIES[name](sizes, chance)
    return [(round(size), round(peak)) for size, peak in zip(sizes, peaks, strict=True)]
