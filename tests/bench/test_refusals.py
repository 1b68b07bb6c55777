"""A row that cannot be replayed is refused: refusals.txt and unsupported.txt have the rows and the reasons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from opatlas.bench.implementations import torch as impl
from replaying import cells_of, job_of, replay_row, runner, types_of_replays
from sample_rows import ROWS

from opatlas.row.columns import OUTPUT_DTYPES
from opatlas.row.status import Status
from opatlas.run.job import outcome_of
from opatlas.run.registry import replays

#: Rows that replays refuse, by their status. A block of a file has `kernel type: row`, and in the next line the reason.
REFUSALS = {
    status: Path(__file__).with_name(name)
    for status, name in ((Status.INVALID, "refusals.txt"), (Status.UNSUPPORTED, "unsupported.txt"))
}
_REASON = re.compile(r"column '(?P<column>[^']+)'(?: is|:) .+; .+")


def refusals(files: Mapping[Status, Path] = REFUSALS) -> list[tuple[Status, str, str, str]]:
    """Returns status, kernel type, row and reason of each refusal of the files.

    Raises:
        ValueError: a block has more than two lines; --write-golden would replace a row among them.
    """
    found = []
    for status, path in files.items():
        for block in path.read_text("utf-8").split("\n\n"):
            first, _, reason = block.strip("\n").partition("\n")
            if "\n" in reason:
                raise ValueError(f"{path}: {block!r} has more than a row and its reason: put a blank line between rows")
            kernel_type, _, row = first.partition(": ")
            found.append((status, kernel_type, row, reason.strip()))
    return found


@pytest.mark.parametrize(
    ("status", "kernel_type", "row", "reason"),
    [pytest.param(*case, id=f"{case[1]}-{i}") for i, case in enumerate(refusals())],
)
def test_row_is_refused_with_its_reason(request, status, kernel_type, row, reason):
    """The reason of an invalid row has a column, the cell, and a remedy."""
    outcome = replay_row(kernel_type, row)
    assert outcome.status is status, outcome
    if status is Status.INVALID:
        named = _REASON.fullmatch(outcome.reason)
        assert named, outcome.reason
        assert repr(cells_of(row).get(named["column"], ""))[1:-1] in outcome.reason
    path = REFUSALS[status]
    if request.config.getoption("--write-golden"):
        block = f"{kernel_type}: {row}\n"
        text = path.read_text("utf-8").rstrip("\n") + "\n"
        old = f"{block}    {reason}\n" if reason else block
        path.write_text(text.replace(old, f"{block}    {outcome.reason}\n", 1), "utf-8")
    else:
        assert outcome.reason == reason, f"run `pytest {__file__} --write-golden`, and read {path}"


def test_rows_without_a_blank_line_between_them_are_refused(tmp_path):
    path = tmp_path / "refusals.txt"
    path.write_text("Add: 4 | FLOAT -> 4 | FLOAT\n    a reason\nGelu: 4;4 | FLOAT;FLOAT -> 4 | FLOAT\n")
    with pytest.raises(ValueError, match="Gelu"):
        refusals({Status.INVALID: path})


def test_no_row_is_refused_twice():
    rows = [(kernel_type, row) for _, kernel_type, row, _ in refusals()]
    assert len(set(rows)) == len(rows) > 300


@pytest.mark.parametrize("kernel_type", types_of_replays().values(), ids=types_of_replays())
def test_a_slot_too_many_is_not_overlooked(kernel_type):
    """Of a shape that no kernel's optional slot would have: a call without it would be another one than the row's."""
    inputs, _, outputs = ROWS[kernel_type][0].partition("->")
    shapes, dtypes, *formats = (cell.strip() for cell in inputs.split("|"))
    cells = [f"{shapes};3,1,1,1,1,1,3", f"{dtypes};FLOAT", *(f"{cell};ND" for cell in formats if cell)]
    outcome = replay_row(kernel_type, f"{' | '.join(cells)} ->{outputs}")
    assert outcome.status in (Status.INVALID, Status.UNSUPPORTED), f"{outcome.reason}\n{outcome.detail}"


@pytest.mark.parametrize(
    ("kernel_type", "row"),
    [
        ("Add", "4;4 | UINT16;UINT16 -> 4 | UINT16"),
        ("FloorDiv", "4;4 | UINT64;UINT64 -> 4 | UINT64"),
        ("SoftmaxV2", "4 | INT8 -> 4 | INT8"),
        ("Sub", "4;4 | BOOL;BOOL -> 4 | BOOL"),
        ("Neg", "4 | BOOL -> 4 | BOOL"),
        ("ArgMaxV2", "4,5 | BOOL -> 4 | INT32"),
    ],
)
def test_operators_that_torch_lacks_are_unsupported(kernel_type, row):
    assert replay_row(kernel_type, row).status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("\"add_stub\" not implemented for 'UInt16'"), Status.UNSUPPORTED),
        (NotImplementedError("\"add_stub\" not implemented for 'UInt16'"), Status.UNSUPPORTED),
        (RuntimeError("shape mismatch"), Status.FAILED),
    ],
)
def test_a_missing_dtype_is_unsupported_and_other_errors_are_failures(error, status):
    assert outcome_of(error).status is status


@replays("Silent", npu=None)
def silent(row, replay):
    pass


def test_replay_that_measures_nothing_fails():
    outcome = runner().run(job_of("Silent", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.silent"))
    assert outcome.status is Status.FAILED
    assert "replay" in outcome.reason


def test_a_size_of_more_digits_than_python_converts_is_invalid():
    outcome = replay_row("Add", f"4;{'9' * 5000} | FLOAT;FLOAT -> 4 | FLOAT")
    assert outcome.status is Status.INVALID
    assert "Input Shapes" in outcome.reason
    assert len(outcome.reason) < 1000


def test_a_call_that_returns_another_dtype_than_all_tensors_have_is_wrong(monkeypatch):
    monkeypatch.setattr(impl, "mul", lambda x, y: (x * y).half())
    outcome = replay_row("Mul", "3,4;4 | FLOAT;FLOAT -> 3,4 | FLOAT")
    assert outcome.status is Status.INVALID
    assert f"column {OUTPUT_DTYPES!r} is 'FLOAT': " in outcome.reason
