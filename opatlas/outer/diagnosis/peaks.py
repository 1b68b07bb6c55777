"""The peaks and cores of a device, and which share of the roofline each kernel reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Meta

from opatlas.arrays import Floats
from opatlas.ask.query.features import row_features
from opatlas.capture.capture_reader import DURATION, TYPE
from opatlas.errors import OpAtlasError, UsageError
from opatlas.row.columns import (
    ATTENTION_TYPES,
    CACHE_STATE,
    INPUT_SLOTS,
    OUTPUT_SLOTS,
    RUNTIME_IN_SIGNATURE,
    RUNTIME_PREFIX,
)
from opatlas.row.roofline import PEAKS, Peak, Work, device_peak, row_work
from opatlas.row.sizes import attention_sizes, grouped_sizes
from opatlas.row.slots import Slot, known_dtype, row_slots
from opatlas.text import suggest
from opatlas.yaml_file import YamlError, parse_yaml

_Rate = Annotated[float, Meta(gt=0, le=1e9)]
_Cores = Annotated[int, Meta(gt=0)]


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
#: Columns that the work of a kernel depends on.
_WORK_COLUMNS = (*INPUT_SLOTS, *OUTPUT_SLOTS, *RUNTIME_IN_SIGNATURE)
#: The lengths of keys, the layout of attention, and the layouts whose sizes are read from shapes.
_LENGTHS, _LAYOUT = RUNTIME_PREFIX + "actual_seq_lengths_kv_values", RUNTIME_PREFIX + "input_layout"
_LAYOUTS = ("TND", "BNSD")


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

    @property
    def are_known(self) -> bool:
        """Whether there is a roof."""
        return bool(self.peak.bandwidth_gbps or self.peak.tera_ops)

    def with_cores(self, cube: int | None, vector: int | None, origin: str) -> DevicePeaks:
        """Returns the peaks with numbers of cores, unless they have some."""
        if self.cube_cores or self.vector_cores or not (cube or vector):
            return self
        return replace(self, cube_cores=cube, vector_cores=vector, origin_of_cores=origin)


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
        if (of_name := known_peaks(text)).are_known:
            return of_name
        raise UsageError(f"--peaks {text}: neither a file nor a known device{suggest(text, PEAKS)}: {_REMEDY}")
    try:
        given = msgspec.convert(parse_yaml(path.read_bytes(), strict=True), _PeaksFile)
    except (OSError, YamlError, msgspec.ValidationError) as error:
        raise UsageError(f"--peaks {path}: {error}: {_REMEDY}") from None
    of_device = device_peak(given.device)
    bandwidth = of_device.bandwidth_gbps if given.bandwidth_gbps is None else given.bandwidth_gbps
    has_cores = given.cube_cores is not None or given.vector_cores is not None
    return DevicePeaks(
        Peak(bandwidth, {**of_device.tera_ops, **_rates(path, given.tera_ops)}),
        given.cube_cores,
        given.vector_cores,
        str(path),
        str(path) if has_cores else "",
    )


def _rates(path: Path, given: Mapping[str, float]) -> Mapping[str, float]:
    rates = {}
    for word, rate in given.items():
        dtype = known_dtype(word)
        if dtype is None:
            raise UsageError(f"--peaks {path}: tera_ops: {word}: no such dtype: name one as FLOAT16, BF16 or INT8")
        rates[dtype.name] = rate
    return rates


def kernel_work(kernel_type: str, cells: Mapping[str, str]) -> Work | None:
    """Returns the work of a kernel; None if it is unknown.

    Beside `row_work`: products of experts, with the weights of as many experts as may have tokens, and attention whose
    lengths of sequences are known.
    """
    work = row_work(kernel_type, cells)
    if work is not None:
        return work
    try:
        inputs, _ = row_slots(kernel_type, cells)
        features = row_features(kernel_type, cells, 1) if grouped_sizes(kernel_type, inputs) is not None else None
    except OpAtlasError:
        return None
    if features is not None:
        moved, operations, _ = features.work
        return Work(int(moved), int(moved), int(operations), inputs[0].dtype)
    return _attention_work(kernel_type, inputs, cells)


def _attention_work(kernel_type: str, inputs: Sequence[Slot], cells: Mapping[str, str]) -> Work | None:
    """Returns the work of attention: each key and value is read once, each query and result once."""
    is_fused = kernel_type in ATTENTION_TYPES
    if is_fused and not (cells.get(_LENGTHS) and cells.get(_LAYOUT, "").startswith(_LAYOUTS)):
        return None
    sizes = attention_sizes(kernel_type, inputs, cells)
    dtype = known_dtype(inputs[0].dtype) if sizes is not None else None
    if sizes is None or dtype is None:
        return None
    read, moved = sizes.read_elements * dtype.bytes, sizes.moved_elements * dtype.bytes
    return Work(read, moved, sizes.operations, inputs[0].dtype)


@dataclass(frozen=True)
class RooflineShares:
    """Which part of the roofline kernels reach.

    Attributes:
        share: least time by the peaks / duration; NaN where work or peaks are unknown.
        by_arithmetic: whether the arithmetic peak bounds the kernel, and not the memory.
        gbps: 10^9 bytes/s moved; NaN if unknown.
    """

    share: Floats
    by_arithmetic: npt.NDArray[np.bool_]
    gbps: Floats


def roofline_shares(frame: pd.DataFrame, peak: Peak) -> RooflineShares:
    """Returns the shares of the roofline, by the msopprof formula achieved / min(peak, intensity x bandwidth).

    Args:
        frame: a table of `kernels.py`. The inputs of a row that was measured with a warm cache are not in memory.
    """
    names = [TYPE, *(name for name in _WORK_COLUMNS if name in frame.columns)]
    codes, unique = pd.MultiIndex.from_frame(frame[names]).factorize() if len(frame) else (np.array([], int), [])
    works = [kernel_work(str(key[0]), dict(zip(names[1:], map(str, key[1:]), strict=True))) for key in unique]
    moved = np.array([np.nan if work is None else work.moved_bytes for work in works], dtype=np.float64)
    done = np.array(
        [np.nan if work is None else (work.operations or 0) / peak.tera_ops.get(work.dtype, np.inf) for work in works],
        dtype=np.float64,
    )
    duration_us = frame[DURATION].to_numpy(np.float64)
    gbps = (moved[codes] if len(works) else np.full(len(frame), np.nan)) / duration_us / 1e3
    arithmetic = (done[codes] if len(works) else np.full(len(frame), np.nan)) / 1e6 / duration_us
    memory = gbps / peak.bandwidth_gbps if peak.bandwidth_gbps else np.full(len(frame), np.nan)
    if CACHE_STATE in frame.columns:
        memory = np.where(frame[CACHE_STATE].to_numpy() == "warm", np.nan, memory)
    arithmetic = np.where(arithmetic > 0, arithmetic, np.nan)
    share = np.fmax(memory, arithmetic)
    return RooflineShares(share, np.nan_to_num(arithmetic, nan=-1) >= np.nan_to_num(memory, nan=-0.5), gbps)
