"""The refusals of rows that a library cannot run."""

from __future__ import annotations

import pytest
import torch

from opatlas.row.errors import Unsupported
from opatlas.run.implementations.implementation import Support

SUPPORT = Support("MyLibrary")


def test_a_supported_row_is_not_refused() -> None:
    SUPPORT.expect(True, "head size 64", "head size 64")
    SUPPORT.expect_dtype((torch.float16, torch.bfloat16), x=torch.zeros(1, dtype=torch.float16), result=torch.bfloat16)


def test_a_refusal_names_the_value_and_what_the_library_has() -> None:
    with pytest.raises(Unsupported, match=r"96.*MyLibrary.*64"):
        SUPPORT.expect(False, "head size 96", "64")


@pytest.mark.parametrize("given", [torch.zeros(1), torch.float32], ids=["a tensor", "a dtype"])
def test_another_dtype_is_refused_by_the_name_of_its_argument(given: torch.Tensor | torch.dtype) -> None:
    with pytest.raises(Unsupported, match=r"x.*float32.*MyLibrary.*float16.*int8"):
        SUPPORT.expect_dtype((torch.float16, torch.int8), x=given)
