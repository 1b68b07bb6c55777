"""What a row does to its process costs that row and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from moods import Mood
from sessions import ROOT, Sessions, row


def test_a_wrong_result_fails_and_names_the_difference(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.WRONG_RESULT)])
    done = sessions.run_in_process()
    assert sessions.statuses("Moody") == {Mood.WRONG_RESULT: "failed"}
    assert "19 of 19" in done


@pytest.mark.parametrize(
    ("mood", "status", "where"), [(Mood.REFUSE, "invalid", "_refuse"), (Mood.WRONG_RESULT, "failed", "_compare")]
)
def test_a_debugger_stops_where_a_row_or_its_result_was_refused(
    sessions: Sessions, mood: int, status: str, where: str
) -> None:
    sessions.write("Moody", [row(mood)])
    (sessions.folder / "telling.py").write_text(
        "import pdb\n"
        "class Telling(pdb.Pdb):\n"
        "    def interaction(self, frame, traceback):\n"
        "        traceback = getattr(traceback, '__traceback__', traceback)  # From Python 3.13 on, an exception.\n"
        "        while traceback is not None:\n"
        "            print('in', traceback.tb_frame.f_code.co_name)\n"
        "            traceback = traceback.tb_next\n"
    )
    done = sessions.run_in_process("--pdb", "--pdbcls=telling:Telling", "-s")
    stack = [line for line in str(done.output).splitlines() if line.startswith("in ")]
    assert "in test_moody" in stack, done.output
    assert stack[-1] == f"in {where}"
    assert sessions.statuses("Moody") == {mood: status}


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_a_device_that_cannot_be_opened_ends_the_session_and_marks_no_row(
    sessions: Sessions, options: tuple[str, ...]
) -> None:
    sessions.write("Toy", [row(1), row(2), row(3)])
    torch = sessions.folder / "broken" / "torch.py"
    torch.parent.mkdir()
    torch.write_text('raise ImportError("no such library")\n')
    done = sessions.start(*options, alone=True, PYTHONPATH=os.pathsep.join((str(torch.parent), str(ROOT)))).wait()
    assert done.code != 0
    assert "no such library" in done
    assert "INTERNALERROR" not in done
    assert set(sessions.statuses("Toy").values()) == {""}


def test_an_unreadable_file_fails_the_session_but_the_others_run(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    broken = sessions.database / "OtherToy.csv"
    broken.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    done = sessions.run_in_process()
    assert done.code == 1
    assert done.outcomes() == {"passed": 1}
    assert done.output.count("git lfs pull") == 1
    assert broken.read_text().startswith("version https://git-lfs")


def test_two_replays_of_one_kernel_type_are_refused(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    (sessions.folder / "test_rivals.py").write_text(
        "from opatlas.engine.registry import replays\n"
        '@replays("Toy", npu=None)\n'
        "def test_rival(row, replay):\n"
        "    raise AssertionError\n"
    )
    done = sessions.run_in_process()
    assert done.code == pytest.ExitCode.INTERRUPTED
    assert "test_toys.py::test_toy" in done
    assert "test_rivals.test_rival" in done
    assert sessions.statuses("Toy") == {1: ""}


def test_a_file_without_rows_is_named(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    empty = sessions.database / "OtherToy.csv"
    empty.write_text(",".join(row(1)))
    done = sessions.run_in_process()
    assert (done.code, done.outcomes()) == (0, {"passed": 1})
    assert str(empty) in done


def test_a_database_that_is_not_there_is_named_with_the_remedy(tmp_path: Path, sessions: Sessions) -> None:
    done = sessions.run_in_process(f"--database-path={tmp_path / 'nowhere'}")
    assert done.code != 0
    assert "nowhere: no such folder" in done
    assert "Traceback" not in done


@pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")
def test_an_empty_database_gets_a_starter(sessions: Sessions) -> None:
    listed = sessions.run_in_process("--co", "-q")
    assert not list(sessions.database.glob("*.csv"))
    assert "Traceback" not in listed
    sessions.run_in_process("-k", "nothing-of-this-name")
    assert (sessions.database / "RmsNorm.csv").exists()


def test_a_blank_first_line_costs_the_rows_of_its_file_and_is_told_with_file_and_line(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    broken = sessions.write("OtherToy", [{**row(1), "Mine": "007"}])
    content = "\n" + broken.read_text()
    broken.write_text(content)
    for _ in range(2):
        done = sessions.run_in_process()
        assert done.code == 1
        assert done.outcomes() == {"passed": 1}
        assert f"{broken}:1: " in done
        assert broken.read_text() == content
    assert sessions.statuses("Toy") == {1: "measured"}


def test_an_error_that_nobody_has_foreseen_in_one_table_costs_the_rows_of_that_table(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    broken = sessions.write("OtherToy", [row(1)])
    (sessions.folder / "test_a_broken.py").write_text(
        "from opatlas.store.database import Database\n"
        "whole = Database.read\n"
        "def read(self, kernel_type):\n"
        "    if kernel_type == 'OtherToy':\n"
        "        raise RecursionError('deep')\n"
        "    return whole(self, kernel_type)\n"
        "Database.read = read\n"
    )
    done = sessions.run_in_process()
    assert (done.code, done.outcomes()) == (1, {"passed": 1})
    assert f"{broken}: RecursionError: deep" in done
    assert "Traceback" not in done


def test_an_error_that_nobody_has_foreseen_in_making_the_plan_is_told_once(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    (sessions.folder / "test_a_broken.py").write_text(
        "import opatlas.plugins.session_plan\n"
        "def broken(*arguments, **options):\n"
        "    raise ZeroDivisionError('no plan')\n"
        "opatlas.plugins.session_plan.make_plan = broken\n"
    )
    (sessions.folder / "test_more.py").write_text((sessions.folder / "test_toys.py").read_text())
    done = sessions.run_in_process()
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert done.output.count("ZeroDivisionError: no plan\n") == 1
    assert sessions.statuses("Toy") == {1: ""}
