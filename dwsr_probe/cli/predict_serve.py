"""`dwsr-probe predict serve`: options of the service (serve/), its start and its end."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from dwsr_probe.cli import fail
from dwsr_probe.cli.listening import access_options, parse_listen

if TYPE_CHECKING:
    from typing import Any, NoReturn

    from dwsr_probe.export.server import Server
    from dwsr_probe.serve.service import Predictor

_IDLE_S = 0.1  # between two turns when nothing waits


class _Sources(NamedTuple):
    """What the service learns from, and how it logs in there."""

    urls: tuple[str, ...]
    files: tuple[str, ...]  # of targets, as Prometheus' file_sd
    servers: tuple[str, ...]  # of Prometheus
    jobs: tuple[str, ...]  # of Prometheus' targets
    runs: tuple[str, ...]  # directories
    token_file: str | None
    basic_file: str | None
    ca_file: str | None


def fail_without_extra(error: ModuleNotFoundError) -> NoReturn:
    """Exit with advice if numpy is missing, which comes with an extra."""
    if (error.name or "").split(".")[0] == "numpy":
        fail("forecasts need numpy, which is not installed; pip install 'dwsr-probe[predict]'")
    raise error


@click.command("serve")
@click.option(
    "--from",
    "urls",
    multiple=True,
    metavar="URL",
    help="A worker, `run --metrics` or exporter, as http://host:port; may be repeated.",
)
@click.option(
    "--file-sd",
    "files",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Targets in a file as Prometheus' file_sd has them (JSON), read again when it changes.",
)
@click.option(
    "--prometheus",
    "servers",
    multiple=True,
    metavar="URL",
    help="The active targets of this Prometheus; those without /dwsr/tasks are left out.",
)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="NAME",
    help="Of Prometheus' targets those of this job only; may be repeated.",
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help="A run directory on this machine, also while it is being written.",
)
@click.option(
    "--from-token-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the targets the bearer token in the first line of this file.",
)
@click.option(
    "--from-basic-file",
    type=click.Path(),
    metavar="FILE",
    help="Send the targets the user:password in the first line of this file.",
)
@click.option(
    "--from-ca-file",
    type=click.Path(),
    metavar="FILE",
    help="Certificates (PEM) that the targets' HTTPS is checked with. [the system's]",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks at a target.",
)
@click.option(
    "--state",
    "state_dir",
    type=click.Path(),
    metavar="DIR",
    help="Where model and progress are kept. [~/.local/state/dwsr-probe/predict]",
)
@click.option(
    "--save-every",
    "save_s",
    type=click.FloatRange(1, 86_400),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds between two saves; and at the end.",
)
@click.option(
    "--listen",
    default="127.0.0.1:9466",
    show_default=True,
    metavar="[ADDR:]PORT",
    help="Where to serve. Loopback unless an address is given; 0: any free port.",
)
@access_options
def command(
    urls: tuple[str, ...],
    files: tuple[str, ...],
    servers: tuple[str, ...],
    jobs: tuple[str, ...],
    runs: tuple[str, ...],
    from_token_file: str | None,
    from_basic_file: str | None,
    from_ca_file: str | None,
    interval_s: float,
    state_dir: str | None,
    save_s: float,
    listen: str,
    **access: Any,
) -> None:
    """Learn from running workers and say what their tasks will need: /forecast, /models and
    /metrics over HTTP.

    Reads /dwsr/tasks of many workers, finished and running tasks, and serves forecasts, their
    error and coverage, and for each running task the probability that it exceeds its worker's
    limit. The model is kept over restarts. Runs until SIGINT or SIGTERM.
    """
    import signal

    from dwsr_probe.say import say
    from dwsr_probe.signals import wait_for

    if not (urls or files or servers or runs):
        fail(
            "name what to learn from: --from URL, --file-sd FILE, --prometheus URL or --run DIR", 2
        )
    if jobs and not servers:
        fail("--job is for --prometheus URL", 2)
    if servers and not jobs and (from_token_file or from_basic_file):
        fail(
            "a token or password would be shown to every target of Prometheus; say whose it is:"
            " --job NAME",
            2,
        )
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # before there are threads
    sources = _Sources(
        urls, files, servers, jobs, runs, from_token_file, from_basic_file, from_ca_file
    )
    try:
        predictor, server = _start(
            sources,
            interval_s=interval_s,
            state_dir=state_dir,
            save_s=save_s,
            listen=listen,
            access=access,
        )
    except ModuleNotFoundError as error:
        fail_without_extra(error)
    say(f"metrics at {server.url}/metrics, forecasts at {server.url}/forecast")
    if warning := server.warning():
        say(warning)
    try:
        more = False
        while not wait_for(ending, 0 if more else _IDLE_S):
            more = predictor.turn()
    finally:
        server.stop()
        predictor.end()
    sys.exit(0)


def _start(
    sources: _Sources,
    *,
    interval_s: float,
    state_dir: str | None,
    save_s: float,
    listen: str,
    access: dict[str, Any],
) -> tuple[Predictor, Server]:
    """The predictor and its server, which serves already; exits if an option cannot be used."""
    from functools import partial

    from dwsr_probe.export.server import Access, ServeError, Server, read_secret
    from dwsr_probe.launch import raise_descriptor_limit
    from dwsr_probe.runs import find_run
    from dwsr_probe.say import say
    from dwsr_probe.serve.discovery import (
        Discovery,
        FileSdTargets,
        ListedTargets,
        PrometheusTargets,
    )
    from dwsr_probe.serve.handlers import BODY_BYTES_MOST, ROUTES
    from dwsr_probe.serve.service import Predictor
    from dwsr_probe.serve.state import State, StateError, default_directory
    from dwsr_probe.serve.targets import Login, PortTarget, RunTarget
    from dwsr_probe.store import StoreError

    raise_descriptor_limit()
    try:
        login = Login(
            sources.token_file and read_secret(sources.token_file, "the token"),
            sources.basic_file and read_secret(sources.basic_file, "user:password"),
            sources.ca_file,
        )
        for url in sources.urls:
            PortTarget(url, login)  # an invalid URL is reported at once
        discoveries: list[Discovery] = [
            *([ListedTargets(sources.urls)] if sources.urls else []),
            *(FileSdTargets(path, say) for path in sources.files),
            *(PrometheusTargets(url, sources.jobs, say) for url in sources.servers),
        ]
        address, port = parse_listen(listen)
        state = State(state_dir or default_directory(), say)
        directories = [
            (("run", os.path.abspath(path)), partial(RunTarget, path))
            for path in (find_run(run, say) for run in sources.runs)
        ]
        predictor = Predictor(discoveries, directories, login, state, interval_s, save_s, say)
        server = Server(
            predictor,
            address,
            port,
            Access(**access),
            routes=ROUTES,
            body_bytes_most=BODY_BYTES_MOST,
        )
        server.start()
    except (ServeError, StateError, StoreError) as error:
        fail(error)
    except (ValueError, OSError) as error:  # of a URL, of the file of certificates
        fail(error, 2)
    return predictor, server
