"""The verdicts on kernels, of all at once; rules.yaml has the rule of each, with its limits, sources and advice."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from opatlas.capture.capture_reader import DURATION, TYPE, WAIT
from opatlas.row import columns as col
from opatlas.row.communication import is_communication
from opatlas.row.quality import Floats, Mask, Quality, is_composition
from opatlas.text import Word

from .kernels import BLOCK_DIM, LAUNCHES, MIX_BLOCK_DIM, KernelLines
from .peaks import DevicePeaks, RooflineShares

_NPU_LANGUAGES, _GPU_LANGUAGES = ("AscendC", "Triton-Ascend", "TBE"), ("CUDA", "Triton")
#: Where kernels are written.
LANGUAGES = (*_NPU_LANGUAGES, *_GPU_LANGUAGES)


class KernelVerdict(Word):
    """Why a kernel is slow, or that it is not."""

    ABOVE_ROOF = "above the roof"
    AICPU = "AICPU"
    SEVERAL_KERNELS = "several kernels"
    CLOCK = "clock"
    AT_ROOF = "at the roof"
    NOT_ENOUGH_WORK = "not enough work"
    BANK_CONFLICT = "bank conflict"
    MEMORY_BOUND = "memory bound"
    STORE_BOUND = "store bound"
    SCALAR_BOUND = "scalar bound"
    COMPUTE_BOUND = "compute bound"
    DATA_LAYOUT = "data layout"
    CONTROL_FLOW = "control flow"
    BOUND_BY_NOTHING = "bound by nothing"
    LATENCY_BOUND = "latency bound"
    HOST_BOUND = "host-bound"
    LOW_VECTOR = "low vector utilization"
    BELOW_ROOF = "below the roof"
    L2_MISSES = "L2 misses"


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do for a verdict.

    Attributes:
        what, zh: in a sentence, in English and in Chinese.
        source: where the advice is from.
        apis: what does it, by language; without languages that have nothing for it.
        document: the line of the table of the article on bottlenecks; "" if the table has none.
    """

    what: str
    zh: str
    source: str
    apis: Mapping[str, str] = {}
    document: str = ""

    def apis_of(self, device: str) -> dict[str, str]:
        """Returns the APIs of the languages of a device; "" is the device of a capture, an NPU."""
        languages = _GPU_LANGUAGES if is_gpu(device) else _NPU_LANGUAGES
        return {language: self.apis[language] for language in languages if language in self.apis}


