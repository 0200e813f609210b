"""No test fails because a machine is slow: the limits of what tests wait for are there for what
never comes."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LIMIT = re.compile(r"""\b(?:timeout=|timeout"?:\s*|\.wait\(|\.join\()(\d[\d_]*(?:\.\d+)?)\b""")
LEAST_S = 300


def test_limits_are_generous():
    """Less than a second is a pause, not a limit. tests/bench measures time, and fails on none."""
    short = []
    for path in TESTS.rglob("*.py"):
        if path.relative_to(TESTS).parts[0] == "bench" or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            short += [
                f"{path.relative_to(TESTS)}:{number}: {found[0]}"
                for found in LIMIT.finditer(line)
                if 1 <= float(found[1]) < LEAST_S and "wait_s" not in line
            ]
    assert not short, f"below {LEAST_S} s, too short for a slow machine:\n" + "\n".join(short)
