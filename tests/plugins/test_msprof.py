"""Rows measured under msprof, in real sessions: the real device process, under a stand-in for msprof.

The stand-in (tests/support/stand_in_msprof.py) writes what msprof writes, with durations that are
known here: each sample of a row must be in that row, and nothing else.
"""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from moods import Mood
from sessions import HANG_S, Sessions, row
from stand_in_npus import StandInNpus, measured_right

#: Gives the first row a limit of pytest-timeout, whose signal the test sends itself. The row that the batch waits for
#: goes on when the first one has failed.
INTERRUPTIBLE = """

import pathlib
GO = pathlib.Path(__file__).with_name("go")


def pytest_collection_modifyitems(items):
    import pytest
    if not GO.exists():
        items[0].add_marker(pytest.mark.timeout(600, method="signal", func_only=True))


def pytest_runtest_logreport(report):
    if report.failed:
        GO.touch()
"""


#: Each costs a session of msprof, and a device process.
FAULTS = ("exit-1", "slices", "two-devices", "older-header", "exit-1-with-summary", "older-marks")


@pytest.mark.parametrize("faults", [FAULTS[:2], pytest.param(FAULTS[2:], marks=pytest.mark.slow)])
def test_what_msprof_leaves_is_used(sessions: Sessions, npus: StandInNpus, faults: tuple[str, ...]) -> None:
    sizes = range(1, 1 + len(faults))
    sessions.write("Toy", [row(size) for size in sizes])
    by_session = {str(number): fault for number, fault in enumerate(faults, start=1)}
    done = npus.run("-s", faults=by_session, SESSION_ROWS="1")
    assert done.ledger() == {"measured": len(faults)}, done.output
    assert measured_right(sessions) == set(sizes)
    # A summary that msprof had not written yet was asked for, and no row was run again.
    assert [done.output.count(f"body of ({size},)") for size in sizes] == [1] * len(faults)


@pytest.mark.parametrize(
    ("fault", "ran"), [("cut", {3: 1, 5: 2}), pytest.param("no-export", {3: 2, 4: 2, 5: 2}, marks=pytest.mark.slow)]
)
def test_rows_whose_samples_are_missing_are_run_again_in_a_smaller_session(
    sessions: Sessions, npus: StandInNpus, fault: str, ran: dict[int, int]
) -> None:
    sessions.write("Toy", [row(size) for size in (3, 4, 5)])
    done = npus.run("-s", faults={"1": fault}, SESSION_ROWS="3")
    assert done.ledger() == {"measured": 3}, done.output
    assert measured_right(sessions) == {3, 4, 5}
    assert {size: done.output.count(f"body of ({size},)") for size in ran} == ran


def test_rows_whose_samples_stay_missing_fail_once_and_their_profile_is_kept(
    sessions: Sessions, npus: StandInNpus
) -> None:
    sessions.write("Toy", [row(size) for size in (1, 2, 7)])
    done = npus.run("--junitxml=junit.xml", faults={"all": "lost"})
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert done.ledger() == {"measured": 2, "failed": 1}
    assert measured_right(sessions) == {1, 2}
    kept = list((sessions.database / "profiles").rglob("op_summary*.csv"))
    assert kept
    assert (sessions.folder / "junit.xml").read_text().count("<testcase") == 3
    # It is no profile of a killed session.
    npus.run("-k", "Toy-1_1")
    assert all(path.exists() for path in kept)


def test_rows_that_kill_the_process_or_hang_cost_themselves_alone_and_can_be_pruned(
    sessions: Sessions, npus: StandInNpus
) -> None:
    moods = (1, Mood.SEGFAULT, 2, Mood.RAISE, 3, Mood.SLEEP_WITH_GIL, 4)
    sessions.write("Moody", [row(mood) for mood in moods])
    printed = ("--junitxml=junit.xml", "-o", "junit_logging=all")
    done = npus.run("--prune-empty-duration-rows", f"--case-timeout={HANG_S}", *printed)
    assert done.ledger() == {"measured": 4, "crashed": 1, "failed": 1, "timeout": 1}, done.output
    assert measured_right(sessions, "Moody") == {1, 2, 3, 4}
    assert len(sessions.read("Moody")) == 4
    with open(sessions.database / "pruned" / "Moody.csv", newline="") as file:
        assert sorted(cells["Status"] for cells in csv.DictReader(file)) == ["crashed", "failed", "timeout"]
    # What a row prints stands at its own case, though it ran while pytest waited for the first row of the batch.
    cases = ElementTree.parse(sessions.folder / "junit.xml").iter("testcase")
    stacks = {
        case.get("name", ""): stack for case in cases if "moods.py" in (stack := case.findtext("system-err") or "")
    }
    (crashed, hung) = sorted(stacks)
    assert f"[Moody-{Mood.SEGFAULT:d}_" in crashed
    assert "Segmentation fault" in stacks[crashed]
    assert f"[Moody-{Mood.SLEEP_WITH_GIL:d}_" in hung
    assert sessions.left_behind() == []


def test_an_interrupted_batch_shifts_no_duration(sessions: Sessions, npus: StandInNpus) -> None:
    """pytest-timeout interrupts the first row, while the other rows of its batch run."""
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO), row(2), row(3)])
    with open(sessions.folder / "conftest.py", "a") as conftest:
        conftest.write(INTERRUPTIBLE)
    session = npus.start()
    session.wait_for_body(Mood.WAIT_FOR_GO)
    session.send(signal.SIGALRM)
    done = session.wait()
    assert done.ledger() == {"measured": 3, "not run": 1}, done.output
    assert measured_right(sessions, "Moody") == {40, 2, 3}
    assert sessions.left_behind() == []
    npus.run("--update-mode=missing-only")
    assert measured_right(sessions, "Moody") == {1, 40, 2, 3}


