"""`opatlas compare --calls`: the file with the calls of a model's step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from opatlas.ask.compare.step import read_step

from .target import Target, expect, refusing


def _seeds() -> Iterator[bytes]:
    parts = [
        {"part": "qkv", "kernel_type": "MatMulV2", "signature": "1,2;3,2|BF16;BF16||1,3|BF16", "calls": 64, "us": 1.5},
        {"part": "norm", "kernel_type": "RmsNorm", "signature": "1,2|BF16||1,2|BF16", "calls": 1, "us": None},
    ]
    yield json.dumps({"model": "Qwen/Qwen3-32B", "us": 97.5, "parts": parts}, indent=2).encode()


def _check(data: bytes, folder: Path) -> None:
    path = folder / "step.json"
    path.write_bytes(data)
    with refusing(path):
        step = read_step(path)
        expect(step == read_step(path), "a second reading is another one")
        counts = [count for of_type in step.by_kernel_type().values() for count in of_type.values()]
        expect(sum(counts) == sum(part.calls for part in step.parts), "calls are lost")
        expect(min(counts) >= 0 < max(counts), "a number of calls below 0, or none")


STEP = Target(
    "step",
    "the calls of a step are read, or refused with the file",
    _seeds,
    _check,
    (b'"calls"', b'"parts"', b"[]", b"-1", b"1e99", b"18446744073709551616", b"null", b"\\ud800"),
)
