"""`opatlas check DB` as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from checked import product, write_database

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import KNOWN_FINDINGS
from opatlas.cli.main import main

REPOSITORY = Path(__file__).parents[2]
KNOWN = """
- checks: [monotone]
  kernel_type: MatMulV2
  row: "353,*"
  date: 2026-11-22
  reason: a slow kernel of cuBLAS
"""
Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """One spike, and eight noisy rows of another kernel type."""
    spiky = [product(m, us) for m, us in ((219, 25.6), (353, 62.4), (438, 38.7))]
    noisy = [product(m, 9.0, std=2.0 + m / 10) for m in range(1, 9)]
    return write_database(tmp_path / "DB", {"MatMulV2": spiky, "MatMulV3": noisy})


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs the command; returns its exit status, stdout and stderr."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["check", *map(str, arguments), "-p", "no:cacheprovider"])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return status, out, err

    return run


def test_findings_fail_with_their_rows(database: Path, tmp_path: Path, check: Check) -> None:
    status, out, _ = check(database, "--json", f"--junit-xml={tmp_path / 'found.xml'}")
    found = json.loads(out)
    assert status == found["exit_status"] == 1
    (spike,) = next(each for each in found["checks"] if each["name"] == "monotone")["findings"]
    assert (spike["line"], spike["kernel_type"], spike["file"]) == (3, "MatMulV2", str(database / "MatMulV2.csv"))
    cases = ElementTree.parse(tmp_path / "found.xml").getroot().iter("testcase")
    failed = {(case.get("classname"), case.get("name")) for case in cases if case.find("failure") is not None}
    assert failed == {("monotone", "MatMulV2"), ("noisy", "MatMulV3")}
    assert "MatMulV2.csv:3  353,512;" in (tmp_path / "found.xml").read_text()


def test_options_of_pytest_choose_cases_whose_findings_are_listed(database: Path, check: Check) -> None:
    status, out, err = check(database, "-v", "-k", "monotone and MatMulV2 or noisy", "--format", "text")
    assert status == 1
    assert "monotone::MatMulV2 FAILED" in err
    assert "mixed" not in out
    assert len(re.findall(r"^noisy +MatMulV3\.csv:\d+ ", out, re.MULTILINE)) == 8


def test_known_findings_and_entries_without_one_fail_only_with_strict(database: Path, check: Check) -> None:
    (database / KNOWN_FINDINGS).write_text(KNOWN + KNOWN.replace("MatMulV2", "Add"))
    chosen = (database, "-k", "monotone")
    status, out, _ = check(*chosen)
    assert status == 0, out
    assert all(told in out for told in ("a slow kernel of cuBLAS", "entry 2"))
    assert re.search(r"^monotone +2 +0 +1 ", out, re.MULTILINE)
    status, out, _ = check(*chosen, "--strict")
    assert status == 1
    assert re.search(r"^monotone +MatMulV2\.csv:3 ", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "named", "expected"),
    [
        ("NOTHING", "NOTHING", 2),
        ("-k monotone DB", "", 2),
        ("DAMAGED", KNOWN_FINDINGS, 2),
        ("DB --no-such-option", "--no-such-option", pytest.ExitCode.USAGE_ERROR),
        ("DB OTHER", "OTHER", pytest.ExitCode.USAGE_ERROR),
    ],
)
def test_wrong_usage_is_told(
    database: Path, tmp_path: Path, arguments: str, named: str, expected: int, check: Check
) -> None:
    damaged, other = (
        write_database(tmp_path / name, {"MatMulV2": [product(7, 51.2)]}) for name in ("damaged", "other")
    )
    (damaged / KNOWN_FINDINGS).write_text("- check: monotone\n")
    places = {"DB": database, "DAMAGED": damaged, "OTHER": other, "NOTHING": tmp_path / "nothing"}
    status, _, err = check(*(places.get(word, word) for word in arguments.split()))
    assert status == expected
    assert str(places.get(named, named)) in err


@pytest.mark.usefixtures("forks")
def test_a_strange_folder_runs_nothing_and_a_terminal_obeys_nothing(database: Path, tmp_path: Path) -> None:
    (database / KNOWN_FINDINGS).write_text(KNOWN.replace("a slow kernel of cuBLAS", '"a \\e[2J kernel"'))
    (database / "Mat\x1b[2J.csv").write_bytes((database / "MatMulV2.csv").read_bytes())
    ran = tmp_path / "ran"
    for folder in (database, database.parent):
        for name in ("conftest.py", "__init__.py", "test_mine.py"):
            (folder / name).write_text(f"open({str(ran)!r}, 'w')\ndef test_it(): pass\n")
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    done = subprocess.run(
        [sys.executable, "-m", "opatlas.cli.main", "check", ".", "-rx", "--format", "text"],
        cwd=database,
        # An option of replays, which whoever replays all day sets once.
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_ADDOPTS": "--repeat-count=3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert len(re.findall(r"^noisy +MatMulV3\.csv:\d+ ", done.stdout, re.MULTILINE)) == 8
    assert "kernel" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert not ran.exists()


def test_the_page_has_a_line_for_each_check() -> None:
    page = (REPOSITORY / "docs" / "compare.md").read_text(encoding="utf-8")
    table = page.partition("\n## Checks\n")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \| [^|]+\| [^|]+\|$", table, re.MULTILINE) == [check.name for check in CHECKS]
