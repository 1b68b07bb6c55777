"""The JSON of nvbench (`--json nvbench.json`, `--jsonbin nvbench.json`): a state of a benchmark is a row.

The row's kernel type is the name of the benchmark with its axes of types, texts and real numbers (`copy.T=F32`), its
only input the axes of whole numbers: sizes, not a tensor, so that neither bytes nor a roofline follow from them. With
--jsonbin the durations are all isolated samples of the GPU, else their mean. Source: nvbench/json_printer.cu, JSON 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opatlas.capture.launches import CapturedLaunches
from opatlas.errors import TableError
from opatlas.files import read_file
from opatlas.row import columns as col
from opatlas.row.location import slug
from opatlas.typed_json import DecodeError, decode

_LARGEST_BYTES = 1 << 30
#: The dtype of sizes, which no tensor has.
_SIZES = "SIZES"
_MEAN, _SAMPLES = "nv/cold/time/gpu/mean", "nv/json/bin:nv/cold/sample_times"


@dataclass(frozen=True)
class _Value:
    name: str
    type: str = ""
    value: str = ""


@dataclass(frozen=True)
class _Summary:
    tag: str
    data: list[_Value] = field(default_factory=list)

    def value(self, name: str) -> str:
        return next((each.value for each in self.data if each.name == name), "")


@dataclass(frozen=True)
class _State:
    name: str
    device: int | None = None
    axis_values: list[_Value] | None = None
    summaries: list[_Summary] | None = None

    def value(self, tag: str, name: str) -> str:
        """Returns a value of the summary with a tag; "" if there is none, as of a state that was skipped."""
        return next((each.value(name) for each in self.summaries or () if each.tag == tag), "")


@dataclass(frozen=True)
class _Benchmark:
    name: str
    states: list[_State]


@dataclass(frozen=True)
class _Device:
    id: int
    name: str


@dataclass(frozen=True)
class _Output:
    benchmarks: list[_Benchmark]
    devices: list[_Device] = field(default_factory=list)


def read_nvbench(path: Path, root: Path, on_bytes: Callable[[int], None]) -> CapturedLaunches:
    """Reads the states of the benchmarks (`CaptureReader`). Raises TableError."""
    output = _read(path)
    launches = CapturedLaunches(path, root, duration=_MEAN)
    kinds: list[NDArray[np.int32]] = []
    durations: list[NDArray[np.float64]] = []
    for benchmark in output.benchmarks:
        for state in benchmark.states:
            kernel_type, sizes = _row(benchmark, state)
            cells = {col.INPUT_SHAPES: sizes, col.INPUT_DTYPES: _SIZES, col.INPUT_FORMATS: "ND"}
            kind = launches.kind(kernel_type, cells, 0)
            for us in _durations_us(path, state):
                kinds.append(np.full(len(us), kind, dtype=np.int32))
                durations.append(us)
    all_us = np.concatenate(durations or [np.empty(0)])
    launches.add(np.concatenate(kinds or [np.empty(0, np.int32)]), all_us, {}, lambda at: (0, str(all_us[at])))
    on_bytes(path.stat().st_size)
    return launches


def nvbench_device(path: Path) -> str | None:
    """Returns the device of the benchmarks, as the folder of its databases is called. Raises TableError."""
    output = _read(path)
    used = {state.device for benchmark in output.benchmarks for state in benchmark.states}
    return next((slug(device.name) for device in output.devices if device.id in used), None)


def _read(path: Path) -> _Output:
    try:
        output = decode(read_file(path, _LARGEST_BYTES, "correct the path or its rights"), _Output, "the JSON")
    except DecodeError as error:
        raise TableError(path, str(error), "Give the file that nvbench writes with --json") from None
    used = {state.device for benchmark in output.benchmarks for state in benchmark.states}
    if len(used) > 1:
        raise TableError(path, f"durations of {len(used)} devices", "Run the benchmarks with --devices N, for each")
    return output


def _row(benchmark: _Benchmark, state: _State) -> tuple[str, str]:
    axes = state.axis_values or []
    named = [f"{each.name}={each.value}" for each in axes if each.type != "int64"]
    sizes = [each.value for each in axes if each.type == "int64"]
    return ".".join([benchmark.name, *named]), ",".join(sizes or ["1"])


def _durations_us(path: Path, state: _State) -> Iterator[NDArray[np.float64]]:
    """Yields the durations of a state in microseconds, if it was not skipped."""
    file, mean = state.value(_SAMPLES, "filename"), state.value(_MEAN, "value")
    # nvbench names the file by its own working directory.
    places = [path.parent / file, path.parent / Path(file).parent.name / Path(file).name] if file else []
    samples = next((place for place in places if place.is_file()), None)
    if samples is not None:
        yield np.fromfile(samples, dtype="<f4").astype(np.float64) * 1e6
    elif mean:
        yield np.array([float(mean) * 1e6])
