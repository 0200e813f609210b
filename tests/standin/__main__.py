"""`python -m tests.standin build [PYTHON]`: builds for an interpreter, prints the folder."""
import sys

from .native import build

if sys.argv[1:2] != ["build"] or len(sys.argv) > 3:
    sys.exit(__doc__)
print(build(*sys.argv[2:]))
