"""python -m tests.bench.predict [--quick] [--measure] [--tuning-only] [--final] [PART...]: evaluate
the forecasts, all parts or those named.

--tuning-only: tuning groups only, ours and one baseline, few orders: for use while tuning.
--final: also print single results of the frozen operators and families.
--quick: fewer orders and records. --measure: measure the operators and programs again.
BENCHMARKS.md is written only by a full run."""

import sys

from tests.bench import book
from tests.bench.predict import unicamp
from tests.bench.predict.data import Data
from tests.bench.predict.parts import cold, families, far, params, replayed, rolling, small, speed

PARTS = {
    "small": small.run,
    "rolling": rolling.run,
    "far": far.run,
    "params": params.run,
    "families": families.run,
    "cold": cold.run,
    "replay": replayed.run,
    "speed": speed.run,
}
OPTIONS = ("--quick", "--measure", "--tuning-only", "--final")


def main(arguments):
    options = {word for word in arguments if word.startswith("-")}
    chosen = [word for word in arguments if word not in options] or list(PARTS)
    if unknown := [*options.difference(OPTIONS), *set(chosen).difference(PARTS)]:
        sys.exit(f"unknown: {', '.join(unknown)}\n\n{__doc__}")
    data = Data(*(option in options for option in OPTIONS))
    text = "" if data.tuning_only else head(data)
    for part in chosen:
        text += "\n" + "\n".join("#" + section.markdown() for section in PARTS[part](data))
    print(text)
    if options <= {"--measure", "--final"} and chosen == list(PARTS):
        book.write("predict", text)


def head(data):
    text = (
        f"## Prediction\n\n{len(data.own)} operators measured here by the probe,"
        f" {sum(map(len, data.own.values())):,} tasks:"
        f" {', '.join(f'{len(names)} {group}' for group, names in data.groups.items())}. `python"
        " -m tests.bench.predict`.\n"
    )
    return text + ("" if data.unicamp else f"\n{unicamp.SKIPPED}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
