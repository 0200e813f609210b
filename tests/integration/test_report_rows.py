"""Views of a real graph: operators that are methods, under one prefix of their keys, are rows with
the operators' names."""

import json
import sys

import pytest

pytest.importorskip("dask.array")
PY = sys.executable
# As DASF passes its operators.
JOB = """
import sys
import dask, dask.array as da, numpy as np

class Smooth:
    def __operation(self, block):
        return block * 2
    def transform(self, x):
        return x.map_overlap(self.__operation, depth=1, boundary="none")

class Chaos:
    def __operation(self, block):
        return np.sqrt(block) + np.ones_like(block)
    def transform(self, x):
        return x.map_blocks(self.__operation)

n = int(sys.argv[1])
x = da.from_array(np.random.default_rng(0).random((1200, 1200)), chunks=(n, n))
sources = [Smooth().transform(x), Chaos().transform(x)]
with dask.config.set(scheduler="threads", num_workers=2):
    da.store(sources, [np.zeros(x.shape) for _ in sources])
"""


def rows(text):
    """The first words of the lines of a table."""
    return [line.split("  ")[0] for line in text.splitlines()]


def test_operators_that_are_methods_are_rows_in_every_view(cli):
    script = cli.script(JOB)
    for name, n in (("small", 300), ("large", 600)):
        done = cli("run", "-o", name, PY, script, n)
        assert done.returncode == 0 and {"Smooth", "Chaos"} <= set(rows(done.stderr)), done.stderr
        assert "store-map" not in done.stderr
    for asked, counts in (("store-map", (16, 16)), ("Smooth", (16, 0)), ("store", (16, 16))):
        found = [
            json.loads(line)
            for line in cli(
                "report", "small", "--task", asked, "--format", "json"
            ).stdout.splitlines()
        ]
        operations = [record["operation"] for record in found]
        assert (operations.count("Smooth"), operations.count("Chaos")) == counts
        assert {record["kind"] for record in found} == {"task"}
    shown = cli("report", "small", "--task", "Chaos").stdout
    assert "Chaos" in rows(shown) and "Smooth" not in rows(shown)
    none = cli("report", "small", "--task", "Gst")
    assert none.returncode == 2 and none.stdout == "" and "no task is called 'Gst'" in none.stderr
    assert "Chaos" in none.stderr and "Smooth" in none.stderr
    page = cli("report", "small", "--format", "html", "--task", "Chaos")
    text = (cli.cwd / "small" / "report.html").read_text()
    assert page.returncode == 0 and "<code>Chaos</code>" in text
    assert "<code>Smooth</code>" not in text and "key store-map</div>" in text
    # other blocks are no alarm, in either direction
    for a, b in (("small", "large"), ("large", "small")):
        done = cli("report", "--compare", a, b, "--fail-above", "5%", "--format", "json")
        assert done.returncode == 0, done.stdout
        found = {name["label"]: name for name in json.loads(done.stdout)["names"]}
        assert {"Smooth", "Chaos"} <= found.keys()
        for name in ("Smooth", "Chaos"):
            assert found[name]["task_name"] == "store-map" and found[name]["operation"] == name
            assert found[name]["verdict"] in ("no difference", "within noise"), found[name]
    # what ran, as lines
    top = cli("top", "small", "--plain")
    assert top.returncode == 0 and "exit code 0" in top.stdout
