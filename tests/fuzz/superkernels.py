"""Captures and maps of modules of `opatlas diagnose --superkernel`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import captures
from decode_timelines import MOE_LAYER, collective, decode_steps, launches_of, write_timeline

from .target import Target, command, expect

_MAP = b'"*Norm": attention\n"SwiGlu_*": ffn\nGroupedMatmul: moe\n'


def _seeds() -> Iterator[bytes]:
    dense = decode_steps(layers=2, steps=2)
    dense.insert(9, collective("hcom_allReduce_", 10.0, -4.0, "0"))
    yield captures.capture_text(launches_of(dense)).encode()
    yield captures.summary_text(launches_of(decode_steps(layers=3, steps=1, layer=MOE_LAYER))).encode()


def _check(data: bytes, folder: Path) -> None:
    path = folder / "kernel_details.csv"
    path.write_bytes(data)
    status, out, errors = command("diagnose", path, "--superkernel", "--json")
    expect(status in (0, 1), f"exit status {status}")
    if status:
        expect(str(path) in errors, f"no place: {errors}")
        return
    found = json.loads(out)
    for scope in found["scopes"]:
        expect(scope["fused_kernels"] <= scope["kernels"], f"more fused than there are: {scope}")
        expect(scope["saved_us"] <= scope["gaps_us"] + 1e-6, f"saves more than its gaps: {scope}")
    expect(found["upper_bound"]["kernels"] <= found["kernels"], "more kernels in stretches than there are")


def _check_map(data: bytes, folder: Path) -> None:
    path = folder / "map.yaml"
    path.write_bytes(data)
    capture = write_timeline(folder / "kernel_details.csv", decode_steps(layers=2, steps=1))
    status, _, errors = command("diagnose", capture, "--superkernel", "--module-map", path)
    expect(status == 0 or str(path) in errors, f"exit status {status}, {errors}")


TIMELINE = Target(
    "timeline",
    "scopes of kernel_details and op_summary: nested counts, nothing saved but gaps",
    _seeds,
    _check,
    (b"Step Id", b"Stream ID", b"static", b"dynamic", b"AI_CPU", b"Wait Time(us)", b"nan", b"inf", b"-1", b"1e300"),
)
MODULE_MAP = Target(
    "module-map",
    "maps of modules: read, or named",
    lambda: iter([_MAP]),
    _check_map,
    (b"attention", b"moe", b"*", b"["),
)
