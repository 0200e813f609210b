from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from dwsr_probe.cli import fail

if TYPE_CHECKING:
    from dwsr_probe.report.top.moment import Watch


@click.command("top")
@click.argument("target", required=False, metavar="[RUN|URL]")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.25, 60),
    metavar="S",
    help="Seconds between two readings. [0.25; of a URL and for lines 1]",
)
@click.option(
    "--predictor",
    metavar="URL",
    help=(
        "A `dwsr-probe predict serve`: how probable it is that each running task exceeds what its"
        " process has left."
    ),
)
@click.option("--plain", is_flag=True, help="One line a second, as without a terminal.")
@click.option(
    "--board-dir",
    "directories",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help=(
        "Boards of this directory only; may be repeated. [this user's; all users' for root or with"
        " CAP_DAC_READ_SEARCH]"
    ),
)
@click.option(
    "--token-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the bearer token in the first line of this file.",
)
@click.option(
    "--basic-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the user:password in the first line of this file.",
)
@click.option(
    "--ca-file",
    type=click.Path(),
    metavar="FILE",
    help="Certificates (PEM) that HTTPS is checked with. [the system's]",
)
@click.option(
    "--predictor-token-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the predictor the bearer token in the first line of this file.",
)
@click.option(
    "--predictor-basic-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the predictor the user:password in the first line of this file.",
)
def command(
    target: str | None,
    interval_s: float | None,
    predictor: str | None,
    plain: bool,
    directories: tuple[str, ...],
    token_file: str | None,
    basic_file: str | None,
    ca_file: str | None,
    predictor_token_file: str | None,
    predictor_basic_file: str | None,
) -> None:
    """Watch tasks while they run: what each one has, had at most, and how fast it grows.

    Of all boards of this machine; of a RUN, by its directory or name; or of a worker, an
    exporter or `run --metrics` at a URL. Press ? for the keys. Only reads: the job does not
    notice. Without a terminal it prints a line a second, and ends when the job has ended or
    nothing has run for ten seconds.
    """
    from dwsr_probe.launch import raise_descriptor_limit
    from dwsr_probe.report.top import loop
    from dwsr_probe.report.top.moment import WatchError
    from dwsr_probe.report.top.port import PortWatch, PredictorPort, is_url
    from dwsr_probe.report.top.watch import MachineWatch, watch_run

    raise_descriptor_limit()

    def login(token: str | None, basic: str | None) -> tuple[str | None, str | None, str | None]:
        return (
            token and _read_secret(token, "the token"),
            basic and _read_secret(basic, "user:password"),
            ca_file,
        )

    try:
        watch: Watch
        paths = [os.path.abspath(d) for d in directories]
        if target and is_url(target):
            watch = PortWatch(target, *login(token_file, basic_file))
        else:
            if token_file or basic_file:
                fail("--token-file and --basic-file are for a URL", 2)
            watch = watch_run(target, paths) if target else MachineWatch(paths)
        forecasts = None
        if predictor:
            forecasts = PredictorPort(predictor, *login(predictor_token_file, predictor_basic_file))
        if not predictor and (predictor_token_file or predictor_basic_file):
            fail("--predictor-token-file and --predictor-basic-file are for --predictor URL", 2)
        if plain or not loop.can_draw():
            loop.print_lines(watch, forecasts, interval_s or loop.PLAIN_S)
        else:
            loop.show(watch, forecasts, interval_s or watch.interval_s)
    except WatchError as error:
        fail(error)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (ValueError, OSError) as error:  # of a URL, of a file
        fail(error, 2)


def _read_secret(path: str, what: str) -> str:
    from dwsr_probe.export.server import ServeError, read_secret

    try:
        return read_secret(path, what)
    except ServeError as error:
        fail(error)
