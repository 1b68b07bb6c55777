"""`opatlas check DB`: tests what a database holds. Each check and kernel type is a case of pytest.

Options that are not listed here are pytest's: -k, -x, -v, -rx, --junit-xml and others. The exit status is 0 without
findings or with known ones alone, 1 with findings, 2 after wrong usage, and otherwise pytest's own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from opatlas.checks.against import compared_rows
from opatlas.checks.catalog import CHECKS
from opatlas.checks.check import CheckedDatabase
from opatlas.checks.known import read_known
from opatlas.cli.commands import USAGE
from opatlas.engine.replayed_types import replays_of_bench
from opatlas.errors import OpAtlasError
from opatlas.report.plots.timed_rows import expect_tables
from opatlas.text import fitted

from ..own_code import present_code
from .check_plugin import CASES, Cases
from .report import CheckReport

_INI = Path(__file__).with_name("check.ini")


def parser() -> argparse.ArgumentParser:
    """Returns what reads the command line; what it does not know is for pytest."""
    made = argparse.ArgumentParser(
        prog="opatlas check",
        usage="%(prog)s DB [--against OTHER] [--all] [--strict] [--json FILE] [options of pytest]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("database", type=Path, metavar="DB", help="the folder that holds {KernelType}.csv files")
    made.add_argument(
        "--against", type=Path, metavar="OTHER", help="another database: rows of the same case that took another time"
    )
    made.add_argument("--all", action="store_true", help="list every finding; default: the five worst of each case")
    made.add_argument(
        "--strict",
        action="store_true",
        help="fail on known and advisory findings, and on entries of known_findings.yaml that cover nothing",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all findings to FILE, for programs")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs the checks; gives the exit status."""
    try:
        return _run(arguments)
    except OpAtlasError as error:
        print(fitted(f"error: {error}"), file=sys.stderr)
        return USAGE


def _run(arguments: Sequence[str]) -> int:
    """Raises OpAtlasError: the folder is no database, its known findings cannot be read, or nothing compares."""
    if arguments and arguments[0].startswith("-") and not {"-h", "--help"}.intersection(arguments):
        raise OpAtlasError(f"{arguments[0]} stands before the database: name the database first, opatlas check DB ...")
    asked, for_pytest = parser().parse_known_args(arguments)
    other = _opened(asked.against, None) if asked.against is not None else None
    database = _opened(asked.database, other)
    if other is not None and not compared_rows(database, other):
        raise OpAtlasError(
            f"--against {asked.against}: no row of it compares with a row of {asked.database}: name a database of the "
            f"same cases, device, versions, cache state and instrument"
        )
    known = read_known(asked.database, CHECKS)
    cases = Cases(database, known, strict=asked.strict, show_all=asked.all)
    report = CheckReport(cases, json_path=asked.json)
    # Neither settings nor code of the folder that the user is in: no rootdir, no conftest.py, no pytest.ini of theirs.
    # What PYTEST_ADDOPTS says is for replays, and pytest alone does not know most of it.
    os.environ.pop("PYTEST_ADDOPTS", None)
    options = ["-c", str(_INI), f"--rootdir={os.getcwd()}", "--noconftest", *for_pytest]
    sys.stdout.flush()
    return int(pytest.main([*options, str(CASES)], plugins=[cases, report]))


def _opened(folder: Path, against: CheckedDatabase | None) -> CheckedDatabase:
    expect_tables(folder)
    return CheckedDatabase(folder, code=present_code(), against=against, replayed_types=frozenset(replays_of_bench()))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
