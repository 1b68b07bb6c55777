"""The verdicts on kernels, and the rules, limits and sources of rules.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

import msgspec


class KernelVerdict(str, Enum):
    """Why a kernel is slow, or that it is not. rules.yaml has the rule of each."""

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


@dataclass(frozen=True, eq=False)
class VerdictRule:
    """The rule of a verdict.

    Attributes:
        zh: the verdict in Chinese.
        test: what holds, with the limits.
        limits: thresholds by name.
        columns: cells that the rule reads, by the names of kernel_details.
        counters: metric group of the profiler that has the columns; "" if every capture has them.
        published: whether a public capture has values of the metric group.
        decides: whether the verdict may be the first one of a kernel.
        source: the tool, file or document that the rule comes from.
    """

    verdict: KernelVerdict
    zh: str
    test: str
    limits: Mapping[str, int | float]
    columns: tuple[str, ...]
    source: str
    counters: str = ""
    published: bool = True
    decides: bool = True


@cache
def verdict_rules() -> Mapping[KernelVerdict, VerdictRule]:
    """Returns the rules in the order of importance."""
    text = resources.files(__package__).joinpath("rules.yaml").read_bytes()
    rules = {}
    for verdict, entry in msgspec.yaml.decode(text, type=dict[KernelVerdict, dict[str, Any]]).items():
        rule = msgspec.convert({"verdict": verdict, **entry}, VerdictRule)
        rules[verdict] = replace(rule, test=rule.test.format(**rule.limits))
    return rules


def limit(verdict: KernelVerdict, name: str) -> float:
    """Returns a threshold of a rule."""
    return verdict_rules()[verdict].limits[name]
