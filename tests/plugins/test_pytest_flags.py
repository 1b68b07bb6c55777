"""pytest's own options keep their meaning, and ours do what their help says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from sessions import ROOT, Sessions, row


def test_help_groups_the_options_and_does_not_import_torch(sessions: Sessions) -> None:
    code = "import sys, pytest; pytest.main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--update-mode" in done.stdout
    assert done.stdout.rstrip().endswith("False")


def test_collecting_bench_does_not_import_torch_or_write(sessions: Sessions) -> None:
    sessions.write("Add", [row(1)])
    code = (
        "import sys, pytest; "
        f"pytest.main(['--co', '-q', '-p', 'no:cacheprovider', 'bench', '--database-path={sessions.database}']); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "bench/test_elementwise.py::test_add[Add-1_1-FLOAT_FLOAT-1-" in done.stdout
    assert done.stdout.rstrip().endswith("False")
    assert [path.name for path in sessions.database.iterdir()] == ["Add.csv"]


def test_ids_start_with_the_kernel_type_and_do_not_depend_on_the_row_number(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1), row(2)])
    first = re.findall(r"::test_toy\[(.*)\]", sessions.run_in_process("--co", "-q").output)
    sessions.write("Toy", [row(2), row(7), row(1)])
    second = re.findall(r"::test_toy\[(.*)\]", sessions.run_in_process("--co", "-q").output)
    assert all(case.startswith("Toy-") for case in first)
    assert set(first) < set(second)


def test_a_kernel_type_that_is_not_there_has_a_suggestion(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    wrong = sessions.run_in_process("--ops", "Toi")
    assert wrong.code == pytest.ExitCode.USAGE_ERROR
    assert "did you mean Toy" in wrong


def test_output_of_a_body_is_captured_with_its_row_and_shown_with_s(sessions: Sessions) -> None:
    sessions.write("Toy", [row(5)])
    before, _, after = sessions.run("-rP").output.partition("Captured stdout call")
    assert "body of (5,)" not in before
    assert "body of (5,)" in after


def test_a_database_that_is_named_as_tests_is_refused(sessions: Sessions, tmp_path: Path) -> None:
    sessions.write("Toy", [row(1)])
    named = tmp_path / "named"
    named.mkdir()
    (named / "Toy.csv").write_bytes((sessions.database / "Toy.csv").read_bytes())
    done = sessions.run_in_process("test_toys.py", str(named))
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert f"--database-path {named}" in " ".join(done.output.split())
    assert sessions.statuses("Toy") == {1: ""}


def test_options_that_contradict_each_other_are_refused(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    for options, message in (
        (("--in-process", "-n", "2"), "-n"),
        (("--device", "ATLAS_800_A3_752T_128G_DIE"), "NPU"),
        (("--device", "NVIDIA_H200"), "GPU"),
    ):
        # Without nvidia-smi and npu-smi, whatever machine this is.
        done = sessions.run(*options, PATH=str(sessions.folder))
        assert done.code != 0
        assert message in done
        assert "Traceback" not in done


def test_what_the_installed_torch_measures_is_not_filed_under_another(sessions: Sessions) -> None:
    words = [sys.executable, "-m", "pytest", "bench/test_norm.py", "--versions=torch=1.0.0", "-p", "no:cacheprovider"]
    done = warm_python.run(words, cwd=ROOT)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--versions torch=1.0.0" in done.stdout


def test_numbers_that_make_no_sense_are_refused(sessions: Sessions) -> None:
    for option, message in (
        ("--repeat-count=0", "'0'"),
        ("--case-timeout=nan", "'nan'"),
    ):
        done = sessions.run_in_process(option, measure=())
        assert done.code == pytest.ExitCode.USAGE_ERROR
        assert message in done
    sessions.write("Toy", [row(1)])
    done = sessions.run_in_process(measure=(), MSMODELING_OP_REPLAY_REPEAT_COUNT="many")
    assert done.code != 0
    assert "MSMODELING_OP_REPLAY_REPEAT_COUNT='many'" in done
