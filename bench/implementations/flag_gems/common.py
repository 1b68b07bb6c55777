"""Refusals of rows that FlagGems cannot run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opatlas import Unsupported

HALF = (torch.bfloat16, torch.float16)


def expect(holds: bool, found: str, supported: str) -> None:
    """Refuses a row: `found` is the value of the row, `supported` what FlagGems has."""
    if not holds:
        raise Unsupported(f"{found}: FlagGems has {supported}")


def expect_dtype(supported: Sequence[torch.dtype], **given: torch.Tensor | torch.dtype) -> None:
    for name, value in given.items():
        dtype = value.dtype if isinstance(value, torch.Tensor) else value
        own, *others = (str(each).removeprefix("torch.") for each in (dtype, *supported))
        expect(dtype in supported, f"{name} in {own}", " or ".join(others))
