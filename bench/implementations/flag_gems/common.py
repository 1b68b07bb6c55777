"""Refusals of rows that FlagGems cannot run."""

from __future__ import annotations

import torch

from opatlas.run.implementation import Support

HALF = (torch.bfloat16, torch.float16)
SUPPORT = Support("FlagGems")
expect, expect_dtype = SUPPORT.expect, SUPPORT.expect_dtype
