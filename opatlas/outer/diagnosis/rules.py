"""The verdicts on kernels: rules.yaml has the rule of each, its limits and sources, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

import msgspec

_NPU_LANGUAGES, _GPU_LANGUAGES = ("AscendC", "Triton-Ascend", "TBE"), ("CUDA", "Triton")
#: Where kernels are written.
LANGUAGES = (*_NPU_LANGUAGES, *_GPU_LANGUAGES)


class KernelVerdict(str, Enum):
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
    BOUND_BY_NOTHING = "bound by nothing"
    LATENCY_BOUND = "latency bound"
    HOST_BOUND = "host-bound"
    LOW_VECTOR = "low vector utilization"
    BELOW_ROOF = "below the roof"
    L2_MISSES = "L2 misses"

    def __str__(self) -> str:
        return self.value


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
        published: whether a public capture has values of the metric group.
        decides: whether the verdict may be the first one of a kernel.
    """

    verdict: KernelVerdict
    zh: str
    test: str
    limits: Mapping[str, int | float]
    columns: tuple[str, ...]
    source: str
    advice: Advice
    counters: str = ""
    published: bool = True
    decides: bool = True


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
