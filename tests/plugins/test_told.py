"""What a session tells of durations: a line for each row, tables at the end, the report, JUnit."""

from __future__ import annotations

import csv
import re
from xml.etree import ElementTree

import pytest
from moods import Mood
from sessions import Sessions, row

from opatlas.data.database import Database
from opatlas.row.columns import (
    INPUT_DTYPES,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    PROFILING_AVERAGE,
    PROFILING_POPULATIONS,
    PROFILING_SAMPLES,
    QUALITY,
    RUN_ID,
)
from opatlas.show.row_summary import find_gaps

THRICE = ("--repeat-count=3", "--cache=warm")


def test_each_row_has_a_line_with_its_duration(sessions: Sessions) -> None:
    sessions.write("Toy", [row(5)])
    sessions.write("Moody", [row(Mood.RAISE), row(Mood.UNSUPPORTED)])
    done = sessions.run_in_process("-v", "--tb=no", COLUMNS="80", measure=THRICE)
    lines = [line.rstrip() for line in done.output.splitlines()]
    (toy,) = (line for line in lines if "[Toy-5_5-" in line)
    assert re.search(r" PASSED [\d.,]+ us ±?.* n=3 warm ", toy)
    (failed,) = (line for line in lines if "[Moody-15_15-" in line and not line.startswith("FAILED "))
    assert re.search(r" FAILED failed: .*bad mood", failed)
    (skipped,) = (line for line in lines if "[Moody-17_17-" in line)
    assert "SKIPPED" in skipped


def test_ci_shows_numbers_class_and_kind_of_failure(sessions: Sessions) -> None:
    sessions.write("Toy", [{**row(1), PROFILING_AVERAGE: "2.5"}])
    sessions.write("Moody", [row(Mood.REFUSE)])
    sessions.run_in_process("--junitxml=report.xml", "--mixed", measure=THRICE)
    (suite,) = ElementTree.parse(sessions.folder / "report.xml").iter("testsuite")
    assert suite.get("name", "").startswith("opatlas ")
    about = {each.get("name"): each.get("value") for each in suite.findall("properties/property")}
    (stored,) = sessions.read("Toy")
    assert about["run_id"] == stored["Run ID"]
    assert about["database"] == str(sessions.database)
    assert about["option.repeat_count"] == "3"
    assert about["device"]
    assert about["torch"]
    cases = {case.get("classname"): case for case in suite.iter("testcase")}
    assert cases.keys() == {"Toy", "Moody"}
    (out,) = cases["Toy"].findall("system-out")
    assert {"us", "n=3", "warm", "wall-clock,", "2.5"} <= set((out.text or "").split())
    told = {each.get("name"): each.get("value", "") for each in cases["Toy"].iter("property")}
    assert told["captured_us"] == "2.5"
    assert float(told["ratio_to_captured"]) == pytest.approx(float(told["duration_median_us"]) / 2.5, rel=1e-3)
    assert float(told["duration_min_us"]) == float(stored[MICROBENCH_MIN])
    assert float(told["duration_us"]) == float(stored["Average Duration(us)"]) > 0
    assert (told["status"], told["instrument"]) == ("measured", "wall-clock")
    assert "duration_mean_us" not in told
    assert [failure.get("type") for failure in cases["Moody"].iter("failure")] == ["invalid"]


def test_in_ci_the_message_of_a_failure_is_one_line_and_its_traceback_is_shown_once(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.RAISE)])
    done = sessions.run("-n1", "--junitxml=report.xml", CI="true")
    assert done.output.count("Traceback") == 1
    (failed,) = (line for line in done.output.splitlines() if line.startswith("FAILED "))
    (failure,) = ElementTree.parse(sessions.folder / "report.xml").iter("failure")
    message = failure.get("message", "")
    assert failed.endswith(f" - {message}")
    assert message.startswith(f"failed: {sessions.database}")
    assert "Traceback" in (failure.text or "")


def test_what_rows_printed_stands_behind_their_numbers(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    ours = ("-o", "junit_logging=all", "-o", "junit_suite_name=mine", "--junitprefix=here")
    sessions.run_in_process("--junitxml=report.xml", *ours)
    (suite,) = ElementTree.parse(sessions.folder / "report.xml").iter("testsuite")
    assert suite.get("name") == "mine"
    assert [case.get("classname") for case in suite.iter("testcase")] == ["here.Toy"]
    (out,) = suite.iter("system-out")
    first, *others = (out.text or "").splitlines()
    assert " us " in first
    assert "body of (1,)" in others


def test_the_report_names_a_row_of_each_cause(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.RAISE), row(Mood.REFUSE)])
    assert "= durations =" not in sessions.run_in_process()
    (report,) = (sessions.database / "reports").glob("*.md")
    named = re.findall(r"^\| 1 \| Moody \| (\w+): .* \| (Moody-\S+) \|$", report.read_text(), re.MULTILINE)
    assert {status: case_id.split("-")[1] for status, case_id in named} == {"failed": "15_15", "invalid": "16_16"}


def test_gaps_tell_how_both_durations_were_taken(sessions: Sessions) -> None:
    two_kinds = "3 launches around 1 us and 4 around 2 us"
    captured = {PROFILING_AVERAGE: "0.001", PROFILING_SAMPLES: "7", PROFILING_POPULATIONS: two_kinds}
    sessions.write("Toy", [{**row(1), **captured}])
    sessions.run_in_process(measure=THRICE)
    beside = sessions.beside_captures
    (path,) = (beside / "reports").glob("duration_gap_*.csv")
    with open(path, newline="") as file:
        (gap,) = csv.DictReader(file)
    with open(beside / "Toy.csv", newline="") as file:
        (replayed,) = csv.DictReader(file)
    stored = {**replayed, **captured}
    for column in (RUN_ID, QUALITY, MICROBENCH_SAMPLES, PROFILING_SAMPLES, PROFILING_POPULATIONS, INPUT_DTYPES):
        assert gap[column] == stored[column] != "", column
    ((found,), _) = find_gaps(Database(beside), ["Toy"], Database(sessions.database))
    assert found.cells[PROFILING_POPULATIONS] == two_kinds


def test_a_comparison_is_in_the_line_and_in_ci_and_slower_rows_fail_it(sessions: Sessions) -> None:
    """With the database where nothing is written, and with an earlier session by pytest-benchmark."""
    sessions.write("Toy", [row(1)])
    saved = ("--benchmark-storage=saved",)
    assert sessions.run_in_process(*saved, "--benchmark-autosave").code == 0
    # Whatever the durations are, they are more than nothing.
    (before,) = (sessions.folder / "saved").rglob("*.json")
    before.write_text(re.sub(r'("(?:median|min|mean)"): [\d.e-]+', r"\1: 1e-12", before.read_text()))
    compared = ("--benchmark-compare", "--benchmark-compare-fail=median:20%")
    done = sessions.run_in_process(*saved, *compared, "--read-only", "-v", "--junitxml=report.xml", COLUMNS="80")
    assert done.code == 1
    (line,) = (line for line in done.output.splitlines() if "[Toy-1_1-" in line and "PASSED" in line)
    assert re.search(r"PASSED [\d.]+x ", line)
    (out,) = ElementTree.parse(sessions.folder / "report.xml").iter("system-out")
    assert re.search(r"stored .* \([\d.]+x\)$", out.text or "")
    assert "(NOW)" in done
    assert "--benchmark-compare-fail" in done
    assert "Traceback" not in done.output
    assert sessions.statuses("Toy") == {1: "measured"}
