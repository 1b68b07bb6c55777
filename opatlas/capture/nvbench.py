"""The JSON of nvbench (`--json nvbench.json`, `--jsonbin nvbench.json`): a state of a benchmark is a row.

The row's kernel type is the name of the benchmark with its axes of types, texts and real numbers (`copy.T=F32`), its
only input the axes of whole numbers: sizes, not a tensor, so that neither bytes nor a roofline follow from them. With
--jsonbin the durations are all isolated samples of the GPU, else their mean. Source: nvbench/json_printer.cu, JSON 1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec
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


class _Value(msgspec.Struct):
    name: str
    type: str = ""
    value: str = ""


class _Summary(msgspec.Struct):
    tag: str
    data: list[_Value] = []


class _State(msgspec.Struct):
    device: int | None = None
    axis_values: list[_Value] | None = None
    summaries: list[_Summary] | None = None

    def value(self, tag: str, name: str) -> str:
        """Returns a value of the summary with a tag; "" if there is none, as of a state that was skipped."""
        found = (each for summary in self.summaries or () if summary.tag == tag for each in summary.data)
        return next((each.value for each in found if each.name == name), "")


class _Benchmark(msgspec.Struct):
    name: str
    states: list[_State]


class _Device(msgspec.Struct):
    id: int
    name: str


class _Output(msgspec.Struct):
    benchmarks: list[_Benchmark]
    devices: list[_Device] = []

    def used(self) -> set[int | None]:
        return {state.device for benchmark in self.benchmarks for state in benchmark.states}


def read_nvbench(path: Path, root: Path, on_bytes: Callable[[int], None]) -> CapturedLaunches:
    """Reads the states of the benchmarks (`CaptureReader`). Raises TableError."""
    output = _read(path)
    # Whoever asked for the device before has it.
    _read.cache_clear()
    launches = CapturedLaunches(path, root, duration=_MEAN)
    kinds: list[NDArray[np.int32]] = []
    durations: list[NDArray[np.float64]] = []
    for benchmark in output.benchmarks:
        for state in benchmark.states:
            kernel_type, sizes = _row(benchmark, state)
            cells = {col.INPUT_SHAPES: sizes, col.INPUT_DTYPES: _SIZES, col.INPUT_FORMATS: "ND"}
            durations.append(_durations_us(path, state))
            kinds.append(np.full(len(durations[-1]), launches.kind(kernel_type, cells, 0), dtype=np.int32))
    all_us = np.concatenate([np.empty(0), *durations])
    launches.add(np.concatenate([np.empty(0, np.int32), *kinds]), all_us, {}, lambda at: (0, str(all_us[at])))
    on_bytes(path.stat().st_size)
    return launches


def nvbench_device(path: Path) -> str | None:
    """Returns the device of the benchmarks, as the folder of its databases is called. Raises TableError."""
    output = _read(path)
    return next((slug(device.name) for device in output.devices if device.id in output.used()), None)


@lru_cache(maxsize=1)
def _read(path: Path) -> _Output:
    try:
        output = decode(read_file(path, _LARGEST_BYTES, "correct the path or its rights"), _Output, "the JSON")
    except DecodeError as error:
        raise TableError(path, str(error), "Give the file that nvbench writes with --json") from None
    if len(output.used()) > 1:
        raise TableError(
            path, f"durations of {len(output.used())} devices", "Run the benchmarks with --devices N, for each"
        )
    return output


def _row(benchmark: _Benchmark, state: _State) -> tuple[str, str]:
    axes = state.axis_values or []
    named = [f"{each.name}={each.value}" for each in axes if each.type != "int64"]
    sizes = [each.value for each in axes if each.type == "int64"]
    return ".".join([benchmark.name, *named]), ",".join(sizes or ["1"])


def _durations_us(path: Path, state: _State) -> NDArray[np.float64]:
    """Returns the durations of a state in microseconds; none of one that was skipped."""
    file, mean = state.value(_SAMPLES, "filename"), state.value(_MEAN, "value")
    # nvbench names the file by its own working directory.
    places = [path.parent / file, path.parent / Path(file).parent.name / Path(file).name] if file else []
    samples = next((place for place in places if place.is_file()), None)
    if samples is not None:
        return np.fromfile(samples, dtype="<f4").astype(np.float64) * 1e6
    return np.array([float(mean) * 1e6] if mean else [])
