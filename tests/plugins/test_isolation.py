"""What a row does to its process costs that row and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from moods import Mood
from sessions import ROOT, Sessions, row


def test_a_debugger_stops_where_a_row_or_its_result_was_refused(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.REFUSE), row(Mood.WRONG_RESULT)])
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
    assert stack.count("in test_moody") == 2, done.output
    assert "in _refuse" in stack
    assert stack[-1] == "in _compare"
    assert sessions.statuses("Moody") == {Mood.REFUSE: "invalid", Mood.WRONG_RESULT: "failed"}


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


def test_two_replays_of_one_kernel_type_are_refused(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    (sessions.folder / "test_rivals.py").write_text(
        "from opatlas.run.registry import replays\n"
        '@replays("Toy", npu=None)\n'
        "def test_rival(row, replay):\n"
        "    raise AssertionError\n"
    )
    done = sessions.run_in_process()
    assert done.code == pytest.ExitCode.INTERRUPTED
    assert "test_toys.py::test_toy" in done
    assert "test_rivals.test_rival" in done
    assert sessions.statuses("Toy") == {1: ""}


def test_a_database_that_is_not_there_is_named_with_the_remedy(tmp_path: Path, sessions: Sessions) -> None:
    done = sessions.run_in_process(f"--database-path={tmp_path / 'nowhere'}")
    assert done.code != 0
    assert str(tmp_path / "nowhere") in done
    assert "Traceback" not in done


def test_files_that_cannot_be_read_cost_their_rows_and_are_told_with_file_and_line(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    broken = sessions.write("OtherToy", [{**row(1), "Mine": "007"}])
    content = "\n" + broken.read_text()
    broken.write_text(content)
    empty = sessions.database / "Empty.csv"
    empty.write_text(",".join(row(1)))
    pointer = sessions.database / "Moody.csv"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    done = sessions.run_in_process()
    assert (done.code, done.outcomes()) == (1, {"passed": 1})
    assert f"{broken}:1: " in done
    assert str(empty) in done
    assert done.output.count("git lfs pull") == 1
    assert broken.read_text() == content
    assert pointer.read_text().startswith("version https://git-lfs")
    assert sessions.statuses("Toy") == {1: "measured"}
