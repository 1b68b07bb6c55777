"""known_findings.yaml: what it covers, and what is said of a file that means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked import check_named

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import Finding
from opatlas.ask.checks.results import KNOWN_FINDINGS, read_known, split_findings
from opatlas.errors import OpAtlasError
from opatlas.files import UnsafePath

ENTRY = """
- checks: [spikes, monotone]
  kernel_type: MatMul*
  row: "353,*"
  date: 2026-11-22
  reason: a slow kernel
"""
SPIKES = check_named("spikes")


def finding(row: str, kernel_type: str = "MatMulV2", weight: float = 1.0) -> Finding:
    return Finding(f"{kernel_type}.csv", 2, kernel_type, row, "1 us", "", weight)


def write(folder: Path, text: str) -> Path:
    (folder / KNOWN_FINDINGS).write_text(text)
    return folder


def test_an_entry_covers_what_its_patterns_match(tmp_path: Path) -> None:
    entries = read_known(write(tmp_path, ENTRY), CHECKS)
    found = [finding("353,5120;6400,5120"), finding("354,5120;6400,5120"), finding("353,5120", "Add")]
    sorted_out = split_findings(SPIKES, found, entries)
    assert [known.row for known, _ in sorted_out.known] == ["353,5120;6400,5120"]
    assert len(sorted_out.new) == 2
    assert not split_findings(check_named("noisy"), found, entries).known


def test_of_more_findings_than_an_entry_knows_the_worst_are_new(tmp_path: Path) -> None:
    entries = read_known(write(tmp_path, ENTRY + "  most: 2\n"), CHECKS)
    found = [finding("353,1", weight=weight) for weight in (9.0, 3.0, 2.0)]
    sorted_out = split_findings(SPIKES, found, entries)
    assert [each.weight for each in sorted_out.new] == [9.0]
    assert [known.weight for known, _ in sorted_out.known] == [3.0, 2.0]


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert read_known(tmp_path, CHECKS) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- check: spikes\n  date: 2026-11-22\n  reason: x\n", "check"),
        (ENTRY.replace("spikes,", "spices,"), "spikes"),
        (ENTRY.replace("2026-11-22", "soon"), "date"),
        (ENTRY.replace("a slow kernel", "''"), "reason"),
        (ENTRY + "  most: 0\n", "most"),
        (ENTRY + "  date: 2026-11-23\n", "date"),
        ("known: yes\n", KNOWN_FINDINGS),
        ("- [", KNOWN_FINDINGS),
    ],
)
def test_a_file_that_means_nothing_is_refused_with_its_place(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(OpAtlasError, match=named) as refused:
        read_known(write(tmp_path, text), CHECKS)
    assert KNOWN_FINDINGS in str(refused.value)


def test_a_link_out_of_the_database_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text(ENTRY)
    folder = tmp_path / "DB"
    folder.mkdir()
    (folder / KNOWN_FINDINGS).symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(UnsafePath):
        read_known(folder, CHECKS)
