"""All commands as a group of click. Called by cli.main, which spares `run` this import."""

from __future__ import annotations

import importlib

import click

from dwsr_probe.cli import COMMANDS


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"dwsr_probe.cli.{name}").command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dwsr-probe", prog_name="dwsr-probe")
def group() -> None:
    """How much memory does one task need? Exact peaks per task, live and after a kill."""
