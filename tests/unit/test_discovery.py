"""Where targets are found: files that change or are damaged, and a Prometheus that is none."""

import json
import os

import pytest

from dwsr_probe.serve.discovery import FileSdTargets, ListedTargets, PrometheusTargets
from tests.unit.workers import FakeWorker


@pytest.fixture
def said():
    return []


def test_a_list_stays():
    assert ListedTargets(["a:1", "b:2"]).find() == ["a:1", "b:2"]


def test_a_file_is_read_again_when_it_changes(tmp_path, said):
    path = tmp_path / "targets.json"
    place = FileSdTargets(path, said.append)
    assert place.find() is None and len(said) == 1 and "trying again" in said[0]
    assert place.find() is None and len(said) == 1  # said once
    path.write_text(
        '[{"targets": ["a:1", "b:2"]}, {"targets": ["c:3"], "labels": {"__scheme__": "https",'
        ' "job": "x"}}]'
    )
    assert place.find() == ["http://a:1", "http://b:2", "https://c:3"]
    assert place.find() is None  # as before
    path.write_text("[]")
    os.utime(path, ns=(1, 1))
    assert place.find() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "5",
        "null",
        '{"targets": []}',
        '[{"targets": 5}]',
        "[5]",
        '["x"]',
        '[{"labels": {}}]',
        '[{"targets": ["a:1"], "labels": 5}]',
        "\xff",
    ],
)
def test_a_damaged_file_leaves_the_targets_as_they_were(tmp_path, said, text):
    path = tmp_path / "targets.json"
    path.write_bytes(text.encode("latin-1"))
    place = FileSdTargets(path, said.append)
    assert place.find() is None and len(said) == 1 and str(path) in said[0]


def active(*targets):
    return json.dumps(
        {
            "status": "success",
            "data": {
                "activeTargets": [
                    {
                        "scrapeUrl": url,
                        "scrapePool": job,
                        "labels": {"job": job, "instance": "x"},
                        "health": "up",
                    }
                    for job, url in targets
                ]
            },
        }
    ).encode()


@pytest.fixture
def server():
    found = FakeWorker(
        body=active(
            ("dask", "http://a:1/metrics"),
            ("dask", "https://b:2/other?x=1"),
            ("node", "http://c:3/metrics"),
        )
    )
    yield found
    found.close()


def test_prometheus_tells_its_targets(server, said):
    assert PrometheusTargets(server.url, say=said.append).find() == [
        "http://a:1",
        "https://b:2",
        "http://c:3",
    ]
    assert PrometheusTargets(server.url + "/prefix/", ["dask"], said.append).find() == [
        "http://a:1",
        "https://b:2",
    ]
    assert (
        server.asked == ["/api/v1/targets?state=active", "/prefix/api/v1/targets?state=active"]
        and not said
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{}",
        b"5",
        b"null",
        b'{"data": null}',
        b'{"data": {"activeTargets": [5]}}',
        b'{"data": {"activeTargets": [{"scrapeUrl": 5}]}}',
    ],
)
def test_a_prometheus_that_is_none(server, said, body):
    place = PrometheusTargets(server.url, say=said.append)
    server.body = body
    assert place.find() is None and place.find() is None and len(said) == 1
    server.body = active()
    assert place.find() == []
    server.status = 503
    assert place.find() is None and len(said) == 2


def test_nobody_there(said):
    assert PrometheusTargets("127.0.0.1:9", say=said.append).find() is None and "refused" in said[0]
