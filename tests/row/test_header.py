"""Headers that are not quite those of the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.data.header import misspelt_columns
from opatlas.row.columns import AVERAGE, BASE, EP_SIZE, OWN, PIPE_UTILIZATION, microbench_counter, profiling_counter

CELLS = ("dynamic", "AI_CORE", "4,8", "BF16", "ND", "4,8", "BF16", "ND")


def write(path: Path, header: tuple[str, ...]) -> Path:
    cells = [f'"{cell}"' for cell in (*CELLS, "1.5")]
    path.parent.mkdir(exist_ok=True)
    path.write_text(",".join(header) + "\n" + ",".join(cells[: len(header)]) + "\n")
    return path


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("Out Formats", "Output Formats"),
        ("input formats", "Input Formats"),
        ("Op state", "OP State"),
        ("Average Duration", AVERAGE),
        ("Profiling Average Duration", "Profiling Average Duration(us)"),
        ("Staus", "Status"),
        ("EP_Size", EP_SIZE),
    ],
)
def test_a_column_that_is_like_one_that_the_file_lacks(wrong: str, right: str) -> None:
    names = [name for name in (*BASE, AVERAGE) if name != right]
    (warning,) = misspelt_columns(Path("Abs.csv"), [*names, wrong])
    assert warning.startswith("Abs.csv:1: ")
    assert repr(wrong) in warning
    assert repr(right) in warning


def test_columns_of_others_are_nobodys_misspelling() -> None:
    counters = [
        name for counter in PIPE_UTILIZATION for name in (microbench_counter(counter), profiling_counter(counter))
    ]
    theirs = ["Note", "Model", "Layer", "avg_seq_len", "Average aic_mac_ratio", "MicroBench Max Duration(us)"]
    assert not misspelt_columns(Path("Abs.csv"), [*BASE, AVERAGE, *OWN, EP_SIZE, *counters])
    assert not misspelt_columns(Path("Abs.csv"), [*BASE, *counters, *theirs])
    assert not misspelt_columns(Path("Abs.csv"), [*BASE, AVERAGE, "Average Duration"]), "the right one is there"


def test_columns_of_messages_have_names_of_their_own() -> None:
    (warning,) = misspelt_columns(Path("hcom_allReduce_.csv"), ["message_bytes", "num_device", "dtype"])
    assert "'num_device'" in warning
    assert "'num_devices'" in warning
    assert not misspelt_columns(Path("mine.csv"), ["message_bytes", "num_devices", "dtype"], "hcom_allReduce_")


def test_commands_warn_of_each_column_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = write(tmp_path / "target/Abs.csv", (*BASE, AVERAGE))
    names = tuple("Out Formats" if name == "Output Formats" else name for name in BASE)
    wrong = write(tmp_path / "source/Abs.csv", (*names, AVERAGE))
    assert main(["combine", str(right.parent), str(wrong.parent)]) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {wrong}:1: ")
    assert not Database(right.parent).misspelt_columns(), "the right one is there, too"
