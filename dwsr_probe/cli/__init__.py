"""The command line: one file per command, loaded when it is called.

`main` is the entry point. `run` has a path without click, because importing click costs more than
all the rest of a short run.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

COMMANDS = ("run", "top", "report", "export", "predict", "fit", "doctor")


def fail(text: object, code: int = 1) -> NoReturn:
    """Print one message on stderr, then exit."""
    from dwsr_probe.say import say

    say(str(text))
    sys.exit(code)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # On a terminal that cannot show a dash the rest of the text must still appear.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # TextIO lacks it
    import dwsr_probe

    broken = dwsr_probe.why_broken()
    if broken:
        sys.exit(f"dwsr-probe: {broken}")  # not by say(), which needs the extension
    # Completion by a shell sets the variable; click answers it.
    if sys.argv[1:2] == ["run"] and "_DWSR_PROBE_COMPLETE" not in os.environ:
        _run_without_click(sys.argv[2:])
    from dwsr_probe.cli.group import group

    group(prog_name="dwsr-probe")


def _run_without_click(words: list[str]) -> None:
    """Runs the command and exits. Returns only if click must read the options."""
    gc.disable()  # until all is loaded: modules are no garbage, and collecting takes time
    from dwsr_probe.cli.options import read_options
    from dwsr_probe.cli.running import OPTIONS, run

    found = read_options(OPTIONS, words)
    if found:
        chosen, command = found
        try:
            run(command, **chosen)
        except KeyboardInterrupt:  # before the job began, or after its end
            sys.exit("\nAborted!")  # as click does
