"""The committed JSON is what build.py makes, and all of it is known to Grafana's own types."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.conftest import require
from tests.dashboards.queries import BOARDS, DASHBOARDS, NAMES


@pytest.fixture(scope="module", autouse=True)
def sdk():
    require(
        importlib.util.find_spec("grafana_foundation_sdk"),
        "grafana-foundation-sdk, as in the extra `test`",
    )


def test_the_same_bytes_again(tmp_path):
    subprocess.run([sys.executable, DASHBOARDS / "build.py", tmp_path], check=True, timeout=600)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        f"{name}.json": (DASHBOARDS / f"{name}.json").read_bytes() for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_types_lose_nothing(name):
    """They drop keys that they do not know without a word: what comes back must be all that went
    in."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    loaded = Dashboard.from_json(json.loads(json.dumps(BOARDS[name])))
    assert {
        type(panel.options).__module__.rsplit(".", 1)[-1]
        for panel in loaded.panels
        if panel.type_val != "row"
    } <= {"stat", "timeseries", "table", "heatmap"}
    assert json.loads(json.dumps(loaded, cls=JSONEncoder)) == BOARDS[name]
