"""Overloads of torch that stand for kernel types: an overload takes what the replay passes, and gives the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replaying import cells_of
from sample_rows import ROWS

from opatlas.run.implementations.directory import OVERLOADS
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.run.kernel_template import arguments_of_replay


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value or () for tensor in tensors(item)]


@pytest.mark.parametrize("folder", OVERLOADS)
def test_an_overload_computes_what_the_replay_times(folder: str) -> None:
    name, _, overload = folder.rpartition("__")
    operator = getattr(getattr(torch.ops.aten, name), overload)
    for kernel_type in OVERLOADS[folder]:
        for row in ROWS[kernel_type]:
            passed = arguments_of_replay(replays_of_bench()[kernel_type], kernel_type, cells_of(row))
            with torch.no_grad():
                found = tensors(operator(*passed.positional, **passed.keywords))
                expected = tensors(passed.function(*passed.positional, **passed.keywords))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2, equal_nan=True)
