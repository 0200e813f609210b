"""`run`'s options are read as click reads them, or left to click."""

import click
import pytest

from dwsr_probe.cli import run
from dwsr_probe.cli.options import read_options
from dwsr_probe.cli.running import OPTIONS


def by_click(words):
    """({parameter: value}, command), or None for an error."""
    try:
        chosen = dict(run.command.make_context("run", list(words)).params)
    except (click.ClickException, click.exceptions.Exit):
        return None
    return chosen, list(chosen.pop("command"))


READ = [
    "python job.py",
    "python job.py -q --help",
    "-q python job.py",
    "-o out -v python -c pass",
    "--output=out true",
    "-o -q true",
    "--period 2 true",
    "--period=0.5 true",
    "--no-alloc true",
    "--alloc --no-alloc true",
    "--no-alloc --alloc true",
    "--alloc-from 64 true",
    "--gc around true",
    "--metrics 0 --linger 5 true",
    "--metrics=[::1]:9465 --allow-host a --allow-host=.b true",
    "--tls-cert c --tls-key k --token-file t --basic-file b true",
    "--strict -- -q",
    "-- -- x",
    "--keep-peak --verbose true",
    "-o a -o b true",
    "--output=a=b true",
    "--period 1e1 true",
]
LEFT = [
    "",
    "--help",
    "-h",
    "-q",
    "--",
    "-qv true",
    "-oout true",
    "-o",
    "--period x true",
    "--period 0 true",
    "--period nan true",
    "--alloc-from 1 true",
    "--alloc-from 4.5 true",
    "--gc all true",
    "--quiet=1 true",
    "--nothing true",
    "-x true",
    "--perio 1 true",
    "-o=out true",
    "--metrics= true",
    "--help true",
    "- true",
    "--no-alloc=1 true",
]


@pytest.mark.parametrize("words", READ)
def test_as_click(words):
    assert read_options(OPTIONS, words.split()) == by_click(words.split()) is not None


@pytest.mark.parametrize("words", LEFT)
def test_left_to_click(words):
    """Help, errors and rare spellings: what click says of them is what the user sees."""
    assert read_options(OPTIONS, words.split()) is None
