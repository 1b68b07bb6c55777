"""Tests the data of a database. Each check and kernel type is a case of pytest.

Options that are not listed here are pytest's: -k, -x, -v, -rx, --junit-xml and others. -vv lists every finding, and not
only the five worst of each case. --strict fails known and advisory findings, and entries of known_findings.yaml without
a finding.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

from opatlas.cli.arguments import add_database, add_json, is_terminal, write_or_print_json
from opatlas.errors import OpAtlasError, UsageError
from opatlas.installation import require_extra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s DB [--against OTHER] [--json FILE] [options of pytest]"
    parser.epilog = (
        "exit status: 0 no findings, or known and advisory ones alone; 1 findings; 2 wrong usage; else pytest's own"
    )
    add_database(parser)
    parser.add_argument(
        "--against",
        type=Path,
        metavar="OTHER",
        help="another database: rows of the same case with another duration are findings (default: no comparison)",
    )
    add_json(parser, "all findings")


def run(arguments: argparse.Namespace, for_pytest: Sequence[str]) -> int:
    """Runs the checks and returns the exit status that the help explains. Raises UsageError."""
    require_extra("bench", "`opatlas check`", "pytest")
    run_checks = import_module("opatlas.plugins.check").run_checks
    hidden = redirect_stdout(StringIO()) if is_terminal(arguments.json) else nullcontext()
    try:
        with hidden:
            status, content = run_checks(arguments.database, arguments.against, for_pytest=for_pytest)
    except OpAtlasError as error:
        raise UsageError(str(error)) from None
    if content:
        write_or_print_json(arguments.json, content)
    return int(status)
