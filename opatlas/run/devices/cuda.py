"""Implements an NVIDIA GPU as a device."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed import is_nccl_available

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceUnhealthy
from opatlas.row.location import slug
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, probe
from opatlas.run.devices.device_lock import LockHolder, device_lock
from opatlas.run.devices.nvidia import open_nvml
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, open_instrument
from opatlas.run.instruments.sample_filters import UnthrottledInstrument
from opatlas.text import first_line

#: Bytes read per byte of L2 cache. More than one, because a policy other than least-recently-used keeps some lines in
#: one pass. Factors of one, two and eight gave the same durations on an H200.
_FLUSH_FACTOR = 1.5
#: Row length of the flush buffer. Row sums are one launch; a sum of all elements also launches a fill.
_FLUSH_WIDTH = 4096


class CudaDevice:
    """The only GPU that this process sees. Rows of concurrent sessions run one at a time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        """Opens the device.

        Raises:
            OpAtlasError: torch has no CUDA support, or the driver or the device is missing; with the remedy.
            DeviceUnhealthy: the device exists but cannot be opened.
        """
        _expect_visible()
        self.torch_device = torch.device("cuda", 0)
        self._settings = settings
        self._spec = spec
        try:
            torch.cuda.set_device(self.torch_device)
            self._properties = torch.cuda.get_device_properties(self.torch_device)
            rows = math.ceil(_FLUSH_FACTOR * self._properties.L2_cache_size / (4 * _FLUSH_WIDTH))
            self._flush_buffer = torch.ones(rows, _FLUSH_WIDTH, device=self.torch_device)
            self._flushed = torch.empty(rows, device=self.torch_device)
        except RuntimeError as error:
            raise DeviceUnhealthy(f"{spec} cannot be opened: {first_line(str(error))}") from error
        self._uuid = f"GPU-{self._properties.uuid}"
        self._nvml = open_nvml(self._uuid)
        self._lock = device_lock(self._uuid)
        # Rows of FLOAT compute in float32. For matrix products this is torch's default.
        torch.backends.cudnn.allow_tf32 = False

    def describe(self) -> DeviceDescription:
        major, minor = torch.cuda.get_device_capability(self.torch_device)
        return DeviceDescription(
            name=self._spec.name or slug(self._properties.name),
            facts={
                "uuid": self._uuid,
                "torch": str(torch.__version__),
                "cuda": str(torch.version.cuda),
                "cudnn": torch.backends.cudnn.version() or 0,
                "compute_capability": f"{major}.{minor}",
                "multiprocessors": self._properties.multi_processor_count,
                "memory_bytes": self._properties.total_memory,
                "l2_cache_bytes": self._properties.L2_cache_size,
                **({"nccl": ".".join(map(str, torch.cuda.nccl.version()))} if is_nccl_available() else {}),
                **self._nvml.facts(),
            },
            state=self._nvml.state(),
        )

    def instrument(self) -> Instrument:
        return UnthrottledInstrument(open_instrument("cuda", self._settings), self._nvml.throttles)

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        return impl

    def available_bytes(self) -> int:
        """Returns the device's free memory plus the unused memory of torch's allocator, in bytes."""
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        # One call, because memory_reserved and memory_allocated each sort about a hundred statistics (0.2 ms a row).
        bytes_of = torch.cuda.memory_stats_as_nested_dict(self.torch_device)
        held = bytes_of["reserved_bytes"]["all"]["current"] - bytes_of["allocated_bytes"]["all"]["current"]
        return int(free + held)

    def release_memory(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def probe(self) -> None:
        probe(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def flush_cache(self, touched: Sequence[torch.Tensor] | None = None) -> None:
        # The buffer is read, because written lines would be written back during the next sample.
        torch.sum(self._flush_buffer, dim=1, out=self._flushed)

    def locked(
        self, when_waiting: Callable[[LockHolder], None], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> AbstractContextManager[object]:
        return self._lock.held(when_waiting, when_taken, limit_s)


def _expect_visible() -> None:
    """Raises OpAtlasError if torch cannot use a GPU."""
    if torch.version.cuda is None:
        raise OpAtlasError(
            f"torch {torch.__version__} was built without CUDA: install a build for CUDA to replay on the GPU, "
            f"or replay on the CPU with --device cpu"
        )
    if torch.cuda.device_count():
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise OpAtlasError(
        f"torch.cuda finds no GPU (CUDA_VISIBLE_DEVICES is {visible!r}): check with nvidia-smi that the driver is "
        f"new enough for this torch's CUDA {torch.version.cuda}"
    )
