"""Which rows of a database the options of a session choose."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import warm_python
from opatlas.plugins.choice import Choice
from plans import plan_of
from sessions import ROOT, Sessions, row

from opatlas.row.status import UpdateMode

CAPTURED = {"Profiling Average Duration(us)": "5.0"}
NO_DURATIONS = {"Average Duration(us)": "", "Profiling Average Duration(us)": ""}


def measured(sessions: Sessions, kernel_type: str = "Toy") -> set[int]:
    return {size for size, status in sessions.statuses(kernel_type).items() if status == "measured"}


def test_the_counts_of_what_is_left_out_are_of_the_rows_asked_for(sessions: Sessions) -> None:
    sessions.write("Toy", [{**NO_DURATIONS, **row(n), **CAPTURED} for n in (1, 2, 3)])
    sessions.write("OtherToy", [{**NO_DURATIONS, **row(n), **CAPTURED} for n in (1, 2)])
    done = sessions.run_in_process("-k", "OtherToy", "--update-mode=missing-only", "--mixed")
    assert done.code == 0
    assert done.numbers("(--update-mode=missing-only)") == [2, 0, 2]


@pytest.mark.parametrize("mode", ["missing-only", "unreplayed"])
def test_a_row_that_ran_as_another_type_lacks_no_duration(sessions: Sessions, mode: str) -> None:
    statuses = {1: "ran as OtherToy; load 5", 2: "no such call", 3: ""}
    cells = {n: {"Status": "unsupported" if why else "", "Status Reason": why} for n, why in statuses.items()}
    sessions.write("Toy", [{**NO_DURATIONS, **row(n), **cells[n]} for n in statuses])
    plan = plan_of(sessions.database, Choice(UpdateMode(mode)))
    assert [case.position for case in plan.tables["Toy"].to_run] == [1, 2]


def test_stale_runs_what_other_code_measured(sessions: Sessions) -> None:
    sessions.write("Toy", [{**NO_DURATIONS, **row(n)} for n in (1, 2, 3)])
    sessions.run_in_process("--where", "tokens < 3")
    (manifest,) = (sessions.database / "runs").glob("*.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "code": "of long ago"}))
    sessions.run_in_process("--where", "tokens == 2")
    stale = sessions.run_in_process("--update-mode=stale")
    assert stale.numbers("(--update-mode=stale)") == [1, 1, 1, 1]
    assert stale.ledger() == {"measured": 1}


def test_rows_without_a_replay_are_skipped_cases_in_an_update_mode(sessions: Sessions) -> None:
    captured = {"Profiling Average Duration(us)": "30.0", "Profiling Samples": "1"}
    sessions.write("Toy", [row(1)])
    sessions.write("DSAGenBitMask", [{**row(1), **captured}, {**row(2), **captured, "Profiling Samples": ""}])
    sessions.write("main_kernel", [row(3)])
    left = {name: sessions.read(name) for name in ("DSAGenBitMask", "main_kernel")}
    sessions.run_in_process("-k", "Toy")
    done = sessions.run("--update-mode=unreplayed", "--strict", "--junitxml=junit.xml", "-n2", "--dist=load")
    assert (done.code, done.outcomes()) == (0, {"skipped": 3}), done.output
    assert done.ledger() == {"without a replay": 3}
    assert re.search(r"^nothing to do +1 ", done.output, re.MULTILINE)
    suite = ElementTree.parse(sessions.folder / "junit.xml").find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("3", "3", "0")
    assert str(suite.get("name")).startswith("opatlas")
    for case in suite.iter("testcase"):
        (skipped,) = case.findall("skipped")
        assert skipped.get("type") == "pytest.skip"
        assert str(case.get("classname")) in str(skipped.get("message"))
    assert {name: sessions.read(name) for name in left} == left


def test_a_list_tells_the_time_of_the_rows(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1), row(2), row(4096)])
    assert estimate(sessions.run_in_process("--co").output)[:2] == ("3 rows", "1 s a row")
    sessions.run_in_process("-k", "Toy-1_1")
    (manifest,) = (sessions.database / "runs").glob("*.json")
    later = estimate(sessions.run_in_process("--co").output)
    assert later[0] == "3 rows"
    assert manifest.stem in later[2]


_ESTIMATE = re.compile(r"opatlas: (\d+ rows?) would take about .*?, at (.*?) \((.*?)\)")


def estimate(output: str) -> tuple[str, ...]:
    """The number of rows, their pace, and where it is from, of a list of rows."""
    found = _ESTIMATE.search(" ".join(output.split()))
    assert found is not None, output
    return found.groups()


def test_a_list_of_an_empty_database_is_that_of_its_starter(tmp_path: Path) -> None:
    options = ("--ops=rms_norm,Add,matmul", "--shard=1/2")
    words = [sys.executable, "-m", "pytest", "bench/", "--co", "-q", f"--database-path={tmp_path}", *options]
    done = warm_python.run([*words, "-p", "no:cacheprovider"], cwd=ROOT)
    assert done.returncode == 0, done.stdout
    listed = [line for line in done.stdout.splitlines() if line.startswith("bench/")]
    assert listed
    assert {line.partition("[")[2].partition("-")[0] for line in listed} == {"RmsNorm", "Add", "MatMulV2"}
    assert "there is no database yet" in done.stdout
    assert list(tmp_path.iterdir()) == []
