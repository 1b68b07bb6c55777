"""Ascend NPUs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceUnhealthy, ReplayError, Unsupported
from opatlas.row.location import DEFAULT_NPU_DEVICE, NPU_DEVICES, UNNAMED_NPU, public_version
from opatlas.row.versions import cann_version, package_version, same_release
from opatlas.run.devices import device as base, npu_operators, npu_smi
from opatlas.run.devices.npu_smi import Chip
from opatlas.text import first_line

if TYPE_CHECKING:
    from opatlas.run.devices.fatal_errors import FatalErrors
    from opatlas.run.instruments.instrument import MeasureSettings

#: Codes, names and words of errors that are fatal. Codes and names: CANN Runtime, aclError.md and rt_error_codes.h.
#: Words: the runtime's errcode_manage.cc, quoted in messages as reason=[...] and desc=[...]; words in capitals:
#: torch_npu's NPUQueue.cpp. Of the codes 5xxxxx, errors within CANN or on the device, these mean that a task failed or
#: that the device is lost.
_FATAL = """\
507000 INTERNAL_ERROR runtime internal error
507001 TS_ERROR task scheduler internal error; task exception; tsfw unknown error
507010 LOST_HEARTBEAT lost heartbeat
507011 MODEL_EXECUTE model execute failed; the model stream execute failed
507013 SYS_DMA system DMA error; sdma copy error; sys dma transfer failed
507014 AICORE_TIMEOUT aicore timeout
507015 AICORE_EXCEPTION aicore exception
507016 AICORE_TRAP_EXCEPTION aicore trap exception
507017 AICPU_TIMEOUT aicpu timeout
507018 AICPU_EXCEPTION aicpu exception
507033 DEV_SETUP_ERROR device setup error; device retain error
507034 VECTOR_CORE_TIMEOUT vector core timeout
507035 VECTOR_CORE_EXCEPTION vector core exception
507036 VECTOR_CORE_TRAP_EXCEPTION vector core trap exception
507042 AICORE_TRAP_READ_OVERFLOW aicore trap read overflow
507043 AICORE_TRAP_WRITE_OVERFLOW aicore trap write overflow
507044 VECTOR_CORE_TRAP_READ_OVERFLOW vector core trap read overflow
507045 VECTOR_CORE_TRAP_WRITE_OVERFLOW vector core trap write overflow
507046 STREAM_SYNC_TIMEOUT stream sync timeout
507047 EVENT_SYNC_TIMEOUT event sync timeout
507048 FFTS_PLUS_TIMEOUT fftsplus timeout
507049 FFTS_PLUS_EXCEPTION fftsplus exception
507050 FFTS_PLUS_TRAP_EXCEPTION fftsplus trap exception
507053 DEVICE_MEM_ERROR device mem error; UCE ERROR
507054 HBM_MULTI_BIT_ECC_ERROR hbm Multi-bit ECC error; HBM MULTI BIT ECC ERROR
507055 SUSPECT_DEVICE_MEM_ERROR suspect device mem error; SUSPECT MEM ERROR
507056 LINK_ERROR device network link error; HCCS LINK ERROR
507057 SUSPECT_REMOTE_ERROR suspect remote error; SUSPECT REMOTE ERROR
507899 DRV_INTERNAL_ERROR driver error:internal error
507900 AICPU_INTERNAL_ERROR aicpu internal error
507901 SOCKET_CLOSE hdc disconnect
507904 COMM_OP_RETRY_FAIL hccl op retry failed; HCCL OP RETRY FAILED
"""


def _fatal_errors() -> FatalErrors:
    from opatlas.run.devices.fatal_errors import FatalErrors, any_of

    lines = (line.split(" ", 2) for line in _FATAL.splitlines())
    errors = {int(code): ((f"ACL_ERROR_RT_{name}",), words.split("; ")) for code, name, words in lines}
    names = [name for names, _ in errors.values() for name in names]
    words = [text for _, texts in errors.values() for text in texts]
    return FatalErrors(
        "Ascend",
        errors,
        # "error code is 507015", "error code:507015", "ErrCode=507015", "retCode=0x7bc87", "runtime result = 507015",
        # "aclrtSynchronizeStream(stream) failed: 507015", "run failed with code 507015".
        number=re.compile(
            r"(?:\berr(?:or)?[ _]?code|\bret(?:urn)?[ _]?code|\bret(?=\s*[=:])|\bruntime result|\bacl ?error"
            r"|\bacl\w+(?:\([^()\n]*\))? failed|\bfailed with code)"
            r"\s*(?:is\b)?[\s=:,(\[]{0,3}(0x[0-9a-f]{1,8}|\d{1,9})(?!\w|\.\d)",
            re.IGNORECASE,
        ),
        # "reason=[aicore exception]", "reason=aicore exception", "retCode=0x26, [aicore exception]".
        texts=re.compile(
            rf"\b({any_of(names)})\b"
            rf"|(?:\b(?:reason|desc)=\[?|\bretCode=0x[0-9a-f]+, \[)({any_of(words)})(?!\w)"
            rf"|\b({any_of([text for text in words if text.isupper()])})\b"
        ),
        # torch_npu's queue thread has ended. From then on operators return immediately, without an error and without
        # running (NPUQueue.cpp, Repository::Enqueue in the state CAN_EXIT).
        ended=re.compile(r"The process exits for this inner error(?:, and the ([^\n.]+))?"),
        # CANN: Memory_Allocation_Failure, Resource_Error_Insufficient_Host_Memory.
        memory=re.compile(r"\bACL_ERROR_RT_(?:MEMORY_ALLOCATION|DEVICE_OOM)\b|\bEL00(?:04|18)\b"),
        # In acl, in the runtime, on the device (aclError.md).
        memory_codes=frozenset({200000, 207001, 207018}),
    )


_DEVICE_FILES = Path("/dev")


class Npu(base.DeviceKind):
    """The kind of Ascend NPUs, whose kernels the kernel types are."""

    name = "npu"
    rank = 3
    device_names = re.compile(rf"ATLAS_|Ascend|{UNNAMED_NPU}$", re.IGNORECASE)
    is_native = True
    stack = "vllm_ascend"
    software = "torch{torch}_cann{cann}"
    compute = f"vllm{{vllm}}_{software}"
    library = "hccl"
    library_version = "v{cann}"
    implementation = "torch_npu"
    opener = "opatlas.run.devices.npu:NpuDevice"
    backend = "hccl"
    visible = "ASCEND_RT_VISIBLE_DEVICES"
    tool = "npu-smi"
    instruments: ClassVar[Mapping[str, str]] = {
        "msprof": "opatlas.run.instruments.instrument:open_msprof",
        "npu-events": "opatlas.run.instruments.instrument:open_device_events",
    }
    events = "npu-events"
    default_device = DEFAULT_NPU_DEVICE
    grids: ClassVar[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
        "ATLAS_800_A3": ((48, 8, 2), (16,)),
        "ATLAS_800_A2": ((128, 8), ()),
    }
    resource = "NPU"
    kernel_language = "triton-ascend"
    dispatch_key = "PrivateUse1"
    has_graphs = True

    @cached_property
    def fatal_errors(self) -> FatalErrors:
        return _fatal_errors()

    def group_instrument(self, name: str | None) -> str:
        """Returns the instrument of a name, or the best one for a group of devices: without msprof on PATH events."""
        chosen = self.preferred_instrument(name)
        return self.events if name is None and shutil.which(chosen) is None else chosen

    def is_present(self) -> bool:
        return not base.is_hidden(self.visible) and bool(npus_present())

    def find(self, name: str | None) -> list[base.DeviceSpec]:
        """Returns a spec for each visible NPU. Raises OpAtlasError if no NPU is visible."""
        present = npus_present()
        if not present:
            raise OpAtlasError(
                f"--device {name or self.name}: there is no NPU here ({_DEVICE_FILES}/davinci0 is missing, and npu-smi "
                f"shows none): in a container, pass the devices and the driver on (docker run --device /dev/davinci0 "
                f"...); leave --device out to replay on another device"
            )
        ids = base.visible_ids(self.visible, present)
        if not ids:
            raise OpAtlasError(f"{self.visible} shows none of {present} NPUs: unset it, or list some (0,1)")
        by_logic = {str(chip.logic): chip for chip in npu_smi.list_chips()}
        names = {npu_smi.database_name_of_chip(by_logic.get(visible), name) for visible in ids}
        # NPUs of one machine are usually alike. Durations of different NPUs do not belong into one folder.
        return base.pin_devices(
            base.DeviceSpec(self.name, name=names.pop() if len(names) == 1 else ""), self.visible, ids
        )

    def name_remedy(self) -> str:
        shown = npu_smi.list_chips()
        said = f"npu-smi shows {shown[0].name}" if shown else "npu-smi is not on PATH or fails"
        names = (npu_smi.candidate_names(shown[0]) if shown else ()) or NPU_DEVICES
        return f"{said}, which names no database: give --device ({' or '.join(names)}) or --database-path"

    def environment(self) -> Mapping[str, str]:
        return npu_operators.operator_environment()

    def driver_version(self) -> str | None:
        return npu_smi.driver_version()

    def communicator_name(self, rank: int) -> str:
        """Returns HCCL's name of a new communicator, for which torch has no name.

        Kernels that communicate need a communicator that nobody else uses, not even torch's collectives (op-plugin's
        pages of npu_moe_distribute_dispatch); vllm-ascend makes one for them too.
        """
        import torch
        from torch import distributed

        own: Any = distributed.new_group(backend=self.backend)
        return str(own._get_backend(torch.device(self.name)).get_hccl_comm_name(rank))

    def error_of(self, message: str) -> ReplayError | None:
        return npu_operators.missing_kernel(message)


KIND = Npu()


def npus_present() -> int:
    """Returns the number of NPUs that a process on this machine, or in this container, can open."""
    nodes = sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in _DEVICE_FILES.glob("davinci*"))
    return nodes or len(npu_smi.list_chips())


#: L2 size of A2 and A3, which CANN does not always report.
_ASSUMED_L2_BYTES = 192 << 20
#: Smaller reported sizes count as missing.
_LEAST_L2_BYTES = 1 << 20
#: Bytes read per byte of L2 cache; a policy other than least-recently-used keeps some lines in one pass.
_FLUSH_FACTOR = 2


class NpuDevice(base.Accelerator):
    """The NPU of a spec. Concurrent rows run one at a time."""

    def __init__(self, spec: base.DeviceSpec, settings: MeasureSettings) -> None:
        """Opens the device.

        Raises:
            OpAtlasError: torch_npu, CANN, the driver or the device is missing; with the remedy.
            DeviceUnhealthy: the device exists but cannot be opened.
        """
        self._torch_npu = import_torch_npu()
        import torch

        from opatlas.run.devices.device_lock import device_lock

        self.spec, self.settings = spec, settings
        self.module: Any = torch.get_device_module(KIND.name)
        _expect_visible(self.module)
        # Weights keep the format FRACTAL_NZ, as in a loaded model.
        self.module.config.allow_internal_format = True
        self.torch_device = torch.device(KIND.name, 0 if spec.sees_no_other else spec.index)
        try:
            self.module.set_device(self.torch_device)
            self._properties = self.module.get_device_properties(self.torch_device)
        except RuntimeError as error:
            raise DeviceUnhealthy(f"{spec} cannot be opened: {_short_message(error)}") from error
        self._chip = _chip_of(spec)
        reported_bytes = int(getattr(self._properties, "L2_cache_size", 0) or 0)
        self._l2_is_reported = reported_bytes >= _LEAST_L2_BYTES
        self._l2_bytes = reported_bytes if self._l2_is_reported else _ASSUMED_L2_BYTES
        self.flush_bytes = _FLUSH_FACTOR * self._l2_bytes
        number = self._chip.physical if self._chip else spec.pinned[1] if spec.pinned else spec.index
        self.lock = device_lock(f"npu{number}")

    def describe(self) -> base.DeviceDescription:
        import torch

        said = npu_smi.query_chip(self._chip)
        facts: dict[str, str | int | float | None] = {
            "torch": str(torch.__version__),
            "torch_npu": str(self._torch_npu.__version__),
            "vllm_ascend": package_version("vllm-ascend"),
            # The running CANN, and the installed CANN that names the database's folder. Both should be the same.
            "cann": _module_version(self.module, "CANN"),
            "cann_toolkit": cann_version(),
            "driver": said.board.get("Software Version") or _module_version(self.module, "DRIVER"),
            "firmware": said.board.get("Firmware Version"),
            "soc": self._properties.name,
            "ai_cores": getattr(self._properties, "cube_core_num", None),
            "vector_cores": getattr(self._properties, "vector_core_num", None),
            "memory_bytes": self._properties.total_memory,
            "l2_cache_bytes": self._l2_bytes,
            "l2_cache_bytes_are": "told by the device" if self._l2_is_reported else "assumed",
            "visible_as": "=".join(self.spec.pinned) if self.spec.pinned and self.spec.sees_no_other else None,
            "custom_opp_path": os.environ.get(npu_operators.PATH_VARIABLE),
            "chip": self._chip.name if self._chip else None,
            "chip_place": f"{self._chip.npu}.{self._chip.chip} (davinci{self._chip.physical})" if self._chip else None,
            "npu_smi": "asked" if self._chip else "not on PATH, or it does not show this device",
            **{f"npu_smi {name}": value for name, value in said.board.items()},
        }
        return base.DeviceDescription(
            name=self.spec.name or str(self._properties.name),
            facts={name: fact for name, fact in facts.items() if fact is not None},
            state=said.state,
            no_custom_operators=npu_operators.registration_obstacle(),
        )

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        if npu is None:
            raise Unsupported("the kernel has no call of its own on an NPU")
        return npu_operators.load_npu_call(npu)


def _expect_visible(npu: Any) -> None:
    """Raises OpAtlasError if the process sees no NPU."""
    if npu.device_count():
        return
    visible = os.environ.get(KIND.visible)
    nodes = sorted(path.name for path in _DEVICE_FILES.glob("davinci[0-9]*"))
    manager = _DEVICE_FILES / "davinci_manager"
    if not nodes or not manager.exists():
        raise OpAtlasError(
            f"there is no NPU here (no /dev/{'davinci0' if not nodes else manager.name}): load the driver, or, in a "
            f"container, pass on /dev/davinci0 ..., /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc"
        )
    if not os.access(manager, os.R_OK | os.W_OK):
        raise OpAtlasError(f"{manager} may not be opened by this user: add it to the driver's group (HwHiAiUser)")
    raise OpAtlasError(
        f"CANN shows no NPU, though /dev has {', '.join(nodes)}"
        + (f": {KIND.visible} is {visible!r}, list some of the present NPUs" if visible is not None else "")
        + "; npu-smi info shows whether the NPUs are healthy"
    )


def _chip_of(spec: base.DeviceSpec) -> Chip | None:
    """Returns npu-smi's entry of a device; None if npu-smi does not list the device."""
    logic = spec.pinned[1] if spec.pinned else str(spec.index)
    return next((chip for chip in npu_smi.list_chips() if str(chip.logic) == logic), None)


