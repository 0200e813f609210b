from __future__ import annotations

import sys

import click

from dwsr_probe.cli.checks import CheckResult, libraries, machine, trial

CHECKS = (  # in the order of the lines
    machine.kernel,
    machine.python,
    machine.shadowed_package,
    machine.off_switch,
    machine.board_directory,
    trial.peaks,
    trial.allocations,
    libraries.pyarrow,
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
