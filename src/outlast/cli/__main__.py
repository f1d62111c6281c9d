"""`python -m outlast.cli`: the command line, for a Python that has no `outlast` beside it."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
