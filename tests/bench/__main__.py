"""python -m tests.bench [--quick] [NAME...]: run the benchmarks, all of them or those named. Not
quick: their sections of BENCHMARKS.md are written anew."""

import sys
from importlib import import_module

from tests.bench import book


def main():
    quick = "--quick" in sys.argv
    for name in [word for word in sys.argv[1:] if not word.startswith("-")] or book.NAMES:
        print(f"... {name}", file=sys.stderr, flush=True)
        text = import_module(f"tests.bench.{name}").run(quick).markdown()
        print(text, flush=True)
        if not quick:
            book.write(name, text)


main()
