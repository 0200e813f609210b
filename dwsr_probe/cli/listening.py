"""What commands that open a port have in common: where the port listens and who may read it."""

from __future__ import annotations

from dwsr_probe.cli import fail
from dwsr_probe.cli.options import Option, Path, Text, click_options

ACCESS = (
    Option(
        "--tls-cert",
        "cert",
        value_type=Path(),
        metavar="FILE",
        help="Serve HTTPS with this certificate (PEM).",
    ),
    Option(
        "--tls-key",
        "key",
        value_type=Path(),
        metavar="FILE",
        help="Its key, if it is not in the same file.",
    ),
    Option(
        "--token-file",
        value_type=Path(),
        metavar="FILE",
        help="Ask for the bearer token in this file's first line.",
    ),
    Option(
        "--basic-file",
        value_type=Path(),
        metavar="FILE",
        help="Ask for user:password as in this file's first line.",
    ),
    Option(
        "--allow-host",
        "allow_hosts",
        value_type=Text(),
        multiple=True,
        metavar="NAME",
        help=(
            "Answer to this host name, too, not only to this machine's own names and to addresses;"
            " .DOMAIN: all names below it; may be repeated."
        ),
    ),
)
access_options = click_options(ACCESS)


def parse_listen(text: str) -> tuple[str, int]:
    """[ADDR:]PORT as the user wrote it; exits with a message if it is none."""
    from dwsr_probe.export.server import parse_address

    try:
        return parse_address(text)
    except ValueError:
        fail(f"{text!r} is not [ADDR:]PORT; write 9464, 0.0.0.0:9464 or [::1]:9464", 2)
