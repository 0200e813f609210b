from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dwsr_probe.cli.checks import CheckResult, following, libraries, machine, trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from dwsr_probe.cli.checks import Finding

CHECKS: tuple[Callable[[], Finding | None], ...] = (  # in the order of the lines
    machine.kernel,
    machine.python,
    machine.shadowed_package,
    machine.off_switch,
    machine.board_directory,
    trial.peaks,
    trial.allocations,
    following.python_malloc,
    following.preloaded,
    following.shared_memory,
    following.threads,
    following.uvloop,
    following.native_fetchers,
    following.coroutines,
    libraries.pyarrow,
    following.arrow_release,
    *following.foreign_allocators,
    libraries.dask,
    libraries.notebook,
    libraries.cupy,
    libraries.nvml,
    machine.memory_limit,
    trial.sampler,
    machine.run_directory,
)
_MARKS = {
    CheckResult.OK: ("✓", "green"),
    CheckResult.LIMITED: ("!", "yellow"),
    CheckResult.FAILED: ("✗", "red"),
}
_TITLE_WIDTH = 18


@click.command("doctor")
def command() -> None:
    """Say what works on this machine, what does not, why, and what to do. Exit code 1 if the
    probe cannot work."""
    worst = CheckResult.OK
    for check in CHECKS:
        finding = check()
        if finding is None:
            continue
        mark, colour = _MARKS[finding.state]
        click.echo(f"{click.style(mark, fg=colour)} {finding.title:<{_TITLE_WIDTH}} {finding.text}")
        if finding.advice:
            click.echo(f"  {'':<{_TITLE_WIDTH}} → {finding.advice}")
        worst = max(worst, finding.state)
    sys.exit(1 if worst == CheckResult.FAILED else 0)
