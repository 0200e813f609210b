"""Which host names a port of ours answers to. handlers.py checks the Host header of each request.

A page in somebody's browser can have its own name resolve to this machine (DNS rebinding) and
would then read the port as if it were its own server. Such a request carries the page's name,
which is none of ours. An address instead of a name cannot be rebound.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

from dwsr_probe.settings import allowed_hosts

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[\w.-]+)(?::[0-9]*)?", re.ASCII)


class Hosts:
    def __init__(self, more: Iterable[str] = ()) -> None:
        """more: names beside this machine's own: `name`, `.domain` for all names below it, `*`
        for every name."""
        own = socket.gethostname().lower()
        self._short = own.partition(".")[0]
        self._full: str | None = None
        names = [name.strip().lower().rstrip(".") for name in (*more, *allowed_hosts())]
        self._names = {"localhost", "ip6-localhost", own, self._short, *names} - {""}
        self._domains = tuple(name for name in names if name.startswith("."))

    async def admits(self, header: str | None) -> bool:
        """header: the request's Host header; None: the request has none. Browsers always send
        it."""
        if header is None or "*" in self._names:
            return True
        name = name_of(header)
        if name is None:
            return False
        return (
            _is_address(name)
            or name in self._names
            or name.endswith(self._domains)
            or await self._is_full_name(name)
        )

    async def _is_full_name(self, name: str) -> bool:
        """Whether it is this machine's full name, which is looked up once and only for a name
        that begins with our short name: a lookup may take seconds."""
        if name.partition(".")[0] != self._short:
            return False
        if self._full is None:
            self._full = (await asyncio.to_thread(socket.getfqdn)).lower()
        return name == self._full


def name_of(header: str) -> str | None:
    """The host without its port, in lower case; None: not a host."""
    found = _HOST.fullmatch(header.strip())
    return found[1].lower().strip("[]").rstrip(".") if found else None


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
        return True
    except ValueError:
        return False
