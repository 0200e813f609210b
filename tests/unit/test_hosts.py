"""Which Host headers are admitted, and that every handler asks."""

import asyncio
import http.client
import socket

import pytest

from dwsr_probe.export import hosts as hosts_module
from dwsr_probe.export.handlers import (
    BaseHandler,
    DiscoveryHandler,
    HealthyHandler,
    IndexHandler,
    MetricsHandler,
    NotFoundHandler,
    ProcessesHandler,
    TasksHandler,
)
from dwsr_probe.export.hosts import Hosts, name_of
from dwsr_probe.export.server import Access, Server
from tests.unit.test_server import Endless

OWN = socket.gethostname().lower()


def admits(header, *more):
    return asyncio.run(Hosts(more).admits(header))


@pytest.fixture
def full_name(monkeypatch):
    """This machine's, as its resolver says; counts how often it is asked."""
    asked = []
    monkeypatch.setattr(hosts_module.socket, "gethostname", lambda: "node17")
    monkeypatch.setattr(
        hosts_module.socket, "getfqdn", lambda: asked.append(1) or "Node17.cluster.example"
    )
    return asked


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "LOCALHOST:9464",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:9464",
        "[::1]:9464",
        "[::1]",
        "[fe80::1%eth0]:80",
        "10.1.2.3:1",
        "192.168.0.1",
        None,
        OWN,
        f"{OWN.upper()}:9464",
        "[::ffff:127.0.0.1]",
    ],
)
def test_addresses_and_own_names(header):
    assert admits(header)


@pytest.mark.parametrize(
    "header",
    [
        "evil.example",
        "evil.example:9464",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        " ",
        "a b",
        "x@localhost",
        "localhost/",
        "localhost:x",
        "[evil.example]",
        "[::1",
        "::1",
        "localhost,evil.example",
        "evil.example#localhost",
        "é",
        "127.0.0.1\x00",
        "2130706433",
        f"evil.{OWN}x",
        "[]",
        ":9464",
    ],
)
def test_all_other_names(header):
    assert not admits(header)


def test_names_that_are_allowed(monkeypatch):
    assert admits("predictor:9466", "Predictor") and not admits("x.predictor", "predictor")
    assert (
        admits("a.b.svc.cluster.local:80", ".svc.cluster.local")
        and not admits("svc.cluster.local.evil", ".svc.cluster.local")
        and not admits("evilsvc.cluster.local", ".svc.cluster.local")
    )
    assert admits("whatever", "*") and admits("évil", "*")
    monkeypatch.setenv("DWSR_PROBE_ALLOW_HOSTS", "one, .two three")
    assert (
        admits("one")
        and admits("x.two")
        and admits("three:5")
        and not admits("four")
        and not admits("two")
    )


def test_the_full_name_is_asked_for_once_and_only_where_it_may_be_ours(full_name):
    async def ask():
        hosts = Hosts()
        found = [
            await hosts.admits(header)
            for header in ("node17", "evil.example", "node18.cluster.example")
        ]
        assert not full_name
        return found + [
            await hosts.admits(header)
            for header in (
                "node17.cluster.example:9464",
                "node17.evil.example",
                "node17.cluster.example.",
            )
        ]

    assert asyncio.run(ask()) == [True, False, False, True, False, True] and len(full_name) == 1


def test_names_of_headers():
    assert [name_of(header) for header in ("A.b:5", "[::1]:5", "x", "x:", "x:y", "")] == [
        "a.b",
        "::1",
        "x",
        "x",
        None,
        None,
    ]


# -- on a real port


def status(port, path, host, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", path, headers={"Host": host, **(headers or {})})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_every_page_of_a_port_asks(tmp_path):
    source = Endless()
    source.empty = True
    source.workers = list
    (tmp_path / "token").write_text("secret")
    server = Server(
        source,
        "127.0.0.1",
        0,
        Access(token_file=str(tmp_path / "token"), allow_hosts=("export",)),
        discovery=True,
        advertise="node5.cluster:9464",
    )
    server.start()
    key = {"Authorization": "Bearer secret"}
    try:
        for path in ("/", "/metrics", "/dwsr/tasks", "/-/healthy", "/sd", "/nothing"):
            refused = status(server.port, path, "evil.example", key)
            assert refused[0] == 403 and "--allow-host" in refused[1] and "evil" not in refused[1]
            # nor is a password asked for
            assert status(server.port, path, "evil.example")[0] == 403
            assert status(server.port, path, "localhost")[0] == 401
            for host in ("localhost:1", "127.0.0.1", "export:9464", "node5.cluster:9464", OWN):
                assert status(server.port, path, host, key)[0] == (
                    404 if path == "/nothing" else 200
                )
        assert source.reads  # by those that may
    finally:
        server.stop()


def test_no_handler_has_a_check_of_its_own():
    assert all(
        handler.prepare is BaseHandler.prepare
        for handler in (
            DiscoveryHandler,
            HealthyHandler,
            IndexHandler,
            MetricsHandler,
            NotFoundHandler,
            ProcessesHandler,
            TasksHandler,
        )
    )
