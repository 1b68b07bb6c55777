"""`opatlas check DB` as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from checked import product, write_database

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.results import KNOWN_FINDINGS
from opatlas.cli.main import main

pytestmark = pytest.mark.usefixtures("forks")
REPOSITORY = Path(__file__).parents[2]
KNOWN = """
- checks: [spikes, monotone]
  kernel_type: MatMulV2
  row: "353,*"
  date: 2026-11-22
  reason: a slow kernel of cuBLAS
"""


def environment_outside_ci() -> dict[str, str]:
    """Returns this process's environment without the variables by which pytest knows CI."""
    return {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}


def check(*arguments: str | Path, cwd: Path = REPOSITORY, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opatlas.cli.main", "check", *map(str, arguments)],
        cwd=cwd,
        env={**environment_outside_ci(), "PYTHONPATH": str(REPOSITORY), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def spiky(tmp_path: Path) -> Path:
    """A database with one spike, and one kernel type without any."""
    rows = [product(m, us) for m, us in ((219, 25.6), (353, 62.4), (438, 38.7))]
    return write_database(tmp_path / "DB", {"MatMulV2": rows, "MatMulV3": rows[:1]})


def test_findings_fail_with_their_rows_and_without_tracebacks(spiky: Path, tmp_path: Path) -> None:
    done = check(spiky, "--json", f"--junit-xml={tmp_path / 'found.xml'}")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    (spike,) = next(each for each in found["checks"] if each["name"] == "spikes")["findings"]
    assert (spike["line"], spike["kernel_type"], spike["file"]) == (3, "MatMulV2", str(spiky / "MatMulV2.csv"))
    assert found["exit_status"] == 1
    cases = ElementTree.parse(tmp_path / "found.xml").getroot().iter("testcase")
    failed = {(case.get("classname"), case.get("name")) for case in cases if case.find("failure") is not None}
    assert failed == {("spikes", "MatMulV2"), ("monotone", "MatMulV2")}
    assert "MatMulV2.csv:3  353,512;" in (tmp_path / "found.xml").read_text()
    shown = check(spiky, "--format", "csv").stdout.splitlines()
    assert sum(line.startswith("spikes,MatMulV2.csv:3,") for line in shown) == 1


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        pytest.param((), 5, id="by hand"),
        pytest.param(("-vv",), 8, id="all"),
    ],
)
def test_only_the_worst_rows_are_listed_unless_all_are_asked_for(
    tmp_path: Path, options: tuple[str, ...], listed: int
) -> None:
    folder = write_database(tmp_path, {"MatMulV2": [product(m, 9.0, std=2.0 + m / 10) for m in range(1, 9)]})
    done = check(folder, "-k", "noisy", *options)
    assert done.returncode == 1
    assert len(re.findall(r"^noisy +MatMulV2\.csv:\d+ ", done.stdout, re.MULTILINE)) == listed
    assert ("and 3 more" in done.stdout) == (listed == 5)


def test_options_of_pytest_select_and_name_cases(spiky: Path) -> None:
    done = check(spiky, "-v", "-k", "spikes and MatMulV2")
    assert done.returncode == 1
    assert "spikes::MatMulV2 FAILED" in done.stdout
    assert "monotone" not in done.stdout
    assert check(spiky, "-k", "MatMulV3").returncode == 0


def test_known_findings_and_entries_without_one_fail_only_with_strict(spiky: Path) -> None:
    other = KNOWN.replace("MatMulV2", "Add")
    (spiky / KNOWN_FINDINGS).write_text(KNOWN + other)
    unused = "entry 2"
    done = check(spiky)
    assert done.returncode == 0, done.stdout
    assert "a slow kernel of cuBLAS" in done.stdout
    assert unused in done.stdout
    assert re.search(r"^spikes +2 +0 +1 ", done.stdout, re.MULTILINE)
    strict = check(spiky, "--strict")
    assert strict.returncode == 1
    assert re.search(r"^spikes +MatMulV2\.csv:3 ", strict.stdout, re.MULTILINE)
    # An entry is judged only where all cases of its checks ran.
    assert unused not in check(spiky, "-k", "noisy").stdout


def test_an_entry_without_a_finding_fails_with_strict(tmp_path: Path) -> None:
    folder = write_database(tmp_path, {"MatMulV2": [product(1, 9.0)]})
    (folder / KNOWN_FINDINGS).write_text(KNOWN)
    assert check(folder, "--strict").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [("NOTHING", "NOTHING"), ("-k spikes SPIKY", ""), ("DAMAGED", KNOWN_FINDINGS), ("", "DB")],
)
def test_wrong_usage_is_an_error_before_pytest_starts(
    spiky: Path, tmp_path: Path, arguments: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = write_database(tmp_path / "DAMAGED", {"MatMulV2": [product(7, 51.2)]})
    (damaged / KNOWN_FINDINGS).write_text("- check: spikes\n")
    places = {"SPIKY": str(spiky), "DAMAGED": str(damaged), "NOTHING": str(tmp_path / "nothing")}
    assert main(["check", *(places.get(word, word) for word in arguments.split())]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert places.get(named, named) in err


def test_wrong_usage_of_pytest_is_told_in_a_line(spiky: Path, tmp_path: Path) -> None:
    other = write_database(tmp_path / "OTHER", {"MatMulV2": [product(7, 51.2)]})
    assert check(spiky, "--no-such-option").returncode == pytest.ExitCode.USAGE_ERROR
    done = check(other, spiky)
    assert (done.returncode, str(spiky) in done.stderr) == (pytest.ExitCode.USAGE_ERROR, True)
    assert "Traceback" not in done.stderr


def test_no_code_and_no_settings_of_the_folders_are_used(
    spiky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An option of replays, which whoever replays all day sets once.
    monkeypatch.setenv("PYTEST_ADDOPTS", "--repeat-count=3")
    ran = tmp_path / "ran"
    for folder in (spiky, spiky.parent):
        for name in ("conftest.py", "__init__.py", "test_mine.py"):
            (folder / name).write_text(f"open({str(ran)!r}, 'w')\ndef test_it(): pass\n")
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    done = check(".", cwd=spiky)
    assert done.returncode == 1, done.stderr
    assert "353,512" in done.stdout
    assert not ran.exists()


def test_a_terminal_obeys_nothing_that_a_database_says(spiky: Path) -> None:
    (spiky / KNOWN_FINDINGS).write_text(KNOWN.replace("a slow kernel of cuBLAS", '"a \\e[2J kernel"'))
    (spiky / "Mat\x1b[2J.csv").write_bytes((spiky / "MatMulV2.csv").read_bytes())
    done = check(spiky, "-vv", "-rx")
    assert done.returncode == 1
    assert "kernel" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_the_page_has_a_line_for_each_check() -> None:
    page = (REPOSITORY / "docs" / "compare.md").read_text(encoding="utf-8")
    table = page.partition("\n## Checks\n")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \| [^|]+\| [^|]+\|$", table, re.MULTILINE) == [check.name for check in CHECKS]
