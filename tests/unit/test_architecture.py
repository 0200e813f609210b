"""ARCHITECTURE.md's tour names every source file once, and no file that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".pyx", ".js"}  # a .c beside a .pyx is generated


def tour():
    """{folder: [names in its table]} of the section "Tour of the source"."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = re.search(r"^## Tour of the source.*?\n(.*?)(?=^## )", text, re.M | re.S)[1]
    found = {}
    for part in re.split(r"^### ", section, flags=re.M)[1:]:
        folder = re.match(r"`([\w/]+)/`", part)
        if folder:
            rows = re.findall(r"^\| (`[^|]*) \|", part, re.M)
            found[folder[1]] = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    return found


def files(folder):
    """Stems, for a source and its header are one entry; what only marks a package has none."""
    suffixes = {".c", ".h"} if folder == "csrc" else SUFFIXES
    return {
        path.stem
        for path in (ROOT / folder).iterdir()
        if path.suffix in suffixes and path.stem not in ("__init__", "__main__")
    }


def folders():
    sources = (p for p in (ROOT / "dwsr_probe").rglob("*") if p.suffix in SUFFIXES)
    return ["csrc", *sorted({str(path.parent.relative_to(ROOT)) for path in sources})]


@pytest.mark.parametrize("folder", folders())
def test_the_tour_names_each_file_once(folder):
    named = tour().get(folder)
    if not files(folder):
        return
    assert named is not None, f"ARCHITECTURE.md's tour has no part `{folder}/`"
    missing, gone = files(folder) - set(named), set(named) - files(folder)
    assert not missing, f"add to the tour of {folder}/ what these are: {sorted(missing)}"
    assert not gone, f"the tour of {folder}/ has files that are not there: {sorted(gone)}"
    assert len(named) == len(set(named)), f"a file of {folder}/ is named twice"


def test_no_folder_that_is_not_there():
    assert set(tour()) <= set(folders())
