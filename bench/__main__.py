"""`python -m bench COMMAND`: what the replays know of themselves. (`pytest bench/` runs them.)"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import kernels
from database.commands import run_command

COMMANDS = {
    "kernels": kernels,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    return run_command("python -m bench", "What is known of the replays.", COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
