"""`dwsr-probe run` as a command of click: for help, errors, and spellings that cli/options.py
leaves to click."""

from __future__ import annotations

from typing import Any

import click

from dwsr_probe.cli.options import click_options
from dwsr_probe.cli.running import OPTIONS, run


@click.command("run", context_settings={"allow_interspersed_args": False}, help=run.__doc__)
@click_options(OPTIONS)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@click.pass_context
def command(ctx: click.Context, command: tuple[str, ...], **chosen: Any) -> None:
    if not command:
        click.echo(ctx.get_usage(), err=True)
        click.echo(
            "dwsr-probe: name the command to run, as in: dwsr-probe run python job.py", err=True
        )
        ctx.exit(2)
    run(list(command), **chosen)
