"""FlashInfer's kernels, with the interface of flashinfer-python 0.5.3.

Calls run without programmatic dependent launch: with it a kernel starts before the previous kernel ends, and the sum of
the durations counts that time twice. The wrappers of attention plan once for all layers of a step, so `plan` is set-up.
"""

from collections.abc import Sequence
from functools import cache

import torch

from opatlas.run.implementation import Support

DISTRIBUTIONS = ("flashinfer-python", "apache-tvm-ffi")
DEVICES = ("cuda",)
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
