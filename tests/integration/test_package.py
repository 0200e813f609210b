"""What users install: source archive → wheel → an environment of its own, and the command line
in it."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PY = sys.executable


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_from_source_archive_to_a_probed_job(tmp_path):
    source = tmp_path / "source"  # a clean copy: the build writes into its tree
    files = run(
        "git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"
    ).stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(PY, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, source)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {
        "csrc/probe.c",
        "csrc/board_layout.h",
        "csrc/board_layout.pxd",
        "dwsr_probe/_core.pyx",
        "dwsr_probe/binding/tasks.pxd",
        "LICENSE",
    } <= names
    made_by_cython = [n for n in names if n.startswith("dwsr_probe/") and n.endswith(".c")]
    assert not made_by_cython
    run(
        PY, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", tmp_path, archive
    )
    (wheel,) = tmp_path.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert {
        f"dwsr_probe/report/{name}"
        for name in (
            "compare/page.html",
            "html/page.html",
            "html/page.css",
            "html/page.js",
            "html/timeline.js",
        )
    } <= set(inside)
    assert {"dwsr_probe/py.typed", "dwsr_probe/_core.pyi"} <= set(inside)
    assert "dwsr_probe/boot/sitecustomize.py" in inside and not [
        n for n in inside if n.startswith(("tests/", "csrc/")) or n.endswith(".c")
    ]

    run(PY, "-m", "venv", tmp_path / "venv")
    bin_ = tmp_path / "venv" / "bin"
    run(bin_ / "pip", "install", "-q", wheel)
    env = {
        "PATH": f"{bin_}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "DWSR_PROBE_BOARD_DIR": str(tmp_path / "boards"),
    }
    done = run(
        bin_ / "dwsr-probe",
        "run",
        "python",
        "-c",
        "import dwsr_probe\nwith dwsr_probe.task('installed'): pass",
        cwd=tmp_path,
        env=env,
    )
    assert "installed" in done.stderr and "ok" in done.stderr
    assert "samples/s" in run(bin_ / "dwsr-probe", "doctor", cwd=tmp_path, env=env).stdout
    # In a checkout, whose package is not built: it hides the installed one from every Python that
    # is started there.
    assert not list(source.glob("dwsr_probe/_core*.so"))
    shadowed = run(bin_ / "dwsr-probe", "doctor", cwd=source, env=env).stdout
    assert (
        "✗" not in shadowed
        and "samples/s" in shadowed
        and "source tree of the same name" in shadowed
        and "pip install -e ." in shadowed
    )
    for words in (["-m", "dwsr_probe", "doctor"], ["-c", "import dwsr_probe; dwsr_probe.start()"]):
        done = subprocess.run(
            [bin_ / "python", *words], capture_output=True, text=True, cwd=source, env=env
        )
        assert (
            done.returncode == 1
            and "is a source tree whose extension is not built" in done.stderr.splitlines()[-1]
        )
    job = run(
        bin_ / "dwsr-probe",
        "run",
        "python",
        "-c",
        "import dwsr_probe\nwith dwsr_probe.task('installed'): pass",
        cwd=source,
        env=env,
    )
    assert "installed" in job.stderr
    assert run(bin_ / "dwsr-probe", "--version", env=env).stdout.strip().endswith("0.1.0")
