"""Several devices have a worker each, pinned; one that drops out hands its rows to the others, or they are not run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from moods import Mood
from sessions import Sessions, row


def manifest(sessions: Sessions) -> dict:
    (path,) = (sessions.database / "runs").glob("*.json")
    return json.loads(path.read_text())


def ids_used(sessions: Sessions) -> set[str]:
    run = manifest(sessions)
    return {run["device"]["facts"]["id"], *(device["facts"]["id"] for device in run["other_devices"])}


def test_each_visible_device_gets_a_worker_and_sees_itself_alone(sessions: Sessions, tmp_path: Path) -> None:
    sessions.write("Moody", [row(Mood.WAIT_FOR_ANOTHER_DEVICE), row(2), row(1), *[row(n) for n in range(101, 120)]])
    # Named on the command line, the plugin is there before xdist.
    benchmark = tmp_path / "benchmark.json"
    options = ("-p", "opatlas.plugins", f"--benchmark-json={benchmark}")
    done = sessions.run(*options, SIMULATED_DEVICES="4", SIMULATED_VISIBLE_DEVICES="3,1")
    assert (done.code, done.ledger()) == (0, {"measured": 22})
    assert "created: 2/2 workers" in done
    assert ids_used(sessions) == {"3", "1"}
    # xdist switches pytest-benchmark off, which is fed nevertheless.
    assert len(json.loads(benchmark.read_text())["benchmarks"]) == 22


def test_one_device_is_enough_where_the_user_says_so(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(2)])
    done = sessions.run("-p", "no:xdist", SIMULATED_DEVICES="2", SIMULATED_VISIBLE_DEVICES="1,0")
    assert (done.code, done.ledger()) == (0, {"measured": 2})
    assert "workers" not in done
    assert ids_used(sessions) == {"1"}


def test_when_all_devices_are_gone_the_rest_is_reported(sessions: Sessions) -> None:
    sessions.write("Moody", [row(n) for n in (Mood.BREAK_ALL_DEVICES, *range(101, 141))])
    done = sessions.run(SIMULATED_DEVICES="2")
    ledger = done.ledger()
    assert done.code == 1
    # The row that broke both, and the one that the other device found it out with.
    assert ledger["device-error"] in (1, 2)
    assert ledger["not run"] >= 1
    assert done.has_line("no device is left", "simulated 0")
    assert "INTERNALERROR" not in done


def test_a_device_that_stays_broken_is_left_out_and_its_rows_are_reported(sessions: Sessions) -> None:
    sessions.write("Moody", [row(mood) for mood in (1, 2, Mood.BREAK_OWN_DEVICE, 3, 4)])
    done = sessions.run(SIMULATED_DEVICES="1")
    assert (done.code, done.ledger()) == (1, {"measured": 2, "device-error": 1, "not run": 2})
    assert done.has_line("simulated 0", "3 times")
    (report,) = (sessions.database / "reports").glob("*.md")
    assert report.read_text().count("\n| Moody-") == 2
    assert list(sessions.statuses("Moody").values()).count("") == 2


def test_in_process_the_session_stops_without_a_fresh_process(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(Mood.POISON), row(2)])
    done = sessions.run_in_process(SIMULATED_DEVICES="1")
    assert (done.code, done.ledger()) == (1, {"measured": 1, "device-error": 1, "not run": 1})
    assert re.search(r"^stopped: .*--in-process", done.output, re.MULTILINE)
