"""The documentation as far as a machine can read it: every command and option has its place, no
other option is promised, no link is dead."""

import importlib
import re
from pathlib import Path

import click
import pytest

from dwsr_probe.cli import COMMANDS
from dwsr_probe.record import FIELDS, TYPES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    p
    for pattern in ("*.md", "*/*.md", "*/*/*.md")
    for p in ROOT.glob(pattern)
    if not any(
        part.startswith(".") or part.endswith("-info") or part in ("build", "dist")
        for part in p.relative_to(ROOT).parts
    )
)
# of programs that the pages call beside ours
OF_OTHERS = {"--preload", "--dashboard-address", "--config", "--nodes", "--profile", "--target"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def commands(name):
    """A command and what stands beside it in its file, such as `predict serve`."""
    return [
        value
        for value in vars(importlib.import_module(f"dwsr_probe.cli.{name}")).values()
        if isinstance(value, click.Command)
    ]


def options(name):
    """{every name of every option} of a command."""
    return {
        text
        for command in commands(name)
        for p in command.params
        if isinstance(p, click.Option)
        for text in [*p.opts, *p.secondary_opts]
    }


ALL = {option for name in COMMANDS for option in options(name)} | {"--help", "--version"}


# Which port has which role, in all files: what one page starts, another finds.
PORTS = {"export": "9464", "run": "9465", "predict": "9466"}
ROLES = [
    (r"--metrics (?:[\w.:\[\]]+:)?(\d{4})", "run"),
    (r"\bexport\W+--listen\W+(?:[\d.]+:)?(\d{4})", "export"),
    (r"serve --listen (?:[\d.]+:)?(\d{4})", "predict"),
    (r":(\d{4})/forecast", "predict"),
]


def test_a_port_has_one_role_in_all_files():
    files = [
        *PAGES,
        *(
            p
            for folder in ("deploy", "dashboards", "dwsr_probe/cli")
            for p in (ROOT / folder).rglob("*")
            if p.is_file() and p.suffix not in (".json", ".pyc")
        ),
    ]
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    wrong = [
        (str(path), found[0])
        for path, text in texts.items()
        for pattern, role in ROLES
        for found in re.finditer(pattern, text)
        if found[1] != PORTS[role]
    ]
    assert (
        not wrong
        and len([path for path, text in texts.items() if f"--metrics {PORTS['run']}" in text]) >= 4
    )
    assert {port for text in texts.values() for port in re.findall(r"\b946\d\b", text)} == set(
        PORTS.values()
    )
    for name, module, command in (("export", "export", "command"), ("predict", "predict", "serve")):
        (option,) = (
            p
            for p in vars(importlib.import_module(f"dwsr_probe.cli.{module}"))[command].params
            if p.name == "listen"
        )
        assert option.default.endswith(f":{PORTS[name]}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name):
    page = DOCS / f"{name}.md"
    assert page.is_file(), f"no page for `dwsr-probe {name}`: docs/{name}.md"
    text = page.read_text()
    assert f"dwsr-probe {name}" in text
    for command in commands(name):
        assert command.name == name or f"dwsr-probe {name} {command.name}" in text
    missing = {
        option
        for option in options(name)
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
    }
    assert not missing, f"docs/{name}.md does not say what {', '.join(sorted(missing))} is"
    # In a table of options: those of this command only.
    promised = {
        option
        for line in text.splitlines()
        if line.startswith("| `-")
        for option in OPTION.findall(line.split("|")[1])
    }
    assert promised <= options(name), f"docs/{name}.md promises {promised - options(name)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_other_option_is_promised(page):
    found = {option for line in page.read_text().splitlines() for option in OPTION.findall(line)}
    assert found <= ALL | OF_OTHERS, f"{page.name} promises {found - ALL - OF_OTHERS}"


def test_others_options_are_named_somewhere():
    text = "\n".join(page.read_text() for page in PAGES)
    gone = OF_OTHERS.difference(OPTION.findall(text))
    assert not gone and not OF_OTHERS & ALL


def test_every_field_of_the_record_is_documented():
    text = (DOCS / "figures.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| \S", text, re.M)
    assert rows == [(name, TYPES[name].__name__) for name in FIELDS]


def test_every_page_is_linked_from_the_readme():
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in links(ROOT / "README.md")}
    missing = {page.name for page in DOCS.glob("*.md")} - {
        path.name for path in linked if path.parent == DOCS
    }
    assert not missing, f"README.md does not link {missing}"
    table = (ROOT / "README.md").read_text()
    assert all(f"`dwsr-probe {name}" in table for name in COMMANDS)


def prose(text):
    """Without code: in it, brackets are not links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def links(page):
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text()))
        if not re.match(r"[a-z]+:", target)
    ]


def anchors(page):
    """As GitHub makes them from headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), flags=re.M
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_link_is_dead(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links {target}"
        assert not anchor or anchor in anchors(found), (
            f"{page.name} links {target}, which has no such heading"
        )