def _module_version(npu: Any, module: str) -> str | None:
    try:
        return str(npu.utils.get_cann_version(module)) or None
    except (AttributeError, RuntimeError):  # torch_npu is older, or does not have the module
        return None


def _short_message(error: Exception) -> str:
    """Returns the first line of an error, which names the failure, and the line with CANN's reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = [line for line in lines[1:] if re.match(r"\[Error\]:|E[A-Z0-9]\d{4}\b", line)]
    return " ".join([*lines[:1], *why[:1]]) or type(error).__name__


_ASCEND = Path("/usr/local/Ascend")
_MISSING_LIBRARY = re.compile(r"(lib\w+\.so[.\d]*): cannot open shared object file")
#: Libraries of the driver (/usr/local/Ascend/driver/lib64) and of ATB (nnal/atb). All others belong to CANN.
_DRIVER_LIBRARIES = re.compile(r"lib(ascend_hal|drv\w*|dcmi)\.so")
_ATB_LIBRARIES = re.compile(r"libatb\w*\.so")
_OTHER_SYMBOLS = re.compile(r"undefined symbol|version `[^']*' not found|has no attribute '_npu")


class TorchNpuMissing(OpAtlasError):
    """torch_npu cannot be imported; the message contains the reason and the remedy."""


def import_torch_npu() -> ModuleType:
    """Imports and returns torch_npu, which adds `torch.npu`.

    Raises:
        TorchNpuMissing: torch_npu, CANN or the driver is missing, or torch is another version or a GPU build.
    """
    try:
        return import_module("torch_npu")
    except ModuleNotFoundError as error:
        if error.name == "torch_npu":
            version = _torch() or "VERSION"
            raise TorchNpuMissing(f"torch_npu is missing: pip install torch_npu=={version}, as torch") from None
        if error.name is None:
            raise TorchNpuMissing(_import_message(f"{error}")) from error
        missing = f"torch_npu needs the package {error.name}"
        raise TorchNpuMissing(f"{missing}: pip install {'pyyaml' if error.name == 'yaml' else error.name}") from None
    except Exception as error:
        raise TorchNpuMissing(_import_message(f"{error}")) from error


def _import_message(text: str) -> str:
    """Returns the message of a failed import in plain words."""
    first = first_line(text)
    torch, torch_npu = _torch(), package_version("torch_npu") or ""
    if torch and torch_npu and not same_release(torch, torch_npu):
        return f"torch_npu {torch_npu} does not fit torch {torch} ({first}): pip install torch_npu=={torch}"
    if library := _MISSING_LIBRARY.search(text):
        return _missing_library_message(library[1])
    if _OTHER_SYMBOLS.search(text):
        return f"torch_npu {torch_npu} does not fit CANN ({first}): install a pair of torch_npu's release notes"
    if "Two accelerators" in text:
        return f"torch was built for a GPU, and torch_npu refuses that ({first}): install torch's CPU build"
    return f"torch_npu cannot be imported: {first}"


def _missing_library_message(library: str) -> str:
    if _DRIVER_LIBRARIES.match(library):
        return (
            f"the NPU driver's {library} is not found: install driver and firmware, or, in a container, mount "
            f"{_ASCEND}/driver and add its lib64/driver and lib64/common to LD_LIBRARY_PATH"
        )
    if _ATB_LIBRARIES.match(library):
        return f"{library} is not found: install CANN's NNAL package and run: source {_ASCEND}/nnal/atb/set_env.sh"
    scripts = [path for path in set_env_scripts() if path.is_file()]
    if scripts:
        return f"CANN's {library} is not found, though CANN is installed: run: source {scripts[0]}"
    return f"{library} is missing: install CANN, and run: source {_ASCEND}/ascend-toolkit/set_env.sh"


def set_env_scripts() -> list[Path]:
    """Returns the possible paths of CANN's environment script, the most likely first."""
    homes = [Path(home) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if (home := os.environ.get(name))]
    return [home / "set_env.sh" for home in (*homes, _ASCEND / "ascend-toolkit", _ASCEND / "cann")]


def _torch() -> str:
    return public_version(package_version("torch") or "")