def test_ctrl_c_keeps_what_the_session_has_launched(sessions: Sessions, npus: StandInNpus) -> None:
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO), row(2)])
    running = npus.start()
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.send(signal.SIGINT)
    sessions.go()
    done = running.wait()
    assert done.ledger() == {"measured": 2, "not run": 1}, done.output
    assert measured_right(sessions, "Moody") == {1, 40}


#: What Sort launches beside itself: indices from int32 to int64, BF16 to FP32 and back.
HELPERS = [
    {"type": "Cast", "us": 7.0, "cells": {"Input Data Types": "DT_BF16", "Output Data Types": "FLOAT"}},
    "Toy",
    {"type": "Cast", "us": 5.0, "cells": {"Input Data Types": "INT32", "Output Data Types": "INT64"}},
    {"type": "MemSet", "us": 2.5, "cells": dict.fromkeys(("Input Shapes", "Output Shapes"), "N/A")},
]


#: Kernel types of their own, for a session in which each launches what it is told to.
MORE_TOYS = """
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays


@replays("Helped", "Fallen", "Broadcast", "Twin", npu=None)
def test_more(row, replay):
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""


def test_what_a_row_launches_decides_whose_duration_is_its_own(sessions: Sessions, npus: StandInNpus) -> None:
    (sessions.folder / "test_toys.py").write_text(MORE_TOYS)
    kernels = {
        "Helped": ["Helped" if kernel == "Toy" else kernel for kernel in HELPERS],
        "Fallen": ["ToyFallback"],
        "Broadcast": [{"type": "BroadcastTo"}, {"type": "Broadcast", "cells": {"Input Shapes": "12;12"}}],
        "Twin": ["TwinAiCore"],
    }
    for kernel_type in kernels:
        sessions.write(kernel_type, [row(3)])
    done = npus.run("--junitxml=junit.xml", STAND_IN_KERNELS=json.dumps(kernels))
    assert done.ledger() == {"measured": 2, "unsupported": 2}, done.output
    # The row's kernel, beside which its helpers stand.
    assert measured_right(sessions, "Helped") == {3}
    (helped,) = sessions.read("Helped")
    assert helped["MicroBench Device Kernels"] == "4"
    assert helped["MicroBench Helper Kernels"] == "Cast 12.0000; MemSet 2.5000"
    assert float(helped["MicroBench aic_mac_ratio"]) == 0.5
    properties = ElementTree.parse(sessions.folder / "junit.xml").iter("property")
    assert [p.get("value") for p in properties if p.get("name") == "helper_kernels"] == ["Cast 12.0000; MemSet 2.5000"]
    # Another kernel, and the row's with other operands.
    (other,), (variant,) = sessions.read("Fallen"), sessions.read("Broadcast")
    assert "ToyFallback" in other["Status Reason"]
    for words in ("input slot 0", "(3)", "(12)"):
        assert words in variant["Status Reason"]
    assert not other.get("Average Duration(us)")
    assert not variant.get("Average Duration(us)")
    # A twin fills the row, and has one of its own.
    assert measured_right(sessions, "Twin") == measured_right(sessions, "TwinAiCore") == {3}
    assert sessions.read("Twin")[0]["Status Reason"] == "ran as TwinAiCore"


def test_fail_fast_stops_at_the_failure_also_where_msprof_refuses_the_path_of_the_database(
    sessions: Sessions, npus: StandInNpus, tmp_path: Path
) -> None:
    """Such a database is profiled among the temporary files."""
    sessions.database = sessions.database.rename(sessions.folder / "a'b;$c R&D 100 %")
    sessions.write("Moody", [row(1), row(Mood.RAISE), row(2)])
    done = npus.run("-x", "--instrument=msprof:L2Cache", TMPDIR=str(tmp_path))
    assert done.ledger() == {"measured": 1, "failed": 1, "not run": 1}
    (manifest,) = (sessions.database / "runs").glob("*.json")
    assert json.loads(manifest.read_text())["options"]["aic_metrics"] == "L2Cache"
    assert measured_right(sessions, "Moody") == {1}
    assert not list(tmp_path.glob("opatlas-profiles-*"))


def test_msprof_that_does_not_start_ends_the_session(sessions: Sessions, npus: StandInNpus) -> None:
    sessions.write("Toy", [row(1)])
    done = npus.run("--junitxml=junit.xml", faults={"all": "no-start"})
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert done.ledger() == {"not run": 1}
    assert "exit code 1" in done
    # With what msprof has printed, and where a pipeline looks.
    assert "[ERROR] msprof cannot start" in done
    (error,) = ElementTree.parse(sessions.folder / "junit.xml").iter("error")
    assert "exit code 1" in error.get("message", "")


#: The journal has room for two records, in each process.
FULL = """
import errno

from opatlas.data.journal import Journal

append, kept = Journal.append, []


def append_while_there_is_room(self, record):
    if len(kept) == 2:
        raise OSError(errno.ENOSPC, "No space left on device")
    kept.append(record)
    append(self, record)


Journal.append = append_while_there_is_room
"""


def test_rows_that_were_measured_ahead_are_not_run_if_the_journal_has_no_room(
    sessions: Sessions, npus: StandInNpus
) -> None:
    (sessions.folder / "full.py").write_text(FULL)
    sessions.write("Toy", [row(size) for size in range(1, 7)])
    done = npus.run("-p", "full")
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert done.ledger() == {"measured": 2, "not run": 4}, done.output
    assert measured_right(sessions) == {1, 2}
