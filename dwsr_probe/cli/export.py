from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

import click

from dwsr_probe.cli import fail
from dwsr_probe.cli.listening import access_options, parse_listen

COLLECT_PERIOD_S = 0.5


@click.command("export")
@click.option(
    "--listen",
    default="127.0.0.1:9464",
    show_default=True,
    metavar="[ADDR:]PORT",
    help="Where to serve. Loopback unless an address is given; 0: any free port.",
)
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
    "--keep",
    type=click.IntRange(1_000, 1_000_000),
    default=50_000,
    show_default=True,
    metavar="N",
    help="How many finished records the stream keeps, in memory.",
)
@click.option(
    "--file-sd",
    type=click.Path(),
    metavar="FILE",
    help="Write this exporter as a target for Prometheus' file_sd; removed at the end.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="How Prometheus reaches it, for --file-sd and /sd. [this host's name and the port]",
)
@access_options
def command(
    listen: str,
    directories: tuple[str, ...],
    keep: int,
    file_sd: str | None,
    advertise: str | None,
    **access: Any,
) -> None:
    """Serve all boards of this machine: one exporter for SLURM nodes, shared machines,
    Kubernetes sidecars.

    Processes come and go, counters never go back. Only reads: boards stay where they are.
    /metrics, /dwsr/tasks, and /sd for service discovery. Runs until SIGINT or SIGTERM.
    """
    from dwsr_probe.export.server import Access, ServeError, Server
    from dwsr_probe.export.sources.machine import MachineSource
    from dwsr_probe.launch import raise_descriptor_limit
    from dwsr_probe.say import say
    from dwsr_probe.signals import wait_for

    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    raise_descriptor_limit()
    try:
        machine = MachineSource([os.path.abspath(d) for d in directories], keep, say)
        server = Server(
            machine, *parse_listen(listen), Access(**access), discovery=True, advertise=advertise
        )
        server.start()
        target = _write_file_sd(file_sd, advertise or f"{socket.gethostname()}:{server.port}")
    except ServeError as error:
        fail(error)
    say(f"metrics at {server.url}/metrics")
    if warning := server.warning():
        say(warning)
    try:
        while not wait_for(ending, COLLECT_PERIOD_S):
            machine.collect()
    finally:
        if target:
            _remove_file(target)
        server.stop()
    sys.exit(0)


def _write_file_sd(path: str | None, address: str) -> str | None:
    """Write the file of --file-sd, completely or not at all. Return its path; None without the
    option."""
    if path is None:
        return None
    from dwsr_probe.export.server import ServeError

    part = f"{path}.{os.getpid()}"
    try:
        with open(part, "w", encoding="utf-8") as f:
            json.dump([{"targets": [address], "labels": {"dwsr_kind": "exporter"}}], f)
        os.replace(part, path)
    except OSError as error:
        _remove_file(part)
        raise ServeError(f"cannot write {path}: {error}") from error
    return path


def _remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # somebody else removed it, or it was never written
        pass
