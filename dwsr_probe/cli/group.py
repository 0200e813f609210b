"""All commands as a group of click."""

import importlib

import click

from dwsr_probe.cli import COMMANDS


class _Commands(click.Group):
    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"dwsr_probe.cli.{name}").command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dwsr-probe", prog_name="dwsr-probe")
def group():
    """How much memory does one task need? Exact peaks per task, live, at a cost nobody notices."""
