"""Recognizes fatal device errors and failed allocations in the text of an error.

After a fatal device error every later call of the process fails, or is silently dropped; only a new process helps. The
first error in a text is the cause of the others. A number is an error code only next to words that say so, because a
shape may well be 507015.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class FatalError:
    """A device error after which the process cannot use the device.

    Attributes:
        library: "CUDA" or "Ascend".
        code: the library's error code.
        names: identifiers of the error.
        words: the library's messages for the error, the best one first.
    """

    library: str
    code: int
    names: tuple[str, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.library} error {self.code} ({self.words[0]})"


def _cuda(code: int, runtime_name: str, driver_name: str, words: str) -> FatalError:
    return FatalError("CUDA", code, (f"cudaError{runtime_name}", f"CUDA_ERROR_{driver_name}"), (words,))


def _ascend(code: int, name: str, *words: str) -> FatalError:
    return FatalError("Ascend", code, (f"ACL_ERROR_RT_{name}",), words)


#: Fatal errors of CUDA. Codes and names: enums cudaError and CUresult of the CUDA Runtime and Driver APIs. Words:
#: cudaGetErrorString of CUDA 13.0.
CUDA = (
    # Documented as "This leaves the process in an inconsistent state and any further CUDA work will return the same
    # error", or "to continue using CUDA, the process must be terminated and relaunched".
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
    # Not documented as fatal. But no argument of an operator causes these errors: the hardware failed, or the driver
    # does not serve this process any more.
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

#: Fatal errors of Ascend. Codes and names: CANN Runtime, aclError.md and rt_error_codes.h. Words: the runtime's
#: errcode_manage.cc, quoted in messages as reason=[...] and desc=[...]; words in capitals: torch_npu's NPUQueue.cpp. Of
#: the codes 5xxxxx, errors within CANN or on the device, these mean that a task failed or that the device is lost.
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

#: Codes of failed memory allocations: in acl, in the runtime, on the device (aclError.md).
ASCEND_MEMORY = frozenset({200000, 207001, 207018})


_BY_CODE = {(error.library, error.code): error for error in (*CUDA, *ASCEND)}
_BY_NAME = {name: error for error in _BY_CODE.values() for name in error.names}
_BY_WORDS = {words: error for error in _BY_CODE.values() for words in error.words}


def _any_of(choices: list[str]) -> str:
    # The longest choice comes first: "suspect device mem error" before "device mem error".
    return "|".join(re.escape(choice) for choice in sorted(choices, key=len, reverse=True))


_NAME = re.compile(rf"\b(?:{_any_of(list(_BY_NAME))})\b")
#: "CUDA error: 700", "CUDA driver error (700)", "cuda runtime error (700) :", "Cuda failure 700 '...'" (NCCL).
_CUDA_CODE = re.compile(
    r"\bcuda[ _]?(?:driver |runtime )?(?:error|failure|status)(?: code)?[\s=:(]{1,3}(\d{1,4})(?!\w|\.\d)", re.IGNORECASE
)
#: Words of CUDA, which count only after "CUDA" in a line ("CUDA error:", "Triton Error [CUDA]:").
_CUDA_WORDS = re.compile(rf"(?<![\w-])(?:{_any_of([e.words[0] for e in CUDA])})(?!\w)")
#: Status of a CUDA library's operator after the failure of its own kernel or of an earlier kernel.
_LIBRARY_FAILED = re.compile(r"\b(?:CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_EXECUTION_FAILED\w*|CUFFT_EXEC_FAILED)\b")
#: "error code is 507015", "error code:507015", "ErrCode=507015", "retCode=0x7bc87", "runtime result = 507015",
#: "aclrtSynchronizeStream(stream) failed: 507015", "run failed with code 507015".
_ASCEND_CODE = re.compile(
    r"(?:\berr(?:or)?[ _]?code|\bret(?:urn)?[ _]?code|\bret(?=\s*[=:])|\bruntime result|\bacl ?error"
    r"|\bacl\w+(?:\([^()\n]*\))? failed|\bfailed with code)"
    r"\s*(?:is\b)?[\s=:,(\[]{0,3}(0x[0-9a-f]{1,8}|\d{1,9})(?!\w|\.\d)",
    re.IGNORECASE,
)
#: "reason=[aicore exception]", "reason=aicore exception", "retCode=0x26, [aicore exception]".
_ASCEND_WORDS = re.compile(
    rf"(?:\b(?:reason|desc)=\[?|\bretCode=0x[0-9a-f]+, \[)({_any_of([w for e in ASCEND for w in e.words])})(?!\w)"
    rf"|\b({_any_of([w for e in ASCEND for w in e.words if w.isupper()])})\b"
)
#: torch_npu's queue thread has ended. From then on operators return immediately, without an error and without running
#: (NPUQueue.cpp, Repository::Enqueue in the state CAN_EXIT).
_QUEUE_ENDED = re.compile(r"The process exits for this inner error(?:, and the ([^\n.]+))?")

_MEMORY = re.compile(
    # Includes torch.OutOfMemoryError and numpy's _ArrayMemoryError.
    r"(?i:\bout of memory\b)|MemoryError\b"
    r"|\bcudaErrorMemoryAllocation\b|\bCUDA_ERROR_OUT_OF_MEMORY\b|\bCU[A-Z]+_(?:STATUS_)?ALLOC_FAILED\b"
    r"|\bDefaultCPUAllocator: (?:can't allocate|not enough) memory|\bstd::bad_alloc\b|\bCannot allocate memory\b"
    # CANN: Memory_Allocation_Failure, Resource_Error_Insufficient_Host_Memory.
    r"|\bACL_ERROR_RT_(?:MEMORY_ALLOCATION|DEVICE_OOM)\b|\bEL00(?:04|18)\b"
)


def fatal_device_error(text: str) -> str | None:
    """Returns code and meaning of the first fatal device error in a text; None if there is none.

    Examples: "CUDA error 700 (an illegal memory access was encountered)", "Ascend error 507015 (aicore exception)".
    """
    return min(_fatal_errors(text), default=(0, None))[1]


def is_out_of_memory(text: str) -> bool:
    """Returns whether the first device error in a text is a lack of device memory or host memory.

    False if torch_npu's queue has ended, because its process must not continue.
    """
    if _QUEUE_ENDED.search(text):
        return False
    memory = min(_memory_failures(text), default=None)
    return memory is not None and all(memory < poison for poison, _ in _fatal_errors(text))


def _fatal_errors(text: str) -> Iterator[tuple[int, str]]:
    """Yields the positions and descriptions of fatal device errors in a text."""
    for match in _NAME.finditer(text):
        yield match.start(), str(_BY_NAME[match[0]])
    for match in _CUDA_WORDS.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if "cuda" in line.lower():
            yield match.start(), str(_BY_WORDS[match[0]])
    for match in _ASCEND_WORDS.finditer(text):
        yield match.start(), str(_BY_WORDS[match[1] or match[2]])
    for library, pattern in (("CUDA", _CUDA_CODE), ("Ascend", _ASCEND_CODE)):
        for position, code in _codes(pattern, text):
            if error := _BY_CODE.get((library, code)):
                yield position, str(error)
    for match in _LIBRARY_FAILED.finditer(text):
        yield match.start(), f"{match[0]} (a kernel failed)"
    for match in _QUEUE_ENDED.finditer(text):
        yield match.start(), f"torch_npu's task queue ended ({match[1] or 'no operator named'})"


def _memory_failures(text: str) -> Iterator[int]:
    for match in _MEMORY.finditer(text):
        yield match.start()
    for position, code in _codes(_ASCEND_CODE, text):
        if code in ASCEND_MEMORY:
            yield position


def _codes(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        digits = match[1].lower()
        yield match.start(1), int(digits, 16 if digits.startswith("0x") else 10)
