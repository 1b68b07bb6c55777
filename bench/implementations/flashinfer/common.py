"""Refusals of rows that FlashInfer cannot run, and the workspace of its wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from opatlas.run.implementation import Support

HALF = (torch.bfloat16, torch.float16)
SUPPORT = Support("FlashInfer")
expect, expect_dtype = SUPPORT.expect, SUPPORT.expect_dtype
#: Head sizes that the kernels of positions and caches are compiled for.
HEAD_SIZES = (64, 128, 256, 512)
#: Bytes of the results of pieces of sequences, until they are merged. FlashInfer's guide has 128 MiB; a plan for many
#: short sequences needs more.
_WORKSPACE_BYTES = 512 << 20


def words(values: Sequence[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


@cache
def workspace(device: torch.device) -> torch.Tensor:
    """Returns the memory that all wrappers use, which the first one must find zeroed."""
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
