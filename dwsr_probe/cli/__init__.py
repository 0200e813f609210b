"""The command line: one file per command, loaded when it is called."""
import importlib
import sys

import click

COMMANDS = ("run", "top", "report", "export", "predict", "doctor")


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


def fail(text, code=1):
    """One message on stderr, then exit."""
    from dwsr_probe.say import say
    say(text)
    sys.exit(code)


def main():
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # a terminal that cannot show a dash still gets the rest
    import dwsr_probe
    broken = dwsr_probe.why_broken()
    if broken:
        sys.exit(f"dwsr-probe: {broken}")  # not by say(), which needs the extension
    group(prog_name="dwsr-probe")
