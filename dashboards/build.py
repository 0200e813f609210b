"""`python dashboards/build.py [DIRECTORY]`: writes the dashboards as JSON, the same bytes each
time. Needs grafana-foundation-sdk, for developers only.

boards/ has one file per dashboard, queries.py the expressions that they share, panels.py the kinds
of panels. The first row of each dashboard answers its question at a glance; the rows below show
where to look next. README.md says what each dashboard is for.
"""

import json
import sys
from pathlib import Path

from boards.gpu import gpu
from boards.overview import overview
from boards.probe import probe
from boards.task import task
from boards.worker import worker
from grafana_foundation_sdk.cog.encoder import JSONEncoder

DASHBOARDS = {"overview": overview, "task": task, "worker": worker, "gpu": gpu, "probe": probe}


def json_text(dashboard):
    return (
        json.dumps(dashboard, cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


def main(directory=Path(__file__).parent):
    for name, dashboard in DASHBOARDS.items():
        (Path(directory) / f"{name}.json").write_text(json_text(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
