"""Expected values that the dtype of a result cannot hold: too large or too small ones are not mistakes of a kernel."""

from __future__ import annotations

import pytest
import torch

from opatlas.outer.judging.compare import compare_results
from opatlas.outer.suites.opinfo import opinfos
from opatlas.row.errors import WrongResult
from opatlas.run.result_check import Comparison, Formula, check


class _Known:
    name = "known"

    def __init__(self, expected: torch.Tensor) -> None:
        self.expected = expected

    def compare(self, arguments: object, keywords: object, results: list[torch.Tensor], seed: int) -> list[Comparison]:
        return [Comparison(results[0], self.expected, exact=False)]


def is_right(result: torch.Tensor, expected: list[float]) -> bool:
    """Returns the verdict on a result, which replays of rows and judges of candidates must agree on."""
    formula: Formula = _Known(torch.tensor(expected, dtype=torch.float64))  # type: ignore[assignment]
    try:
        check(formula, [], {}, [result], seed=0)
        of_row = True
    except WrongResult:
        of_row = False
    of_candidate = not compare_results([result], [torch.tensor(expected, dtype=torch.float64)]).wrong
    assert of_row == of_candidate
    return of_row


@pytest.mark.parametrize(
    ("dtype", "result", "expected", "right"),
    [
        (torch.float32, [0.0, 0.0], [3.7e-298, -1e-200], True),
        (torch.float32, [1e-39, 0.0], [0.0, 1e-39], True),
        (torch.float32, [0.0, 0.0], [3e-30, 1e-30], False),
        (torch.float16, [0.0, 0.0], [3e-5, 1e-5], False),
        (torch.float16, [0.0, 0.0], [3e-9, 1e-9], True),
        (torch.float16, [torch.inf, -torch.inf, 1.0], [1e5, -7e4, 1.0], True),
        (torch.float16, [torch.inf, 1.0], [-1e5, 1.0], False),
        (torch.float16, [torch.inf, 1.0], [6e4, 1.0], False),
        (torch.float16, [65504.0, 1.0], [65510.0, 1.0], True),
        (torch.float32, [torch.inf], [1e300], True),
        (torch.bfloat16, [3.0], [1e300], False),
    ],
)
def test_results_are_compared_within_the_range_of_their_dtype(
    dtype: torch.dtype, result: list[float], expected: list[float], right: bool
) -> None:
    assert is_right(torch.tensor(result, dtype=dtype), expected) is right


def test_torchs_own_tests_leave_its_flags_free() -> None:
    """A session in one process lists their samples before it opens a GPU."""
    opinfos()
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32
