"""The list at the end of `make test`: what failed and what was skipped, by name, and a total
over all targets.

The hooks of pytest (loaded by tests/conftest.py) and tests/c/run.sh write to $TEST_RESULTS: one
line when a test begins and one when it ends. So a target that is killed shows in which test it
was. The Makefile adds the exit code of each target. `python -m tests.results FOLDER TARGET...`
reads these files. It uses the standard library only, because `make` may call any Python.
"""

import os
import sys
from collections import Counter
from pathlib import Path

WORST_FIRST = ("failed", "started", "skipped", "passed")
SLOWEST = 15
PATH = os.environ.pop("TEST_RESULTS", None)  # removed: programs under test may use pytest


def _write(outcome, name, seconds=0.0, reason=""):
    if PATH:
        with open(PATH, "a", encoding="utf-8", errors="backslashreplace") as results:
            results.write(
                "\t".join((outcome, f"{seconds:.2f}", name, " ".join(reason.split())[:300])) + "\n"
            )


def _reason(report):
    if report.skipped:
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash else str(report.longrepr)[-300:]


def pytest_runtest_logstart(nodeid):
    _write("started", nodeid)


def pytest_runtest_logreport(report):
    if report.failed or (report.skipped and not hasattr(report, "wasxfail")):
        _write(report.outcome, report.nodeid, report.duration, _reason(report))
    else:
        _write("passed" if report.when == "call" else "phase", report.nodeid, report.duration)


def pytest_collectreport(report):
    if not report.passed:
        _write(report.outcome, report.nodeid, reason=_reason(report))


class Target:
    """The outcomes of one target's tests, by name. A test with several outcomes has the worst."""

    def __init__(self, path):
        self.name = path.name
        self.outcomes, self.reasons, self.seconds = {}, {}, Counter()
        self.exit_code, self.duration_s = None, 0
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            outcome, seconds, name, reason = line.split("\t")
            if outcome == "exit":
                self.exit_code, self.duration_s = int(name), float(seconds)
            else:
                self._add(outcome, float(seconds), name, reason)
        for name, outcome in self.outcomes.items():
            if outcome == "started":
                self.outcomes[name], self.reasons[name] = "failed", "the target ended in this test"
        if self.exit_code is None:
            self._add("failed", 0, "the target", "did not run")
        elif self.exit_code != 0 and "failed" not in self.outcomes.values():
            self._add("failed", 0, "the target", f"ended with code {self.exit_code}")

    def _add(self, outcome, seconds, name, reason):
        self.seconds[name] += seconds
        before = self.outcomes.get(name, "started")
        if outcome in WORST_FIRST and (
            before == "started" or WORST_FIRST.index(outcome) < WORST_FIRST.index(before)
        ):
            self.outcomes[name] = outcome
            self.reasons[name] = reason

    def named(self, outcome):
        return [name for name, found in self.outcomes.items() if found == outcome]


def summary_line(targets):
    counts = Counter(outcome for target in targets for outcome in target.outcomes.values())
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


def main(folder, *names):
    targets = [Target(Path(folder, name)) for name in names]
    slowest = sorted(
        (
            (target.seconds[name], target.name, name)
            for target in targets
            for name in target.seconds
        ),
        reverse=True,
    )
    print(f"\n== the {SLOWEST} slowest tests, in seconds")
    for seconds, *words in slowest[:SLOWEST]:
        print(f"{seconds:7.1f}", *words)
    print("\n== targets, in seconds")
    for target in targets:
        print(f"{target.duration_s:7.0f} {target.name}: {summary_line([target])}")
    for outcome in ("skipped", "failed"):
        if found := [(target, name) for target in targets for name in target.named(outcome)]:
            print(f"\n== {outcome}")
            for target, name in found:
                print(f"{target.name} {name}: {target.reasons[name]}")
    print("", summary_line(targets), sep="\n", flush=True)
    return any(target.named("failed") for target in targets)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
