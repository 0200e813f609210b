"""The README's pictures, from a real run: `make pictures`. Needs chromium and tmux, and the
package with its extras dask, predict and report."""

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROBE = (sys.executable, "-m", "dwsr_probe")
COLUMNS, LINES = 110, 24


def svg(name, title, ansi, width=COLUMNS):
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text.from_ansi(ansi.rstrip("\n")), no_wrap=True, crop=True)
    (HERE / name).write_text(console.export_svg(title=title, unique_id=name.removesuffix(".svg")))


def top_while(run):
    """`top` on the running job, in a terminal of tmux, caught when most is going on."""
    server = ("tmux", "-L", f"dwsr-pictures-{os.getpid()}", "-f", os.devnull)
    job = subprocess.Popen(
        [*PROBE, "run", "-q", "-o", run, "python", "examples/dask_attributes.py"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        [
            *server,
            "new-session",
            "-d",
            "-x",
            str(COLUMNS),
            "-y",
            str(LINES),
            *PROBE,
            "top",
            "--board-dir",
            os.environ["DWSR_PROBE_BOARD_DIR"],
        ],
        check=True,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )
    best = ""
    try:
        while job.poll() is None:
            shown = subprocess.run(
                [*server, "capture-pane", "-e", "-p"], capture_output=True, text=True
            ).stdout
            if shown.count("semblance") + shown.count("envelope") >= best.count(
                "semblance"
            ) + best.count("envelope"):
                best = shown
            time.sleep(0.2)  # one look; the job's end ends it
    finally:
        subprocess.run([*server, "kill-server"], capture_output=True)
    return best


def main():
    with tempfile.TemporaryDirectory() as directory:
        # this job's alone
        os.environ.update(
            DWSR_PROBE_BOARD_DIR=f"{directory}/boards",
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        )
        run, page = Path(directory) / "attributes", Path(directory) / "report.html"
        svg("top.svg", "dwsr-probe top", top_while(run))
        asked = [
            *PROBE,
            "predict",
            run,
            "--task",
            "semblance",
            "--shape",
            "160,160,256",
            "--dtype",
            "float32",
            "--limit",
            "2GB",
        ]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        svg(
            "predict.svg",
            "dwsr-probe predict RUN --task semblance --shape 160,160,256 --dtype float32"
            " --limit 2GB",
            said,
            100,
        )
        subprocess.run(
            [*PROBE, "report", run, "--format", "html", "-o", page],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        browser = (
            shutil.which("chromium")
            or shutil.which("chromium-browser")
            or shutil.which("google-chrome")
        )
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--window-size=1180,1240",
                "--virtual-time-budget=6000",
                f"--screenshot={HERE / 'report.png'}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main()
