"""What a killed session under msprof leaves behind. The stand-ins are those of test_msprof.py."""

from __future__ import annotations

import csv
import signal
from pathlib import Path

from moods import Mood
from sessions import WAITING_KERNEL, Sessions, row, wait_for
from stand_in_npus import StandInNpus, measured_right


def test_the_profile_of_a_killed_session_is_read_by_the_next(sessions: Sessions, npus: StandInNpus) -> None:
    sessions.write("Moody", [row(1), row(2), row(Mood.WAIT_FOR_GO)])

    def kill_in_row_40(*options: str) -> None:
        killed = npus.start(*options)
        killed.wait_for_body(Mood.WAIT_FOR_GO)
        killed.send(signal.SIGKILL)
        killed.wait()
        assert wait_for(lambda: not sessions.processes(), seconds=300)
        (sessions.folder / f"body-{Mood.WAIT_FOR_GO:d}").unlink()

    def profiles() -> list[Path]:
        return list((sessions.database / "profiles").rglob("PROF_*"))

    kill_in_row_40("-k", "Moody-40_40")
    (of_no_row,) = profiles()
    kill_in_row_40()
    assert not of_no_row.exists()
    assert measured_right(sessions, "Moody") == set()
    done = npus.run("-s", "--update-mode=missing-only", "-k", "Moody-1_1 or Moody-2_2")
    assert "merged 2 records" in done
    assert "body of" not in done
    assert measured_right(sessions, "Moody") == {1, 2}
    assert not profiles()


#: A replay of a kernel type that the kernels below launch.
ADDS = """
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays


@replays("Add", npu=None)
def test_add(row, replay):
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""


def test_the_profile_of_a_killed_session_of_two_implementations_goes_into_the_database_of_each(
    sessions: Sessions, npus: StandInNpus
) -> None:
    sessions.write("Add", [row(1), row(2), row(8)])
    (sessions.folder / "test_adds.py").write_text(ADDS)
    kernel = sessions.folder / "mine" / "Add.py"
    kernel.parent.mkdir()
    kernel.write_text(WAITING_KERNEL)
    chosen = f"--implementation=torch_npu,{kernel.parent}"
    killed = npus.start(chosen)
    assert wait_for(lambda: kernel.with_suffix(".waits").exists(), seconds=300)
    killed.send(signal.SIGKILL)
    killed.wait()
    assert wait_for(lambda: not sessions.processes(), seconds=300)
    done = npus.run("--update-mode=missing-only", "-k", "Add-1_1 or Add-2_2", chosen)
    assert "merged 3 records" in done
    assert "merged 2 records" in done
    assert measured_right(sessions, "Add") == {1, 2, 8}
    (own,) = sessions.database.glob("implementations/mine-*/Add.csv")
    with open(own, newline="") as file:
        rows = {cells["Input Shapes"]: cells for cells in csv.DictReader(file)}
    assert {shapes for shapes, cells in rows.items() if cells["Average Duration(us)"]} == {"1;1", "2;2"}
    assert all(rows[shapes]["Implementation"].startswith("mine ") for shapes in ("1;1", "2;2"))
    assert not any(cells.get("Implementation", "").startswith("mine ") for cells in sessions.read("Add"))


def test_ctrl_c_keeps_what_the_session_has_launched(sessions: Sessions, npus: StandInNpus) -> None:
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO), row(2)])
    running = npus.start()
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.send(signal.SIGINT)
    sessions.go()
    done = running.wait()
    assert done.ledger() == {"measured": 2, "not run": 1}, done.output
    assert measured_right(sessions, "Moody") == {1, 40}
