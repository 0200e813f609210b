"""`python -m tests.standin build [PYTHON]`: builds for an interpreter, prints the folder. `...
run COMMAND...`: runs a command on the stand-in."""

import os
import sys

from . import environment
from .native import build

match sys.argv[1:]:
    case ["build", *python] if len(python) < 2:
        print(build(*python))
    case ["run", *command] if command:
        print(
            "standin: no GPU is used here. The real CuPy runs on a stand-in in host memory: bytes"
            " are true, values are not.",
            file=sys.stderr,
            flush=True,
        )
        os.execvpe(command[0], command, environment())
    case _:
        sys.exit(__doc__)
