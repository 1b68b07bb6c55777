"""The errors of CUDA and CANN that poison the context of a process, and those that say that memory ran out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Poison:
    """An error that poisons. `names` are its identifiers, `words` what its library calls it, the best one first."""

    library: str
    code: int
    names: tuple[str, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.library} error {self.code} ({self.words[0]})"


def _cuda(code: int, runtime_name: str, driver_name: str, words: str) -> Poison:
    return Poison("CUDA", code, (f"cudaError{runtime_name}", f"CUDA_ERROR_{driver_name}"), (words,))


def _ascend(code: int, name: str, *words: str) -> Poison:
    return Poison("Ascend", code, (f"ACL_ERROR_RT_{name}",), words)


#: Codes and names: CUDA Runtime API and CUDA Driver API, enums cudaError and CUresult. Words: cudaGetErrorString of
#: CUDA 13.0.
CUDA = (
    # "This leaves the process in an inconsistent state and any further CUDA work will return the same error", or "to
    # continue using CUDA, the process must be terminated and relaunched".
    _cuda(226, "Contained", "CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error"),
    _cuda(700, "IllegalAddress", "ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    _cuda(702, "LaunchTimeout", "LAUNCH_TIMEOUT", "the launch timed out and was terminated"),
    _cuda(710, "Assert", "ASSERT", "device-side assert triggered"),
    _cuda(714, "HardwareStackError", "HARDWARE_STACK_ERROR", "hardware stack error"),
    _cuda(715, "IllegalInstruction", "ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"),
    _cuda(716, "MisalignedAddress", "MISALIGNED_ADDRESS", "misaligned address"),
    _cuda(
        717, "InvalidAddressSpace", "INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"
    ),
    _cuda(718, "InvalidPc", "INVALID_PC", "invalid program counter"),
    _cuda(719, "LaunchFailure", "LAUNCH_FAILED", "unspecified launch failure"),
    _cuda(721, "TensorMemoryLeak", "TENSOR_MEMORY_LEAK", "tensor memory not completely freed"),
    _cuda(810, "MpsClientTerminated", "MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server"),
    _cuda(911, "ExternalDevice", "EXTERNAL_DEVICE", "an async error has occured in external entity outside of CUDA"),
    # The documents promise no such thing here. But no argument of an operator leads to these: the hardware failed, or
    # nothing serves this process any more.
    _cuda(46, "DevicesUnavailable", "DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"),
    _cuda(214, "ECCUncorrectable", "ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"),
    _cuda(
        220, "NvlinkUncorrectable", "NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"
    ),
    _cuda(709, "ContextIsDestroyed", "CONTEXT_IS_DESTROYED", "context is destroyed"),
    _cuda(802, "SystemNotReady", "SYSTEM_NOT_READY", "system not yet initialized"),
    _cuda(
        805,
        "MpsConnectionFailed",
        "MPS_CONNECTION_FAILED",
        "MPS client failed to connect to the MPS control daemon or the MPS server",
    ),
    _cuda(
        806,
        "MpsRpcFailure",
        "MPS_RPC_FAILURE",
        "the remote procedural call between the MPS server and the MPS client failed",
    ),
    _cuda(
        807, "MpsServerNotReady", "MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests"
    ),
    _cuda(
        808,
        "MpsMaxClientsReached",
        "MPS_MAX_CLIENTS_REACHED",
        "the hardware resources required to create MPS client have been exhausted",
    ),
    _cuda(
        809,
        "MpsMaxConnectionsReached",
        "MPS_MAX_CONNECTIONS_REACHED",
        "the hardware resources required to support device connections have been exhausted",
    ),
    _cuda(999, "Unknown", "UNKNOWN", "unknown error"),
)

#: Codes and names: CANN Runtime, aclError.md and rt_error_codes.h. Words: the same runtime's errcode_manage.cc, which
#: its messages quote as reason=[...] and desc=[...]; those in capitals: torch_npu's NPUQueue.cpp. Of the 5xxxxx, which
#: are errors within CANN or on the device, these say that a task failed there, or that the device is lost.
ASCEND = (
    _ascend(507000, "INTERNAL_ERROR", "runtime internal error"),
    _ascend(507001, "TS_ERROR", "task scheduler internal error", "task exception", "tsfw unknown error"),
    _ascend(507010, "LOST_HEARTBEAT", "lost heartbeat"),
    _ascend(507011, "MODEL_EXECUTE", "model execute failed", "the model stream execute failed"),
    _ascend(507013, "SYS_DMA", "system DMA error", "sdma copy error", "sys dma transfer failed"),
    _ascend(507014, "AICORE_TIMEOUT", "aicore timeout"),
    _ascend(507015, "AICORE_EXCEPTION", "aicore exception"),
    _ascend(507016, "AICORE_TRAP_EXCEPTION", "aicore trap exception"),
    _ascend(507017, "AICPU_TIMEOUT", "aicpu timeout"),
    _ascend(507018, "AICPU_EXCEPTION", "aicpu exception"),
    _ascend(507033, "DEV_SETUP_ERROR", "device setup error", "device retain error"),
    _ascend(507034, "VECTOR_CORE_TIMEOUT", "vector core timeout"),
    _ascend(507035, "VECTOR_CORE_EXCEPTION", "vector core exception"),
    _ascend(507036, "VECTOR_CORE_TRAP_EXCEPTION", "vector core trap exception"),
    _ascend(507042, "AICORE_TRAP_READ_OVERFLOW", "aicore trap read overflow"),
    _ascend(507043, "AICORE_TRAP_WRITE_OVERFLOW", "aicore trap write overflow"),
    _ascend(507044, "VECTOR_CORE_TRAP_READ_OVERFLOW", "vector core trap read overflow"),
    _ascend(507045, "VECTOR_CORE_TRAP_WRITE_OVERFLOW", "vector core trap write overflow"),
    _ascend(507046, "STREAM_SYNC_TIMEOUT", "stream sync timeout"),
    _ascend(507047, "EVENT_SYNC_TIMEOUT", "event sync timeout"),
    _ascend(507048, "FFTS_PLUS_TIMEOUT", "fftsplus timeout"),
    _ascend(507049, "FFTS_PLUS_EXCEPTION", "fftsplus exception"),
    _ascend(507050, "FFTS_PLUS_TRAP_EXCEPTION", "fftsplus trap exception"),
    _ascend(507053, "DEVICE_MEM_ERROR", "device mem error", "UCE ERROR"),
    _ascend(507054, "HBM_MULTI_BIT_ECC_ERROR", "hbm Multi-bit ECC error", "HBM MULTI BIT ECC ERROR"),
    _ascend(507055, "SUSPECT_DEVICE_MEM_ERROR", "suspect device mem error", "SUSPECT MEM ERROR"),
    _ascend(507056, "LINK_ERROR", "device network link error", "HCCS LINK ERROR"),
    _ascend(507057, "SUSPECT_REMOTE_ERROR", "suspect remote error", "SUSPECT REMOTE ERROR"),
    _ascend(507899, "DRV_INTERNAL_ERROR", "driver error:internal error"),
    _ascend(507900, "AICPU_INTERNAL_ERROR", "aicpu internal error"),
    _ascend(507901, "SOCKET_CLOSE", "hdc disconnect"),
    _ascend(507904, "COMM_OP_RETRY_FAIL", "hccl op retry failed", "HCCL OP RETRY FAILED"),
)

#: Memory allocation failed, in acl, in the runtime, on the device (aclError.md).
ASCEND_MEMORY = frozenset({200000, 207001, 207018})
