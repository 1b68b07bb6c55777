"""What the loop of attempts is told: the language of the kernels, and when to end. Imports nothing that takes time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class KernelLanguage(str, Enum):
    """What kernels are written in."""

    TRITON = "triton"
    TRITON_ASCEND = "triton-ascend"
    TORCH = "torch"
    CUDA = "cuda"

    def __str__(self) -> str:
        return self.value

    @property
    def of_rules(self) -> str:
        """The language whose static rules hold for a candidate; "" if those of all languages do."""
        return {"triton-ascend": "triton", "torch": ""}.get(self.value, self.value)


#: What a model is asked for, by kind of device; TORCH for devices of other kinds.
LANGUAGE_OF_KIND = {"npu": KernelLanguage.TRITON_ASCEND, "cuda": KernelLanguage.TRITON}


@dataclass(frozen=True)
class LoopLimits:
    """When a loop ends without a kernel that passes.

    Attributes:
        attempts: the most attempts, the first one included.
        same_failures: so many attempts in a row with one class and one text end the loop.
        cost_usd: no request is sent once the attempts of the run cost as much; None: no limit.
        deadline_s: no request is sent so many seconds after the first of this session.
        max_tokens: the largest number of tokens of an answer.
    """

    attempts: int = 5
    same_failures: int = 3
    cost_usd: float | None = None
    deadline_s: float = 3_600.0
    max_tokens: int = 8_192
