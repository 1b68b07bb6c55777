"""A stand-in for an NPU under msprof: computes on the CPU, and reports the launches of an NPU to the stand-in msprof.

Every operator that runs here becomes a kernel of the profile, as on a device: fills, copies, flushes,
marks, and the kernels of the check. The call of a row becomes the kernels that the test chose. Copied,
with stand_in_msprof.py, next to the replays of a test's folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.devices.device_lock import DeviceLock
from opatlas.run.instruments.instrument import MarkedLaunches, MeasureSettings
from opatlas.run.job import Job
from opatlas.run.kernel_call import OperatorMode
from opatlas.run.runner import Runner

#: The file from which the stand-in msprof reads the launches.
LAUNCHES = "STAND_IN_LAUNCHES"
#: By kernel type: the kernels that a call of it launches, where it is not that type alone. Each is a type, with the
#: row's tensors and duration, or has `type`, and may have `us` and `cells`: those that are other than the row's.
KERNELS = "STAND_IN_KERNELS"
NOISE_US = 1.4
#: By the operator of torch: HCCL's name of a collective, and the AI CPU's kernel that carries it, which profiles of
#: CANN 8.3 and later list too.
COLLECTIVES = {
    "allreduce_": ("hcom_allReduce_", "allreduceAicpuKernel"),
    "_allgather_base_": ("hcom_allGather_", "allgatherAicpuKernel"),
    "_reduce_scatter_base_": ("hcom_reduceScatter_", "reduce_scatterAicpuKernel"),
    "alltoall_base_": ("hcom_alltoallv_", "alltoallvAicpuKernel"),
    "broadcast_": ("hcom_broadcast_", "broadcastAicpuKernel"),
}
_DTYPES = {torch.float32: "FLOAT", torch.bfloat16: "DT_BF16", torch.float16: "FLOAT16", torch.int64: "INT64"}


class StandInNpu(CpuDevice):
    """One NPU, which runs one process's rows."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        super().__init__(spec, settings)
        self.lock = DeviceLock(Path(tempfile.gettempdir()) / f"opatlas-stand-in-{os.getuid()}-{spec.index}.lock")
        self._log = _Log(Path(os.environ[LAUNCHES])) if LAUNCHES in os.environ else None
        self._job: Job | None = None
        self._calls = 0
        if self._log is not None:
            # For the life of the process.
            self._log.__enter__()
        self._learn_of_rows()

    def describe(self) -> DeviceDescription:
        return DeviceDescription("Ascend910_9392", {"visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")})

    def instrument(self) -> MarkedLaunches:
        return MarkedLaunches("msprof", self.torch_device, self.synchronize)

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self._log is None:
                return impl(*arguments, **keywords)
            with self._log.silent():
                result = impl(*arguments, **keywords)
            assert self._job is not None
            self._log.row(self._job, self._calls)
            self._calls += 1
            return result

        if npu:
            call.__qualname__ = npu.partition(" or ")[0]
        return call

    def _learn_of_rows(self) -> None:
        """A real device need not know which row it runs: it has kernels of its own."""
        run_raising = Runner.run_raising

        def run(runner: Runner, job: Job) -> Any:
            self._job, self._calls = job, 0
            return run_raising(runner, job)

        Runner.run_raising = run  # type: ignore[method-assign]


class _Log(OperatorMode):
    """Writes a line for each kernel, at once: the process may be killed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        # For the life of the process.
        self._file = open(path, "a")  # noqa: SIM115
        self._silent = False
        self._kernels: dict[str, list[Any]] = json.loads(os.environ.get(KERNELS, "{}"))

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        result = operator(*arguments, **keywords)
        if operator.namespace == "c10d":
            self._collective(operator.overloadpacket.__name__)
        elif not self._silent:
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            name = operator.overloadpacket.__name__.strip("_").title().replace("_", "")
            shapes = ";".join(",".join(map(str, tensor.shape)) for tensor in tensors)
            dtypes = ";".join(_DTYPES.get(tensor.dtype, "INT32") for tensor in tensors)
            self._line(name, NOISE_US, {"Input Shapes": shapes, "Input Data Types": dtypes})
        return result

    def _collective(self, operator: str) -> None:
        """What profiles hold of a collective of this rank: it is there twice."""
        if operator in COLLECTIVES and not self._silent:
            kernel_type, carrier = COLLECTIVES[operator]
            us = collective_us(int(os.environ["RANK"]))
            self._line(kernel_type, us, {}, f"{kernel_type}_781_0_1")
            self._line(carrier, us - 1, {}, carrier)

    @contextmanager
    def silent(self):
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def row(self, job: Job, call: int) -> None:
        """The kernels of a call, which take `duration_us`."""
        size = int(job.cells["Input Shapes"].strip('"').partition(";")[0].partition(",")[0] or 1)
        for kernel in self._kernels.get(job.kernel_type, [job.kernel_type]):
            launched = {"type": kernel} if isinstance(kernel, str) else kernel
            cells = {k: v for k, v in {**job.cells, **launched.get("cells", {})}.items() if v}
            self._line(launched["type"], launched.get("us", duration_us(size, call)), cells)

    def _line(self, kernel_type: str, duration: float, cells: dict[str, str], name: str = "") -> None:
        self._file.write(json.dumps({"type": kernel_type, "us": duration, "cells": cells, "name": name}) + "\n")
        self._file.flush()


def collective_us(rank: int) -> float:
    """The duration of a collective on a rank."""
    return 50.0 + 10 * rank


def duration_us(size: int, call: int) -> float:
    """The durations of a row's calls, warm-up first, by the row's first dimension: each has its own."""
    return size + call * 0.25
