"""`python -m bench COMMAND`: what is known of replays and of this machine. (`pytest bench/` runs them.)"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.collectives import validate
from bench.dispatch_ffn_combine import probe as probe_dispatch_ffn_combine
from bench.doctor import command as doctor
from bench.kernels import command as kernels
from database.commands import parser_of, run_command

_PROG = "python -m bench"
COMMANDS = {
    "doctor": doctor,
    "kernels": kernels,
    "probe-dispatch-ffn-combine": probe_dispatch_ffn_combine,
    "validate-comm": validate,
}


def parser(prog: str = _PROG) -> argparse.ArgumentParser:
    """Returns what reads the command line; `prog` is what the user ran."""
    return parser_of(prog, "What is known of the replays and of this machine.", COMMANDS)


def main(arguments: Sequence[str] | None = None, prog: str = _PROG) -> int:
    """Runs a command; gives the exit status. `prog` is what the user ran, for usage messages."""
    return run_command(parser(prog), arguments)


if __name__ == "__main__":
    sys.exit(main())
