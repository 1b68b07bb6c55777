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

COMMANDS = {
    "doctor": doctor,
    "kernels": kernels,
    "probe-dispatch-ffn-combine": probe_dispatch_ffn_combine,
    "validate-comm": validate,
}


def parser() -> argparse.ArgumentParser:
    """What reads the command line."""
    return parser_of("python -m bench", "What is known of the replays and of this machine.", COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    return run_command(parser(), arguments)


if __name__ == "__main__":
    sys.exit(main())
