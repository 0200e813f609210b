"""Which names a port of ours answers to: the Host header of each request is checked.

A page in somebody's browser can have its own name resolve to this machine (DNS rebinding) and
would then read the port as if it were its own server. Such a request carries the page's name,
which is none of ours. An address instead of a name cannot be rebound.
"""

import asyncio
import re
import socket
from ipaddress import ip_address

from dwsr_probe.settings import allowed_hosts

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[\w.-]+)(?::[0-9]*)?", re.ASCII)


class Hosts:
    def __init__(self, more=()):
        """more: names beside this machine's own: `name`, `.domain` for all names below it, `*`
        for every name."""
        own = socket.gethostname().lower()
        self._short, self._full = own.partition(".")[0], None
        names = [name.strip().lower().rstrip(".") for name in (*more, *allowed_hosts())]
        self._names = {"localhost", "ip6-localhost", own, self._short, *names} - {""}
        self._domains = tuple(name for name in names if name.startswith("."))

    async def admits(self, header):
        """header: the request's Host, None if it has none: no browser leaves it out."""
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

    async def _is_full_name(self, name):
        """Only a name that begins as ours is looked up, once: it may take seconds."""
        if name.partition(".")[0] != self._short:
            return False
        if self._full is None:
            self._full = (await asyncio.to_thread(socket.getfqdn)).lower()
        return name == self._full


def name_of(header):
    """Without the port, in lower case; None: not a host."""
    found = _HOST.fullmatch(header.strip())
    return found and found[1].lower().strip("[]").rstrip(".")


def _is_address(text):
    try:
        ip_address(text.partition("%")[0])
        return True
    except ValueError:
        return False
