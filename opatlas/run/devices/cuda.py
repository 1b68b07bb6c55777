"""NVIDIA GPUs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceUnhealthy
from opatlas.row.location import slug
from opatlas.row.versions import cuda_version
from opatlas.run.devices import device as base
from opatlas.run.devices.system import read_text, run_tool
from opatlas.text import first_line, parse_whole

if TYPE_CHECKING:
    from opatlas.run.devices.fatal_errors import FatalErrors
    from opatlas.run.instruments.instrument import Instrument, MeasureSettings, Rule, Samples

#: Codes, names and words of errors that are fatal: enums cudaError (cudaError...) and CUresult (CUDA_ERROR_...) of the
#: CUDA Runtime and Driver APIs, cudaGetErrorString of CUDA 13.0.
_FATAL = """\
226 Contained CONTAINED Invalid access of peer GPU memory over nvlink or a hardware error
700 IllegalAddress ILLEGAL_ADDRESS an illegal memory access was encountered
702 LaunchTimeout LAUNCH_TIMEOUT the launch timed out and was terminated
710 Assert ASSERT device-side assert triggered
714 HardwareStackError HARDWARE_STACK_ERROR hardware stack error
715 IllegalInstruction ILLEGAL_INSTRUCTION an illegal instruction was encountered
716 MisalignedAddress MISALIGNED_ADDRESS misaligned address
717 InvalidAddressSpace INVALID_ADDRESS_SPACE operation not supported on global/shared address space
718 InvalidPc INVALID_PC invalid program counter
719 LaunchFailure LAUNCH_FAILED unspecified launch failure
721 TensorMemoryLeak TENSOR_MEMORY_LEAK tensor memory not completely freed
810 MpsClientTerminated MPS_CLIENT_TERMINATED the MPS client has been terminated by the server
911 ExternalDevice EXTERNAL_DEVICE an async error has occured in external entity outside of CUDA
"""
#: Not documented as fatal. But no argument of an operator causes these errors: the hardware failed, or the driver does
#: not serve this process any more.
_UNSERVED = """\
46 DevicesUnavailable DEVICE_UNAVAILABLE CUDA-capable device(s) is/are busy or unavailable
214 ECCUncorrectable ECC_UNCORRECTABLE uncorrectable ECC error encountered
220 NvlinkUncorrectable NVLINK_UNCORRECTABLE uncorrectable NVLink error detected during the execution
709 ContextIsDestroyed CONTEXT_IS_DESTROYED context is destroyed
802 SystemNotReady SYSTEM_NOT_READY system not yet initialized
805 MpsConnectionFailed MPS_CONNECTION_FAILED MPS client failed to connect to the MPS control daemon or the MPS server
806 MpsRpcFailure MPS_RPC_FAILURE the remote procedural call between the MPS server and the MPS client failed
807 MpsServerNotReady MPS_SERVER_NOT_READY MPS server is not ready to accept new MPS client requests
808 MpsMaxClientsReached MPS_MAX_CLIENTS_REACHED the hardware resources required to create MPS client have been \
exhausted
809 MpsMaxConnectionsReached MPS_MAX_CONNECTIONS_REACHED the hardware resources required to support device connections \
have been exhausted
999 Unknown UNKNOWN unknown error
"""


def _fatal_errors() -> FatalErrors:
    from opatlas.run.devices.fatal_errors import FatalErrors, any_of

    lines = (line.split(" ", 3) for line in (_FATAL + _UNSERVED).splitlines())
    errors = {
        int(code): ((f"cudaError{name}", f"CUDA_ERROR_{driver_name}"), (words,))
        for code, name, driver_name, words in lines
    }
    names = [name for names, _ in errors.values() for name in names]
    words = [text for _, texts in errors.values() for text in texts]
    return FatalErrors(
        "CUDA",
        errors,
        # "CUDA error: 700", "CUDA driver error (700)", "cuda runtime error (700) :", "Cuda failure 700 '...'" (NCCL).
        number=re.compile(
            r"\bcuda[ _]?(?:driver |runtime )?(?:error|failure|status)(?: code)?[\s=:(]{1,3}(\d{1,4})(?!\w|\.\d)",
            re.IGNORECASE,
        ),
        # Words count only after "CUDA" in a line ("CUDA error:", "Triton Error [CUDA]:").
        texts=re.compile(rf"\b({any_of(names)})\b|(?<![\w-])({any_of(words)})(?!\w)"),
        context="cuda",
        # Status of a CUDA library's operator after the failure of its own kernel or of an earlier kernel.
        failed=re.compile(r"\b(?:CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_EXECUTION_FAILED\w*|CUFFT_EXEC_FAILED)\b"),
        memory=re.compile(
            r"\bcudaErrorMemoryAllocation\b|\bCUDA_ERROR_OUT_OF_MEMORY\b|\bCU[A-Z]+_(?:STATUS_)?ALLOC_FAILED\b"
        ),
    )


#: Version of the loaded kernel module, also visible in containers.
_NVIDIA_MODULE = Path("/sys/module/nvidia/version")
#: Without persistence mode nvidia-smi loads the driver first, which takes seconds for each GPU.
_TIMEOUT_S = 60
_GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-fA-F-]+)\)$", re.MULTILINE)


class Cuda(base.DeviceKind):
    """The kind of NVIDIA GPUs."""

    name = "cuda"
    rank = 2
    device_names = re.compile(r"NVIDIA|Tesla|GeForce|Quadro|TITAN|RTX|GTX|AMD_(Instinct|Radeon)", re.IGNORECASE)
    software = "torch{torch}_cuda{cuda}"
    library = "nccl"
    library_version = "{nccl}"
    assumed_s_a_row = 0.05
    opener = "opatlas.run.devices.cuda:CudaDevice"
    backend = "nccl"
    visible = "CUDA_VISIBLE_DEVICES"
    tool = "nvidia-smi"
    instruments: ClassVar[Mapping[str, str]] = {
        "cupti": "opatlas.run.instruments.cupti:open_cupti",
        "kineto": "opatlas.run.instruments.kernel_records:open_kineto",
        "cuda-events": "opatlas.run.instruments.instrument:open_device_events",
    }
    events = "cuda-events"
    resource = "GPU"
    kernel_language = "triton"
    dispatch_key = "CUDA"
    has_float64 = True
    has_graphs = True
    has_bytes = True

    @cached_property
    def fatal_errors(self) -> FatalErrors:
        return _fatal_errors()

    def is_present(self) -> bool:
        return not base.is_hidden(self.visible) and bool(cuda_version()) and bool(list_gpus())

    def find(self, name: str | None) -> list[base.DeviceSpec]:
        """Returns a spec for each visible GPU, or each visible GPU of a name. Raises OpAtlasError if no GPU fits."""
        present = list_gpus()
        if not present:
            raise OpAtlasError(
                f"--device {name or self.name}: there is no NVIDIA GPU here (nvidia-smi shows none, or is not on "
                f"PATH): in a container, pass the GPUs on (docker run --gpus all ...); leave --device out to replay on "
                f"another device"
            )
        ids = base.visible_ids(self.visible, len(present))
        if not ids:
            raise OpAtlasError(f"{self.visible} shows none of {len(present)} GPUs: unset it, or list some (0,1)")
        visible = {entry: _gpu(entry, present) for entry in ids}
        names = {gpu.name for gpu in visible.values()}
        if name is None and len(names) > 1:
            raise OpAtlasError(
                f"the visible GPUs are {' and '.join(sorted(names))}, whose durations belong into separate folders: "
                f"name one with --device, or list GPUs of one kind in {self.visible}"
            )
        # CUDA numbers unlike GPUs by speed, and nvidia-smi by PCI bus. A UUID names the same GPU for both.
        by_uuid = self.visible not in os.environ or len({gpu.name for gpu in present}) > 1
        chosen = [gpu.uuid if by_uuid else entry for entry, gpu in visible.items() if name in (None, gpu.name)]
        if not chosen:
            raise OpAtlasError(f"--device {name} is no visible GPU ({', '.join(sorted(names))}): name one of them")
        return base.pin_devices(base.DeviceSpec(self.name, name=name or names.pop()), self.visible, chosen)

    def driver_version(self) -> str | None:
        asked = ("--query-gpu=driver_version", "--format=csv,noheader")
        said = read_text(_NVIDIA_MODULE) or run_tool(self.tool, *asked, timeout_s=_TIMEOUT_S)
        return said.partition("\n")[0].strip()

    def state(self, spec: base.DeviceSpec, own: Collection[int], opened: bool) -> base.DeviceState | None:
        from opatlas.run.devices.nvml import gpu_state

        return gpu_state(spec.pinned[1], own, opened) if spec.pinned is not None else None


KIND = Cuda()


@dataclass(frozen=True)
class Gpu:
    """A GPU that nvidia-smi shows.

    Attributes:
        index: position on the PCI bus.
        name: slug of its product name: "NVIDIA_H200".
        uuid: "GPU-..."; identifies the GPU in CUDA_VISIBLE_DEVICES independently of the order.
    """

    index: int
    name: str
    uuid: str


def list_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs of this machine or container; () if nvidia-smi is missing or fails. MIG instances are none."""
    shown = run_tool(KIND.tool, "-L", timeout_s=_TIMEOUT_S)
    return tuple(Gpu(int(index), slug(name), uuid) for index, name, uuid in _GPU.findall(shown))


