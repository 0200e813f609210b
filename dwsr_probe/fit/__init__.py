"""The block size of an array: as fast as memory allows.

    from dwsr_probe.fit import fit_blocks
    plan = fit_blocks(envelope, x, memory="8GiB", threads=4)
    x = x.rechunk(plan.chunks)

`fitting` has the order of work. Called by the command `fit` (cli/fit.py), by notebooks and jobs,
and by the report's advice.
"""

from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.fitting import fit_blocks
from dwsr_probe.fit.plan import Plan

__all__ = ["FitError", "Plan", "fit_blocks"]
