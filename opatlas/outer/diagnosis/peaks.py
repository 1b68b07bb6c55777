"""The peaks and cores of a device, and which share of the roofline each kernel reaches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pandas as pd

from opatlas.ask.query.features import kernel_work
from opatlas.capture.capture_reader import DURATION, TYPE
from opatlas.errors import OpAtlasError, UsageError
from opatlas.row import columns as col
from opatlas.row.quality import Floats, Mask
from opatlas.row.roofline import PEAKS, Peak, device_peak
from opatlas.row.slots import known_dtype
from opatlas.text import suggest
from opatlas.yaml_file import read_yaml

from .kernels import BLOCK_DIM, CALL_US, MIX_BLOCK_DIM

_Rate = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Cores = Annotated[int, msgspec.Meta(gt=0)]
#: Columns that the work of a kernel depends on.
_WORK_COLUMNS = (*col.INPUT_SLOTS, *col.OUTPUT_SLOTS, *col.EXTRA_IN_SIGNATURE)
#: No Ascend device has more cores: a larger Block Dim is a number of blocks that wait for cores.
_MOST_CUBE_CORES, _MOST_VECTOR_CORES = 32, 64


class _PeaksFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of --peaks: bandwidth in GB/s, rates in 10^12 operations/s for each dtype."""

    device: str = ""
    bandwidth_gbps: _Rate | None = None
    tera_ops: dict[str, _Rate] = {}
    cube_cores: _Cores | None = None
    vector_cores: _Cores | None = None


_REMEDY = (
    f"give a YAML mapping of {', '.join(_PeaksFile.__struct_fields__)} (numbers above 0; tera_ops: {{BF16: 313}}), or "
    "the name of a device whose peaks OpAtlas knows"
)


@dataclass(frozen=True)
class DevicePeaks:
    """What a device can do.

    Attributes:
        peak: memory bandwidth and arithmetic rates.
        cube_cores, vector_cores: the cores of an Ascend device; None if they are not known.
        origin: where the peaks are from; "" if none is known.
        origin_of_cores: where the numbers of cores are from; "" if they are not known.
    """

    peak: Peak = field(default_factory=Peak)
    cube_cores: int | None = None
    vector_cores: int | None = None
    origin: str = ""
    origin_of_cores: str = ""

    def with_cores_of(self, frame: pd.DataFrame) -> DevicePeaks:
        """Returns the peaks with the least numbers of cores by the blocks that ran at once, unless they have some.

        Chips with both have two vector cores for each cube core (AKG, docs of hardware).
        """
        if self.cube_cores or self.vector_cores or not {BLOCK_DIM, col.ACCELERATOR_CORE} <= {*frame.columns}:
            return self

        def most(column: str, cores: tuple[str, ...], at_most: int) -> int:
            blocks = (
                frame[column][frame[col.ACCELERATOR_CORE].isin(cores)] if column in frame else pd.Series(dtype=float)
            )
            return int(np.nan_to_num(blocks[(blocks <= at_most) & (blocks > 0)].max()))

        cube = most(BLOCK_DIM, ("AI_CORE", "MIX_AIC"), _MOST_CUBE_CORES)
        vector = most(BLOCK_DIM, ("AI_VECTOR_CORE", "MIX_AIV"), _MOST_VECTOR_CORES)
        vector = max(vector, most(MIX_BLOCK_DIM, ("MIX_AIC",), _MOST_VECTOR_CORES))
        if vector:
            cube = max(cube, (vector + 1) // 2)
            vector = 2 * cube
        if not cube:
            return self
        return replace(self, cube_cores=cube, vector_cores=vector or None, origin_of_cores="the largest Block Dim")


def known_peaks(device: str) -> DevicePeaks:
    """Returns the peaks of a device by its data sheet; none for an unknown device."""
    peak = device_peak(device)
    return DevicePeaks(peak, origin=f"data sheet of {device}" if peak.bandwidth_gbps else "")


def read_peaks(text: str) -> DevicePeaks:
    """Returns the peaks of a YAML file, or of a device that is named.

    Raises:
        UsageError: there is no such file or device, or the file holds something else.
    """
    path = Path(text)
    if not path.is_file():
        if (of_name := known_peaks(text)).origin:
            return of_name
        raise UsageError(f"--peaks {text}: neither a file nor a known device{suggest(text, PEAKS)}: {_REMEDY}")
    try:
        given = read_yaml(path, _PeaksFile)
    except OpAtlasError as error:
        raise UsageError(f"--peaks {error}: {_REMEDY}") from None
    of_device = device_peak(given.device)
    rates = dict(of_device.tera_ops)
    for word, rate in given.tera_ops.items():
        dtype = known_dtype(word)
        if dtype is None:
            raise UsageError(f"--peaks {path}: tera_ops: {word}: no such dtype: name one as FLOAT16, BF16 or INT8")
        rates[dtype.name] = rate
    has_cores = given.cube_cores is not None or given.vector_cores is not None
    return DevicePeaks(
        Peak(given.bandwidth_gbps or of_device.bandwidth_gbps, rates),
        given.cube_cores,
        given.vector_cores,
        str(path),
        str(path) if has_cores else "",
    )


@dataclass(frozen=True)
class RooflineShares:
    """Which part of the roofline kernels reach.

    Attributes:
        share: least time by the peaks / duration; NaN where work or peaks are unknown.
        by_arithmetic: whether the arithmetic peak bounds the kernel, and not the memory.
        gbps: 10^9 bytes/s moved; NaN if unknown.
    """

    share: Floats
    by_arithmetic: Mask
    gbps: Floats

    def bound(self, line: int) -> str:
        """Returns what bounds a kernel, and the bandwidth that it reaches: `memory, 1,200 GB/s`."""
        return f"{'arithmetic' if self.by_arithmetic[line] else 'memory'}, {self.gbps[line]:,.0f} GB/s"


def roofline_shares(frame: pd.DataFrame, peak: Peak) -> RooflineShares:
    """Returns the shares of the roofline, by the msopprof formula achieved / min(peak, intensity x bandwidth).

    Args:
        frame: a table of `kernels.py`. The inputs of a row that was measured with a warm cache are not in memory.
    """
    names = [TYPE, *(name for name in _WORK_COLUMNS if name in frame.columns)]
    codes, unique = pd.MultiIndex.from_frame(frame[names]).factorize() if len(frame) else (np.array([], int), [])
    works = [kernel_work(str(key[0]), dict(zip(names[1:], map(str, key[1:]), strict=True))) for key in unique]
    moved = np.array([np.nan if work is None else work.moved_bytes for work in works], dtype=np.float64)[codes]
    least_us = (
        np.array(
            [
                np.nan if work is None else (work.operations or 0) / peak.tera_ops.get(work.dtype, np.inf)
                for work in works
            ],
            dtype=np.float64,
        )[codes]
        / 1e6
    )
    duration_us = frame[CALL_US if CALL_US in frame.columns else DURATION].to_numpy(np.float64)
    gbps = moved / duration_us / 1e3
    memory = gbps / (peak.bandwidth_gbps or np.nan)
    if col.CACHE_STATE in frame.columns:
        memory = np.where(frame[col.CACHE_STATE].to_numpy() == "warm", np.nan, memory)
    arithmetic = np.where(least_us > 0, least_us / duration_us, np.nan)
    by_arithmetic = np.nan_to_num(arithmetic, nan=-1) >= np.nan_to_num(memory, nan=-0.5)
    return RooflineShares(np.fmax(memory, arithmetic), by_arithmetic, gbps)
