"""The databases that ship have no finding that their known_findings.yaml does not explain."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import CheckedDatabase, read_known, split_findings
from opatlas.row.location import ROOT, SHIPPED

DATABASES = sorted(path.parent for path in ROOT.glob(f"*/*/*/{SHIPPED}"))


@pytest.mark.parametrize("folder", DATABASES, ids=lambda folder: "-".join(folder.relative_to(ROOT).parts))
def test_findings_are_known_and_entries_cover_some(folder: Path) -> None:
    database, entries = CheckedDatabase(folder), read_known(folder, CHECKS)
    used = set()
    for check in CHECKS:
        for kernel_type in check.cases(database):
            sorted_out = split_findings(check, check.find(database, kernel_type), entries)
            assert check.advisory or not sorted_out.new
            used |= {entry.place for _, entry in sorted_out.known}
    assert used == {entry.place for entry in entries}
    assert database.rows


def test_there_are_databases_that_ship() -> None:
    assert DATABASES
