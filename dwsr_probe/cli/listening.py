"""What commands that open a port have in common: where it listens and who may read."""
import click

from dwsr_probe.cli import fail

_OPTIONS = (
    click.option("--tls-cert", "cert", type=click.Path(), metavar="FILE", help="Serve HTTPS with this certificate (PEM)."),
    click.option("--tls-key", "key", type=click.Path(), metavar="FILE", help="Its key, if it is not in the same file."),
    click.option("--token-file", "token_file", type=click.Path(), metavar="FILE", help="Ask for the bearer token in this file's first line."),
    click.option("--basic-file", "basic_file", type=click.Path(), metavar="FILE", help="Ask for user:password as in this file's first line."),
    click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME",
                 help="Answer to this host name, too, not only to this machine's own names and to addresses; .DOMAIN: all names below it; may be repeated."),
)


def access_options(function):
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def parse_listen(text):
    from dwsr_probe.export.server import parse_address
    try:
        return parse_address(text)
    except ValueError:
        fail(f"{text!r} is not [ADDR:]PORT; write 9464, 0.0.0.0:9464 or [::1]:9464", 2)
