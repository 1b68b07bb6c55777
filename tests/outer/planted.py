"""Small captures with chosen counters, and the real ones where they are at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from captures import KERNEL_DETAILS, launched, write_capture

#: Captures that are not part of the project.
SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "ascend_profiler"
PIPES = (
    *("aic_mac_ratio", "aic_scalar_ratio", "aic_mte1_ratio", "aic_mte2_ratio", "aic_fixpipe_ratio"),
    *("aiv_vec_ratio", "aiv_scalar_ratio", "aiv_mte2_ratio", "aiv_mte3_ratio", "cube_utilization(%)"),
)
OTHER_COUNTERS = (
    *("aiv_vec_bankgroup_cflt_ratio", "aiv_vec_bank_cflt_ratio", "Current Freq", "Rated Freq"),
    *("aiv_write_cache_hit", "aiv_write_cache_miss_allocate"),
)
VECTOR = {"Accelerator Core": "AI_VECTOR_CORE"}


def shared(name: str) -> Path:
    """Returns a real capture; skips the test where it is missing."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


def kernel(us: float = 10.0, kernel_type: str = "Mul", **cells: str) -> dict[str, str]:
    """Returns a launch on 40 vector cores, of which no rule holds, but for `cells` (blanks as `_`)."""
    quiet = {**VECTOR, "Block Dim": "40", "Wait Time(us)": "0", "aiv_vec_ratio": "0.6", "Start Time(us)": "1000"}
    changed = {_NAMES.get(name, name): cell for name, cell in cells.items()}
    launch = launched(kernel_type, us)
    return {**launch, "aic_mac_ratio": "0", **quiet, **changed}


_NAMES = {"core": "Accelerator Core", "blocks": "Block Dim", "mix_blocks": "Mix Block Dim", "wait": "Wait Time(us)"}


def capture(folder: Path, launches: Sequence[Mapping[str, str]], counters: Sequence[str] = PIPES) -> Path:
    """Writes a capture with these counters; a launch that lacks one has 0."""
    columns = [name for name in KERNEL_DETAILS if name not in counters and not name.startswith("aic")]
    return write_capture(folder / "kernel_details.csv", launches, (*columns, *counters))
