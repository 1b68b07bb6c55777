"""Damage by a kernel to its process costs its row, which says so, and nothing else."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from moods import Mood
from sessions import HANG_S, Sessions, row

HEALTHY = (1, 2, 3, 4, 5, 6, 7)
#: The status of rows in bad moods, and words of their reason.
BAD = {
    Mood.SEGFAULT: ("crashed", "SIGSEGV (signal 11)"),
    Mood.ABORT: ("crashed", "SIGABRT (signal 6)"),
    Mood.EXIT: ("crashed", "exit code 3"),
    Mood.SLEEP_WITH_GIL: ("timeout", f"{HANG_S} s"),
    Mood.RAISE: ("failed", "ValueError: bad mood"),
    Mood.MEMORY_ERROR: ("oom", "MemoryError: too moody"),
    Mood.TORCH_OOM: ("oom", "RuntimeError: [enforce fail"),
    Mood.LONG_ERROR: ("failed", r"RuntimeError: \udcff\x1b[2Jxxx"),
    Mood.SKIP: ("skipped", "not in the mood"),
    # An error that a launch left costs no other row.
    Mood.LEAVE_AN_ERROR: ("failed", "Check failed"),
}


def test_bad_rows_are_marked_and_healthy_ones_measured_once(sessions: Sessions) -> None:
    rows = [*BAD, *HEALTHY]
    # A bad row first, one last, and healthy ones between bad ones.
    rows.sort(key=lambda mood: (mood * 7) % 11)
    sessions.write("Moody", [row(mood) for mood in rows])
    done = sessions.run(f"--case-timeout={HANG_S}", SIMULATED_DEVICES="1")
    assert done.code == 1
    assert done.ledger() == {"measured": 7, "crashed": 3, "timeout": 1, "failed": 3, "oom": 2, "skipped": 1}
    after = {int(r["Input Shapes"].partition(";")[0]): r for r in sessions.read("Moody")}
    for mood in HEALTHY:
        assert after[mood]["Status"] == "measured"
        assert float(after[mood]["Average Duration(us)"]) > 0
    for mood, (status, named) in BAD.items():
        assert after[mood]["Status"] == status
        assert named in after[mood]["Status Reason"]
        assert after[mood].get("Average Duration(us)", "") == ""
    # The Python stack of a segfault is in the report of its row.
    assert "Segmentation fault" in done
    assert "in test_moody" in done


def test_a_row_killed_for_memory_has_the_reason(sessions: Sessions, memory_group: Path) -> None:
    sessions.write("Moody", [row(1), row(Mood.HOARD), row(2)])
    done = sessions.run(MEMORY_GROUP=str(memory_group))
    assert done.ledger() == {"measured": 2, "crashed": 1}
    (reason,) = (r["Status Reason"] for r in sessions.read("Moody") if r["Status"] == "crashed")
    assert "SIGKILL" in reason
    assert "memory" in reason


def test_a_row_that_crashed_in_two_sessions_is_not_run_again_unasked(sessions: Sessions) -> None:
    before = {1: ("", ""), Mood.EXIT: ("crashed", "1"), Mood.RAISE: ("", ""), 2: ("crashed", "2")}
    cells = [{**row(mood), "Status": status, "Crashes In A Row": count} for mood, (status, count) in before.items()]
    sessions.write("Moody", cells)

    def crashes() -> list[str]:
        return [cells["Crashes In A Row"] for cells in sessions.read("Moody")]

    second = sessions.run()
    assert second.ledger() == {"measured": 1, "failed": 1, "xfailed": 2}
    assert re.search(r"^given up +1 .*--runxfail", second.output, re.MULTILINE)
    assert crashes() == ["", "2", "", "2"]
    given_up = sessions.run_in_process()
    assert (given_up.code, given_up.ledger()) == (0, {"measured": 1, "xfailed": 3})
    assert crashes() == ["", "2", "", "2"]
    asked = sessions.run("--runxfail", "-k", "12_12 or 2_2")
    # A crash that was mended counts no more.
    assert asked.ledger() == {"measured": 1, "crashed": 1}
    assert crashes() == ["", "3", "", ""]


def test_a_row_that_changes_its_process_is_reported_and_the_next_gets_a_new_one(sessions: Sessions) -> None:
    moods = (1, 50, 2, 51, 3, 4)
    sessions.write("Moody", [row(mood) for mood in moods])
    done = sessions.run()
    assert done.ledger() == {"measured": 5, "failed": 1}
    reasons = {int(r["Input Shapes"].partition(";")[0]): r["Status Reason"] for r in sessions.read("Moody")}
    assert "torch threads" in reasons[50]
    assert "torch.allclose" in reasons[51]
    assert [reasons[mood] for mood in (1, 2, 3, 4)] == [""] * 4
    processes = [(sessions.folder / f"body-{mood}").read_text() for mood in moods]
    assert processes[0] == processes[1] != processes[2] == processes[3] != processes[4] == processes[5]


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group whose processes are killed when they take more than 600 MB."""
    name = f"opatlas-{secrets.token_hex(4)}"
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, name)
        try:
            group.mkdir()
            (group / limit).write_text(str(600 << 20))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("control groups cannot be made here: that takes root, and Linux")