class VerdictRule(msgspec.Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """The rule of a verdict.

    Attributes:
        verdict: the verdict.
        zh: the verdict in Chinese.
        test: what holds, with the limits.
        limits: thresholds by name.
        columns: cells that the rule reads, by the names of kernel_details.
        source: the tool, file or document that the rule comes from.
        advice: what to do.
        counters: metric group of the profiler that has the columns; "" if every capture has them.
        kernel_types: patterns of the kernel types that the rule is about; none for all.
    """

    verdict: KernelVerdict
    zh: str
    test: str
    limits: Mapping[str, int | float]
    columns: tuple[str, ...]
    source: str
    advice: Advice
    counters: str = ""
    kernel_types: tuple[str, ...] = ()


@cache
def verdict_rules() -> Mapping[KernelVerdict, VerdictRule]:
    """Returns the rules in the order of importance."""
    text = resources.files(__package__).joinpath("rules.yaml").read_bytes()
    return {
        verdict: msgspec.convert(
            {**entry, "verdict": verdict, "test": entry["test"].format(**entry["limits"])}, VerdictRule
        )
        for verdict, entry in msgspec.yaml.decode(text, type=dict[KernelVerdict, dict[str, Any]]).items()
    }


def limit(verdict: KernelVerdict, name: str) -> float:
    """Returns a threshold of a rule."""
    return verdict_rules()[verdict].limits[name]


def is_gpu(device: str) -> bool:
    """Returns whether kernels of a device are written in CUDA or Triton."""
    return device.startswith("NVIDIA")


Texts = npt.NDArray[np.object_]
_CUBE, _VECTOR, _MIX = ("AI_CORE",), ("AI_VECTOR_CORE", "MIX_AIV"), ("MIX_AIC", "MIX_AIV")
_AI_CORES = ("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV")
#: Values of Accelerator Core of collectives, in older and newer captures.
_COLLECTIVES = ("HCCL", "COMMUNICATION")
#: The pipes, and the verdict on a kernel that each bounds. Of equally busy pipes the first counts.
PIPES: Mapping[str, KernelVerdict] = {
    "aic_mte2_ratio": KernelVerdict.MEMORY_BOUND,
    "aiv_mte2_ratio": KernelVerdict.MEMORY_BOUND,
    "aic_mte1_ratio": KernelVerdict.MEMORY_BOUND,
    "aic_fixpipe_ratio": KernelVerdict.STORE_BOUND,
    "aiv_mte3_ratio": KernelVerdict.STORE_BOUND,
    "aic_scalar_ratio": KernelVerdict.SCALAR_BOUND,
    "aiv_scalar_ratio": KernelVerdict.SCALAR_BOUND,
    "aic_mac_ratio": KernelVerdict.COMPUTE_BOUND,
    "aiv_vec_ratio": KernelVerdict.COMPUTE_BOUND,
}
_BANK_CONFLICTS = ("aiv_vec_bankgroup_cflt_ratio", "aiv_vec_bank_cflt_ratio")
#: A library's own parts of one kernel: the reduction of a product split along K, the merge of attention split along
#: the keys, and what prepares the arguments.
_OWN_PARTS = re.compile(
    r"splitk\w*reduce|reduce\w*split_?k|splitkv\w*combine|MergeStates?|prepare_grouped_gemm|Indices\w*Offsets",
    re.IGNORECASE,
)
_CLOCKS = ("Current Freq", "Rated Freq")
#: The hit rate of the L2 cache, from the counters of hits and misses.
L2_HIT_RATE = "L2 hit rate"
_HIT, _MISS = "cache_hit", "cache_miss_allocate"


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on the kernels of a table.

    Attributes:
        holds: for each verdict the kernels of which it holds.
        first: for each kernel the verdict to act on; "" for none.
        is_collective: kernels that communicate, of which no verdict holds.
        l2_hit_rate: hits / (hits + misses); NaN where the counters are missing.
        long_waits: launches, collectives included, that start late after the one before.
        wait_share: waits / (waits + durations) of all launches; NaN for a database, or a capture without waits.
    """

    holds: Mapping[KernelVerdict, Mask]
    first: Texts
    is_collective: Mask
    l2_hit_rate: Floats
    long_waits: Mask
    wait_share: float


def apply_rules(table: KernelLines, peaks: DevicePeaks, shares: RooflineShares) -> Verdicts:
    """Returns the verdicts on all kernels of a table."""
    frame, of = table.frame, KernelVerdict
    core = _cells(frame, col.ACCELERATOR_CORE)
    duration_us = frame[DURATION].to_numpy(np.float64)
    collective = np.isin(core, _COLLECTIVES) | frame[TYPE].map(is_communication).to_numpy(bool)
    # A database of another device than an NPU has cells of Accelerator Core, too, but no counters.
    on_core = (np.isin(core, _AI_CORES) | (core == "")) & ~collective
    busiest, ratio = _busiest_pipe(frame, on_core)
    of_pipe = np.array([PIPES.get(pipe, "") for pipe in busiest], dtype=object)
    bound = ratio > limit(of.MEMORY_BOUND, "ratio")
    at_roof, above = limit(of.AT_ROOF, "share"), limit(of.ABOVE_ROOF, "share")
    below = shares.share <= limit(of.BELOW_ROOF, "share")
    short = duration_us <= _longest_of_latency(duration_us[~collective])
    unbound = (ratio <= limit(of.BOUND_BY_NOTHING, "ratio")) & (duration_us > limit(of.BOUND_BY_NOTHING, "us"))
    vector, cube = (_highest(frame, (name,)) for name in ("aiv_vec_ratio", "aic_mac_ratio"))
    of_vector = np.isin(core, _VECTOR) | ((core == "MIX_AIC") & ~(cube >= limit(of.LOW_VECTOR, "ratio")))
    # Rows of a database that no capture counts say nothing of how often a kernel runs.
    us = np.nan_to_num(duration_us * frame[LAUNCHES].to_numpy(np.float64))
    is_layout = _is_of(frame[TYPE], verdict_rules()[of.DATA_LAYOUT].kernel_types) & ~collective & (us > 0)
    often = us[is_layout].sum() > limit(of.DATA_LAYOUT, "share") * us[~collective].sum()
    hit_rate, clock_drop = _l2_hit_rate(frame), _clock_drop(frame)
    wait_share, long_waits = _waits(frame)
    kernels, span_us = (_highest(frame, (name,)) for name in (col.MICROBENCH_DEVICE_KERNELS, col.SPAN))
    late = (kernels > 1) & (span_us > limit(of.HOST_BOUND, "span_over_sum") * duration_us)
    found = {verdict: bound & (of_pipe == verdict) for verdict in dict.fromkeys(PIPES.values())} | {
        of.ABOVE_ROOF: shares.share > above,
        of.AICPU: (core == "AI_CPU") & (duration_us >= limit(of.AICPU, "us")) & table.is_capture,
        of.SEVERAL_KERNELS: _several_kernels(frame, kernels) & (not table.is_capture),
        of.CLOCK: (_cells(frame, col.QUALITY) == Quality.THROTTLED.value) | (clock_drop >= limit(of.CLOCK, "share")),
        of.AT_ROOF: (shares.share > at_roof) & (shares.share <= above),
        of.NOT_ENOUGH_WORK: _not_enough_work(frame, core, peaks) & on_core,
        of.BANK_CONFLICT: _highest(frame, _BANK_CONFLICTS) > limit(of.BANK_CONFLICT, "ratio"),
        of.DATA_LAYOUT: is_layout & often,
        of.CONTROL_FLOW: (unbound & (of_pipe == of.SCALAR_BOUND) & (ratio > limit(of.CONTROL_FLOW, "ratio")))
        | (_on_numbers(frame) & on_core & table.is_capture),
        of.BOUND_BY_NOTHING: unbound,
        of.LATENCY_BOUND: below & short,
        of.HOST_BOUND: (long_waits & (wait_share > limit(of.HOST_BOUND, "share"))) | late,
        of.LOW_VECTOR: unbound & (vector < limit(of.LOW_VECTOR, "ratio")) & of_vector,
        of.BELOW_ROOF: below & ~short,
        of.L2_MISSES: hit_rate < limit(of.L2_MISSES, "ratio"),
    }
    holds = {verdict: found[verdict] & ~collective for verdict in KernelVerdict}
    # A miss costs time where the kernel waits for memory, or where no ratio says for what.
    decides = {of.L2_MISSES: (of_pipe == of.MEMORY_BOUND) | (busiest == "")}
    first = np.full(len(frame), "", dtype=object)
    for verdict in reversed(list(verdict_rules())):
        first[holds[verdict] & decides.get(verdict, True)] = verdict
    return Verdicts(holds, first, collective, hit_rate, long_waits, wait_share)


def _is_of(kernel_types: pd.Series, patterns: tuple[str, ...]) -> Mask:
    """Returns whether each kernel type fits one of some patterns."""
    fits = {name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name in kernel_types.unique()}
    return kernel_types.map(fits).to_numpy(bool)


def _on_numbers(frame: pd.DataFrame) -> Mask:
    """Returns whether all tensors of each kernel have one element."""
    cells = _cells(frame, col.INPUT_SHAPES) + ";" + _cells(frame, col.OUTPUT_SHAPES)
    numbers = {cell: cell.strip(";") != "" and not set(re.findall(r"\d+", cell)) - {"1"} for cell in set(cells)}
    return np.array([numbers[cell] for cell in cells], dtype=bool)


def _longest_of_latency(duration_us: Floats) -> float:
    """Returns up to which duration launching a kernel may take most of it; 0 if no kernel is short enough to tell."""
    shortest_us = min(duration_us, default=np.inf)
    times, most_us = (limit(KernelVerdict.LATENCY_BOUND, name) for name in ("times", "us"))
    return times * shortest_us if shortest_us <= most_us else 0.0


def _cells(frame: pd.DataFrame, name: str) -> Texts:
    return frame[name].to_numpy() if name in frame.columns else np.full(len(frame), "", dtype=object)


def _highest(frame: pd.DataFrame, names: tuple[str, ...]) -> Floats:
    """Returns the highest of some columns; NaN where none has a number."""
    found = np.full(len(frame), np.nan)
    for name in names:
        if name in frame.columns:
            found = np.fmax(found, frame[name].to_numpy(np.float64))
    return found


def _divided(part: Floats, whole: Floats) -> Floats:
    """Returns quotients; NaN where the divisor is not above 0."""
    return np.asarray(part / np.where(whole > 0, whole, np.nan), dtype=np.float64)


def _busiest_pipe(frame: pd.DataFrame, on_core: Mask) -> tuple[Texts, Floats]:
    busiest, highest = np.full(len(frame), "", dtype=object), np.full(len(frame), np.nan)
    for pipe in PIPES:
        ratio = _highest(frame, (pipe,))
        higher = on_core & np.isfinite(ratio) & ~(ratio <= highest)
        busiest[higher], highest[higher] = pipe, ratio[higher]
    return busiest, highest


def _not_enough_work(frame: pd.DataFrame, core: Texts, peaks: DevicePeaks) -> Mask:
    """Tests whether the last wave leaves cores without work; of MIX kernels also by their blocks on vector cores."""
    blocks, mix = (_highest(frame, (name,)) for name in (BLOCK_DIM, MIX_BLOCK_DIM))
    cube, vector = (np.nan if each is None else each for each in (peaks.cube_cores, peaks.vector_cores))
    cores = np.where(np.isin(core, (*_CUBE, "MIX_AIC")), cube, vector)
    whole = np.isin(core, _MIX) & (mix > 0) & (mix % vector == 0)
    return (blocks > 0) & ((blocks < cores) | (blocks % cores > 0)) & ~whole


def _several_kernels(frame: pd.DataFrame, kernels: Floats) -> Mask:
    """Tests whether several kernels run in place of one.

    Fills, copies and a library's own parts of a kernel do not count.
    """
    parts = np.array(
        [sum(map(_is_part, cell.split(" + "))) for cell in _cells(frame, col.KERNEL_NAMES)], dtype=np.float64
    )
    judged = zip(_cells(frame, col.QUALITY), _cells(frame, col.STAND_IN), strict=True)
    is_judged = np.array([is_composition(*each) for each in judged], dtype=bool)
    return is_judged | (kernels - parts > limit(KernelVerdict.SEVERAL_KERNELS, "kernels"))


def _is_part(name: str) -> bool:
    return name.startswith(("memset", "memcpy")) or _OWN_PARTS.search(name) is not None


def _clock_drop(frame: pd.DataFrame) -> float:
    """Returns the mean of (rated - current) / rated clock; NaN if the clocks are not known."""
    current, rated = (_highest(frame, (name,)) for name in _CLOCKS)
    drops = _divided(rated - current, rated)
    return float(np.nanmean(drops)) if np.isfinite(drops).any() else float("nan")


def _waits(frame: pd.DataFrame) -> tuple[float, Mask]:
    """Returns the share of waits in waits and durations, and the launches that wait long."""
    waits = _highest(frame, (WAIT,))
    waited = float(np.nansum(waits))
    share = waited / (waited + float(frame[DURATION].sum())) if np.isfinite(waits).any() else float("nan")
    return share, waits > limit(KernelVerdict.HOST_BOUND, "us")


def _l2_hit_rate(frame: pd.DataFrame) -> Floats:
    hits, misses = (
        [frame[name].to_numpy(np.float64) for name in frame.columns if str(name).endswith(end)] for end in (_HIT, _MISS)
    )
    if not hits or not misses:
        return np.full(len(frame), np.nan)
    hit, missed = np.nansum(hits, axis=0), np.nansum(misses, axis=0)
    return _divided(hit, hit + missed)
