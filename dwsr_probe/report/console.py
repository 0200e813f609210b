"""What comparisons and forecasts are printed with: rich's console, as this package uses it."""
from rich.console import Console
from rich.text import Text

from dwsr_probe.report.words import line_of


def name_text(name):
    return Text(line_of(name), no_wrap=True, overflow="ellipsis")


class _Console(Console):
    def on_broken_pipe(self):
        """Leave it to the caller: rich would exit with a code of its own."""
        raise BrokenPipeError


def console_for(file):
    console = _Console(file=file, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = max(console.width, 240)  # nobody wraps lines in a log
    return console
