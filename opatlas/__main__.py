"""Runs the command `opatlas` for `python -m opatlas`."""

import sys

from opatlas.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