def _gpu(entry: str, present: Sequence[Gpu]) -> Gpu:
    """Returns the GPU of an entry of CUDA_VISIBLE_DEVICES: a number of nvidia-smi, or the beginning of a UUID.

    Raises:
        OpAtlasError: the entry names no GPU.
    """
    index = parse_whole(entry)
    found = present[index] if index is not None else next((gpu for gpu in present if gpu.uuid.startswith(entry)), None)
    if found is None:
        raise OpAtlasError(
            f"{KIND.visible} names {entry!r}, which is not among the GPUs here "
            f"({', '.join(gpu.uuid for gpu in present)}); parts of a GPU (MIG) are not replayed on"
        )
    return found


#: Bytes read per byte of L2 cache. More than one, because a policy other than least-recently-used keeps some lines in
#: one pass. Factors of one, two and eight gave the same durations on an H200.
_FLUSH_FACTOR = 1.5


class CudaDevice(base.Accelerator):
    """The only GPU that this process sees. Rows of concurrent sessions run one at a time."""

    def __init__(self, spec: base.DeviceSpec, settings: MeasureSettings) -> None:
        """Opens the device.

        Raises:
            OpAtlasError: torch has no CUDA support, or the driver or the device is missing; with the remedy.
            DeviceUnhealthy: the device exists but cannot be opened.
        """
        import torch

        from opatlas.run.devices.device_lock import device_lock
        from opatlas.run.devices.nvml import Nvml

        _expect_visible()
        self.spec, self.settings, self.module = spec, settings, torch.cuda
        self.torch_device = torch.device(KIND.name, 0)
        try:
            torch.cuda.set_device(self.torch_device)
            self._properties = torch.cuda.get_device_properties(self.torch_device)
            self.flush_bytes = int(_FLUSH_FACTOR * self._properties.L2_cache_size)
            self.flush_cache()
        except RuntimeError as error:
            raise DeviceUnhealthy(f"{spec} cannot be opened: {first_line(str(error))}") from error
        self._uuid = f"GPU-{self._properties.uuid}"
        self._nvml = Nvml(self._uuid)
        self.lock = device_lock(self._uuid)
        # Rows of FLOAT compute in float32. For matrix products this is torch's default.
        torch.backends.cudnn.allow_tf32 = False

    def describe(self) -> base.DeviceDescription:
        import torch
        from torch.distributed import is_nccl_available

        major, minor = torch.cuda.get_device_capability(self.torch_device)
        return base.DeviceDescription(
            name=self.spec.name or slug(self._properties.name),
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

    def readings(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in self._nvml.state().items() if isinstance(value, (int, float))}

    def instrument(self) -> Instrument:
        return UnthrottledInstrument(super().instrument(), self._nvml.throttles)


#: Pause between two questions whether the throttling has ended, in seconds, and the most pauses of a row. A power cap
#: of an earlier row ends within tenths of a second; a longer one comes from the row itself.
_PAUSE_S, _MOST_PAUSES = 0.005, 100
#: Samples that take longer together throttle the device themselves. On two H200s 84 of 87 of these rows throttled it
#: again after a wait; of 108 rows whose samples took less than 100 ms, 3.
_OWN_THROTTLING_US = 150_000
#: Behind so long samples an H200 does not tell of low clocks: a fifth of the rows within 60 ms took a quarter longer.
_HEATING_US, _REST_S = 15_000, 0.06


class UnthrottledInstrument:
    """Wraps an instrument: waits until the device is not throttled, and repeats samples of a throttled device once.

    Samples of a row that throttles the device itself are repeated at once, so that all are samples of the same clocks.

    Attributes:
        name: name of the wrapped instrument.
        wrapped: the wrapped instrument.
    """

    def __init__(
        self,
        instrument: Instrument,
        throttles: Callable[[], tuple[str, ...]],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            instrument: the wrapped instrument.
            throttles: returns why the clocks are lowered now; () for normal clocks.
            sleep: waits some seconds; replaced in tests.
        """
        self.name = instrument.name
        self.wrapped = instrument
        self._throttles = throttles
        self._sleep = sleep

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does, without samples of a throttled device.

        The notes count discarded samples; `throttled` refers to the kept samples.
        """
        pauses = [_PAUSE_S] * _MOST_PAUSES
        dropped, reasons = 0, self._wait(pauses)
        samples = self.wrapped.sample(call, before_each, rule)
        reasons = self._throttles() or reasons
        again = rule.again() if reasons and pauses else None
        if again is not None:
            dropped = len(samples.durations_us)
            # The throttling of a short row comes from an earlier row. A long row is measured in its own steady state.
            reasons = self._wait(pauses) if sum(samples.durations_us) < _OWN_THROTTLING_US else ()
            samples = self.wrapped.sample(call, before_each, again)
            reasons = self._throttles() or reasons
        if sum(samples.durations_us) > _HEATING_US:
            self._sleep(_REST_S)
        were = "sample was" if dropped == 1 else "samples were"
        notes = [f"{dropped} {were} dropped: the device was throttled"] if dropped else []
        throttled = f"the device was throttled ({', '.join(reasons)})" if reasons else ""
        return replace(samples, notes=(*samples.notes, *notes), throttled=throttled)

    def _wait(self, pauses: list[float]) -> tuple[str, ...]:
        """Waits until the device is not throttled, or no pause is left. Returns why it is still throttled."""
        while (reasons := self._throttles()) and pauses:
            self._sleep(pauses.pop())
        return reasons


def _expect_visible() -> None:
    """Raises OpAtlasError if torch cannot use a GPU."""
    import torch

    if torch.version.cuda is None:
        raise OpAtlasError(f"torch {torch.__version__} has no CUDA: install a build for CUDA, or give --device cpu")
    if torch.cuda.device_count():
        return
    visible = os.environ.get(KIND.visible)
    raise OpAtlasError(f"no GPU ({KIND.visible}={visible!r}): see nvidia-smi; torch has CUDA {torch.version.cuda}")
