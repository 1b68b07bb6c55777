"""Run as `python .../run_module.py MODULE ARGUMENT...`: what `python -m` does, but for the working folder.

`-m` looks for each import in the working folder first, `-P` came with Python 3.11, and msprof is to be given no quotes.
"""

import os
import runpy
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != _HERE]
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
