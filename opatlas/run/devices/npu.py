"""Implements an Ascend NPU as a device."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceUnhealthy, Unsupported
from opatlas.row.versions import cann_version
from opatlas.run.devices import npu_operators, npu_smi
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, probe
from opatlas.run.devices.device_lock import LockHolder, device_lock
from opatlas.run.devices.npu_smi import Chip
from opatlas.run.devices.torch_npu import import_torch_npu
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, open_instrument

#: L2 size of A2 and A3, which CANN does not always report.
_ASSUMED_L2_BYTES = 192 << 20
#: Smaller reported sizes count as missing.
_LEAST_L2_BYTES = 1 << 20
#: Bytes read per byte of L2 cache; a policy other than least-recently-used keeps some lines in one pass.
_FLUSH_FACTOR = 2


class NpuDevice:
    """The NPU of a spec. Concurrent rows run one at a time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        """Opens the device.

        Raises:
            OpAtlasError: torch_npu, CANN, the driver or the device is missing; with the remedy.
            DeviceUnhealthy: the device exists but cannot be opened.
        """
        self._torch_npu = import_torch_npu()
        self._npu: Any = torch.get_device_module("npu")
        _expect_visible(self._npu)
        # Weights keep the format FRACTAL_NZ, as in a loaded model.
        self._npu.config.allow_internal_format = True
        self.torch_device = torch.device("npu", 0 if spec.sees_no_other else spec.index)
        try:
            self._npu.set_device(self.torch_device)
            self._properties = self._npu.get_device_properties(self.torch_device)
        except RuntimeError as error:
            raise DeviceUnhealthy(f"{spec} cannot be opened: {_short_message(error)}") from error
        self._settings = settings
        self._spec = spec
        self._chip = _chip_of(spec)
        reported_bytes = int(getattr(self._properties, "L2_cache_size", 0) or 0)
        self._l2_is_reported = reported_bytes >= _LEAST_L2_BYTES
        self._l2_bytes = reported_bytes if self._l2_is_reported else _ASSUMED_L2_BYTES
        self._flush_buffer: torch.Tensor | None = None
        number = self._chip.physical if self._chip else spec.pinned[1] if spec.pinned else spec.index
        self._lock = device_lock(f"npu{number}")

    def describe(self) -> DeviceDescription:
        said = npu_smi.query_chip(self._chip)
        facts: dict[str, str | int | float | None] = {
            "torch": str(torch.__version__),
            "torch_npu": str(self._torch_npu.__version__),
            "vllm_ascend": _version("vllm-ascend"),
            # The running CANN, and the installed CANN that names the database's folder. Both should be the same.
            "cann": _module_version(self._npu, "CANN"),
            "cann_toolkit": cann_version(),
            "driver": said.board.get("Software Version") or _module_version(self._npu, "DRIVER"),
            "firmware": said.board.get("Firmware Version"),
            "soc": self._properties.name,
            "ai_cores": getattr(self._properties, "cube_core_num", None),
            "vector_cores": getattr(self._properties, "vector_core_num", None),
            "memory_bytes": self._properties.total_memory,
            "l2_cache_bytes": self._l2_bytes,
            "l2_cache_bytes_are": "told by the device" if self._l2_is_reported else "assumed",
            "visible_as": "=".join(self._spec.pinned) if self._spec.pinned and self._spec.sees_no_other else None,
            "custom_opp_path": os.environ.get(npu_operators.PATH_VARIABLE),
            "chip": self._chip.name if self._chip else None,
            "chip_place": f"{self._chip.npu}.{self._chip.chip} (davinci{self._chip.physical})" if self._chip else None,
            "npu_smi": "asked" if self._chip else "not on PATH, or it does not show this device",
            **{f"npu_smi {name}": value for name, value in said.board.items()},
        }
        return DeviceDescription(
            name=self._spec.name or str(self._properties.name),
            facts={name: fact for name, fact in facts.items() if fact is not None},
            state=said.state,
            no_custom_operators=npu_operators.registration_obstacle(),
        )

    def instrument(self) -> Instrument:
        return open_instrument("npu", self._settings)

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        if npu is None:
            raise Unsupported("the kernel has no call of its own on an NPU")
        return npu_operators.load_npu_call(npu)

    def available_bytes(self) -> int:
        """Returns the device's free memory plus the unused memory of torch's allocator, in bytes."""
        free, _ = self._npu.mem_get_info(self.torch_device)
        held = self._npu.memory_reserved(self.torch_device) - self._npu.memory_allocated(self.torch_device)
        return int(free + held)

    def release_memory(self) -> None:
        gc.collect()
        self._npu.empty_cache()

    def probe(self) -> None:
        probe(self.torch_device)

    def synchronize(self) -> None:
        self._npu.synchronize(self.torch_device)

    def flush_cache(self, touched: Sequence[torch.Tensor] | None = None) -> None:
        # The buffer is read, because written lines would be written back during the next sample.
        if self._flush_buffer is None:
            self._flush_buffer = torch.ones(_FLUSH_FACTOR * self._l2_bytes // 4, device=self.torch_device)
        self._flush_buffer.sum()

    def locked(
        self, when_waiting: Callable[[LockHolder], None], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> AbstractContextManager[object]:
        return self._lock.held(when_waiting, when_taken, limit_s)


def _expect_visible(npu: Any) -> None:
    """Raises OpAtlasError if the process sees no NPU."""
    if npu.device_count():
        return
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    nodes = sorted(path.name for path in Path("/dev").glob("davinci[0-9]*"))
    manager = Path("/dev/davinci_manager")
    if not nodes or not manager.exists():
        raise OpAtlasError(
            f"there is no NPU here (no /dev/{'davinci0' if not nodes else manager.name}): load the driver, or, in a "
            f"container, pass on /dev/davinci0 ..., /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc"
        )
    if not os.access(manager, os.R_OK | os.W_OK):
        raise OpAtlasError(f"{manager} may not be opened by this user: add it to the driver's group (HwHiAiUser)")
    raise OpAtlasError(
        f"CANN shows no NPU, though /dev has {', '.join(nodes)}"
        + (f": ASCEND_RT_VISIBLE_DEVICES is {visible!r}, list some of the present NPUs" if visible is not None else "")
        + "; npu-smi info shows whether the NPUs are healthy"
    )


def _chip_of(spec: DeviceSpec) -> Chip | None:
    """Returns npu-smi's entry of a device; None if npu-smi does not list the device."""
    logic = spec.pinned[1] if spec.pinned else str(spec.index)
    return next((chip for chip in npu_smi.list_chips() if str(chip.logic) == logic), None)


def _module_version(npu: Any, module: str) -> str | None:
    try:
        return str(npu.utils.get_cann_version(module)) or None
    except (AttributeError, RuntimeError):  # torch_npu is older, or does not have the module
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _short_message(error: Exception) -> str:
    """Returns the first line of an error, which names the failure, and the line with CANN's reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = [line for line in lines[1:] if re.match(r"\[Error\]:|E[A-Z0-9]\d{4}\b", line)]
    return " ".join([*lines[:1], *why[:1]]) or type(error).__name__
