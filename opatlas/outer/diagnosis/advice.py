"""What to do for each verdict, and which API does it: advice.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from opatlas.outer.diagnosis.rules import KernelVerdict

#: Where kernels are written, in the order of advice.yaml.
_NPU_LANGUAGES, _GPU_LANGUAGES = ("AscendC", "Triton-Ascend", "TBE"), ("CUDA", "Triton")
LANGUAGES = (*_NPU_LANGUAGES, *_GPU_LANGUAGES)


@dataclass(frozen=True)
class Advice:
    """What to do for a verdict.

    Attributes:
        what, zh: in a sentence, in English and in Chinese.
        apis: what does it, by language; without languages that have nothing for it.
        document: the line of the table of the article on bottlenecks; "" if the table has none.
        source: where the advice is from.
    """

    what: str
    zh: str
    apis: Mapping[str, str]
    document: str
    source: str

    def apis_of(self, device: str) -> dict[str, str]:
        """Returns the APIs of the languages of a device; "" is a device of a capture, an NPU."""
        languages = _GPU_LANGUAGES if is_gpu(device) else _NPU_LANGUAGES
        return {language: self.apis[language] for language in languages if language in self.apis}


def is_gpu(device: str) -> bool:
    """Returns whether kernels of a device are written in CUDA or Triton."""
    return device.startswith("NVIDIA")


@cache
def advice() -> Mapping[KernelVerdict, Advice]:
    """Returns the advice for each verdict."""
    text = resources.files(__package__).joinpath("advice.yaml").read_bytes()
    return {
        verdict: Advice(
            entry["what"],
            entry["zh"],
            {language: entry[language] for language in LANGUAGES if language in entry},
            entry.get("document", ""),
            entry["source"],
        )
        for verdict, entry in msgspec.yaml.decode(text, type=dict[KernelVerdict, dict[str, str]]).items()
    }
