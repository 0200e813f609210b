"""The command line: one file per command, loaded when it is called."""

import gc
import os
import sys

COMMANDS = ("run", "top", "report", "export", "predict", "doctor")


def fail(text, code=1):
    """One message on stderr, then exit."""
    from dwsr_probe.say import say

    say(text)
    sys.exit(code)


def main():
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # a terminal that cannot show a dash still gets the rest
            stream.reconfigure(errors="replace")
    import dwsr_probe

    broken = dwsr_probe.why_broken()
    if broken:
        sys.exit(f"dwsr-probe: {broken}")  # not by say(), which needs the extension
    # that is for click: a shell asks it what could follow
    if sys.argv[1:2] == ["run"] and "_DWSR_PROBE_COMPLETE" not in os.environ:
        _run_without_click(sys.argv[2:])
    from dwsr_probe.cli.group import group

    group(prog_name="dwsr-probe")


def _run_without_click(words):
    """Returns where click must look."""
    gc.disable()  # until all is loaded: modules are no garbage, and looking for it takes time
    from dwsr_probe.cli.options import read
    from dwsr_probe.cli.running import OPTIONS, run

    found = read(OPTIONS, words)
    if found:
        chosen, command = found
        try:
            run(command, **chosen)
        except KeyboardInterrupt:  # before the job began, or after its end
            sys.exit("\nAborted!")  # as click does
