"""What to do for each verdict, and which API does it: advice.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from opatlas.diagnosis.rules import KernelVerdict

#: Where kernels are written, in the order of advice.yaml.
LANGUAGES = ("AscendC", "Triton-Ascend", "TBE", "CUDA", "Triton")


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
