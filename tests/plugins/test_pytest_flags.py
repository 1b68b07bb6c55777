"""pytest's own options keep their meaning, and ours do what their help says."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sessions import ROOT, Sessions, row


def test_help_and_collecting_bench_do_not_import_torch_or_write(sessions: Sessions) -> None:
    sessions.write("Add", [row(1)])
    code = (
        "import sys, pytest; pytest.main(['--help']); "
        f"pytest.main(['--co', '-q', '-p', 'no:cacheprovider', 'bench', '--database-path={sessions.database}']); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--update-mode" in done.stdout
    assert "bench/test_elementwise.py::test_add[Add-1_1-FLOAT_FLOAT-1-" in done.stdout
    assert done.stdout.rstrip().endswith("False")
    assert [path.name for path in sessions.database.iterdir()] == ["Add.csv"]


def test_a_kernel_type_that_is_not_there_has_a_suggestion(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    wrong = sessions.run_in_process("--ops", "Toi")
    assert wrong.code == pytest.ExitCode.USAGE_ERROR
    assert "did you mean Toy" in wrong


def test_k_selects_by_the_row_and_not_by_its_file(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    listed = [sessions.run_in_process("--co", "-q", "-k", word, "test_toys.py").output for word in ("toys", "oy-1")]
    assert ["[Toy-1" in output for output in listed] == [False, True]


def test_output_of_a_body_is_captured_with_its_row_and_shown_with_s(sessions: Sessions) -> None:
    sessions.write("Toy", [row(5)])
    before, _, after = sessions.run("-rP").output.partition("Captured stdout call")
    assert "body of (5,)" not in before
    assert "body of (5,)" in after
