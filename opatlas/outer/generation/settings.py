"""Settings of the loop of attempts: the language of the kernels, and the limits. Imports only the standard library."""

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
        """The language in which the static rules require a candidate; "" for any."""
        return {"triton-ascend": "triton", "torch": ""}.get(self.value, self.value)


#: What a model is asked for, by kind of device; TORCH for devices of other kinds.
LANGUAGE_OF_KIND = {"npu": KernelLanguage.TRITON_ASCEND, "cuda": KernelLanguage.TRITON}


@dataclass(frozen=True)
class LoopLimits:
    """When a loop ends without a kernel that passes.

    Attributes:
        attempts: the most attempts, the first one included.
        same_failures: the number of attempts in a row with the same failure (class and text) that ends the loop.
        cost_usd: the cost of all attempts of the run, of all models, in US dollars from which no request is sent;
            None: no limit.
        deadline_s: the age of the loop in seconds after which it sends no request.
        max_tokens: the largest number of tokens of an answer.
    """

    attempts: int = 5
    same_failures: int = 3
    cost_usd: float | None = None
    deadline_s: float = 3_600.0
    max_tokens: int = 8_192
