"""Captures of `opatlas diagnose`, and maps of modules of `--superkernel`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import captures
from decode_timelines import MOE_LAYER, collective, decode_steps, launches_of, write_timeline

from .target import Target, command, expect

_COUNTERS = ("aiv_vec_ratio", "aiv_mte2_ratio", "aic_mac_ratio", "aiv_write_cache_hit", "aiv_write_cache_miss_allocate")
_COLUMNS = (*captures.KERNEL_DETAILS[:-1], *_COUNTERS)
_LAUNCHES = [
    {**captures.launched("MatMulV3", 30.5), "Block Dim": "20", "aic_mac_ratio": "0.9"},
    {**captures.launched("Add", 3), "Accelerator Core": "AI_VECTOR_CORE", "Block Dim": "1", "aiv_mte2_ratio": "0.85"},
    {**captures.launched("Cast", 40), "Accelerator Core": "AI_CPU", "Wait Time(us)": "12.5"},
    captures.launch({**captures.COLLECTIVE, "aiv_vec_ratio": "N/A"}),
]


def _seeds() -> Iterator[bytes]:
    yield captures.capture_text(_LAUNCHES, _COLUMNS).encode()
    yield captures.summary_text(_LAUNCHES).encode()


def _check(data: bytes, folder: Path) -> None:
    path = folder / "kernel_details.csv"
    path.write_bytes(data)
    peaks = ("--peaks", "ATLAS_800_A2_313T_64G")
    status, out, errors = command("diagnose", path, *peaks, "--json")
    expect(status in (0, 1), f"exit status {status}")
    expect(not status or str(path) in errors, f"no place: {errors}")
    if not out:
        return
    found = json.loads(out)
    ranking = found["ranking"]
    expect(sum(each["launches"] for each in ranking) == found["kernels"], "launches of the ranking do not add up")
    lost = [each["lost_us"] for each in ranking]
    expect(lost == sorted(lost, reverse=True), "the ranking is in another order")
    expect(all(0 <= each["lost_us"] <= each["duration_us"] * 1.000001 for each in ranking), "more lost than it took")
    expect(
        all(each["kernels"] <= found["kernels"] + found["collectives"] for each in found["verdicts"].values()), "more"
    )
    status, out, _ = command("diagnose", path, *peaks, *(("--row", "1") if ranking else ()))
    expect(out, f"exit status {status}, and nothing to read")


DIAGNOSIS = Target(
    "diagnosis",
    "verdicts on captures: no launch is lost, none loses more time than it takes",
    _seeds,
    _check,
    (
        b"Block Dim",
        b"AI_CPU",
        b"MIX_AIC",
        b"Wait Time(us)",
        b"aiv_mte2_ratio",
        b"nan",
        b"inf",
        b"-1",
        b"1e300",
        b"HCCL",
    ),
)


_MAP = b'"*Norm": attention\n"SwiGlu_*": ffn\nGroupedMatmul: moe\n'


def _seeds_of_timeline() -> Iterator[bytes]:
    dense = decode_steps(layers=2, steps=2)
    dense.insert(9, collective("hcom_allReduce_", 10.0, -4.0, "0"))
    yield captures.capture_text(launches_of(dense)).encode()
    yield captures.summary_text(launches_of(decode_steps(layers=3, steps=1, layer=MOE_LAYER))).encode()


def _check_timeline(data: bytes, folder: Path) -> None:
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
    _seeds_of_timeline,
    _check_timeline,
    (b"Step Id", b"Stream ID", b"static", b"dynamic", b"AI_CPU", b"Wait Time(us)", b"nan", b"inf", b"-1", b"1e300"),
)
MODULE_MAP = Target(
    "module-map",
    "maps of modules: read, or named",
    lambda: iter([_MAP]),
    _check_map,
    (b"attention", b"moe", b"*", b"["),
)
