"""Which exceptions mean a lost context, a full memory or neither; and the reasons of rows that raise."""

from __future__ import annotations

import sys
import unittest

import pytest
import torch
from hypothesis import given, strategies as st
from opatlas.bench import formulas
from replaying import job_of, runner

from opatlas.row.errors import InvalidRow
from opatlas.row.status import Status
from opatlas.run.devices.fatal_errors import fatal_device_error, is_out_of_memory
from opatlas.run.job import MOST_CHARACTERS, MOST_CHARACTERS_OF_DETAIL, error_text, outcome_of
from opatlas.run.registry import replays

# As torch 2.11 with CUDA 13.0 raised them on an H100; torch 2.6 to 2.8 leave out the line about the search.
TORCH_HINTS = """
Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
ILLEGAL_ADDRESS = "CUDA error: an illegal memory access was encountered" + TORCH_HINTS.format(
    name="cudaErrorIllegalAddress"
)
INVALID_ARGUMENT = "CUDA error: invalid argument" + TORCH_HINTS.format(name="cudaErrorInvalidValue")
CUDA_MEMORY_FULL = (
    "CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which 78.47 GiB is "
    "free. Including non-PyTorch memory, this process has 718.00 MiB memory in use. Of the allocated memory 32.00 MiB "
    "is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)

CUDA_SEEN = [
    ("device-side assert triggered", "cudaErrorAssert", 710),
    ("an illegal memory access was encountered", "cudaErrorIllegalAddress", 700),
    ("an illegal instruction was encountered", "cudaErrorIllegalInstruction", 715),
    ("misaligned address", "cudaErrorMisalignedAddress", 716),
    ("invalid program counter", "cudaErrorInvalidPc", 718),
    ("unspecified launch failure", "cudaErrorLaunchFailure", 719),
]

# Quoted from public reports; the code that each of them names first.
CUDA_REPORTED = [
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`", 214),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", 220),
    ("NCCL WARN Cuda failure 700 'an illegal memory access was encountered'", 700),
    ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 719", 719),
    ("cuda runtime error (710) : device-side assert triggered at THC/generated/../THCReduceAll.cuh:317", 710),
    ("THCudaCheck FAIL file=THCReduceAll.cuh line=317 error=702 : the launch timed out and was terminated", 702),
    ('CUDA error at ./inc/cuda/kernel2.cu:596 code=700(cudaErrorIllegalAddress) "cudaDeviceSynchronize()"', 700),
    ("cudaErrorIllegalAddress an illegal memory access was encountered", 700),
    ("failed to query event: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", 700),
    ("RuntimeError: CUDA driver error: unknown error", 999),
    ("CUDA error 700", 700),
    ("what():  CUDA error: CUDA-capable device(s) is/are busy or unavailable", 46),
    ("RuntimeError: CUDA error: operation not supported on global/shared address space", 717),
    ("CUDA error: system not yet initialized", 802),
]

CANN_ENDS = " [FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:53]"
SYNC_507035 = """operator():build/CMakeFiles/torch_npu.dir/compiler_depend.ts:25 NPU function error: \
c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507035
[ERROR] 2025-04-29-18:46:11 (PID:1066924, Device:1, RankID:-1) ERR00100 PTA call acl api failed
[Error]: The vector core execution is abnormal.
        Rectify the fault based on the error information in the ascend log."""
SYNC_507015 = """npuSynchronizeDevice:torch_npu/csrc/core/npu/NPUStream.cpp:506 NPU function error: \
AclrtSynchronizeDeviceWithTimeout, error code is 507015
[ERROR] 2025-11-08-21:35:27 (PID:1234255, Device:0, RankID:-1) ERR00100 PTA call acl api failed
[Error]: The aicore execution is abnormal.
        Rectify the fault based on the error information in the ascend log.
EZ9999: [PID: 1234255] 2025-11-08-21:35:27.904.479 The error from device(chipId:7, dieId:0), serial number is 134, \
there is an exception of fftsplus aivector error, core id is 32, error code = 0x800000, dump info: pc start: \
0x12c0c0014b8c, current: 0x12c0c001532c[FUNC:ProcessStarsCoreErrorInfo][FILE:device_error_core_proc.cc][LINE:303]"""
ASCEND_REPORTED = [
    (SYNC_507035, 507035),
    (SYNC_507015, 507015),
    ("npuSynchronizeDevice: NPU function error: aclrtSynchronizeDevice, error code is 507046", 507046),
    ("ACL stream synchronize failed, error code:507018", 507018),
    ("NPU warning, error code is 507034[Error]: \n[Error]: Vector core execution timed out.", 507034),
    ("aclrtSynchronizeStream(stream) failed: 507014 (npu_validation/SyncAll/main.cpp:84)", 507014),
    ("synchronize stream failed, runtime result = 507013[FUNC:ReportCallError][FILE:log_inner.cpp][LINE:161]", 507013),
    ("[Call][Rts]call rts api [rtGetMemUceInfo] failed, retCode is 507899[FUNC:ReportCallError]", 507899),
    ("rtStreamSynchronize: ErrCode=507035, desc=[vector core exception], InnerCode=0x715005e", 507035),
    ("SetDevice failed.ret=507033", 507033),
    ("run failed with code 507017", 507017),
    ("kernel launch failed, retCode=0x7bc87", 507015),
    ("aclError 507000", 507000),
    ("507015 = ACL_ERROR_RT_AICORE_EXCEPTION", 507015),
    ("rtStreamSynchronizeWithTimeout execute failed, reason=[vector core exception]" + CANN_ENDS, 507035),
    ("rtDeviceSynchronizeWithTimeout execution failed, reason=aicore exception" + CANN_ENDS, 507015),
    ("Kernel task happen error, retCode=0x25, [aicore timeout].[FUNC:PreCheckTaskErr]", 507014),
    ("rtStreamSynchronize execute failed, reason=[the model stream execute failed]" + CANN_ENDS, 507011),
    ("HBM MULTI BIT ECC ERROR, \n[ERROR] 2025-06-22-20:22:45 (PID:504915) ERR00100 PTA call acl api failed", 507054),
]

QUEUE_ENDED = """The Inner error is reported as above. The process exits for this inner error, and the current working \
operator name is aclnnRmsNorm.
Since the operator is called asynchronously, the stacktrace may be inaccurate. If you want to get the accurate \
stacktrace, please set the environment variable ASCEND_LAUNCH_BLOCKING=1.
[ERROR] 2025-12-29-13:22:33 (PID:359, Device:0, RankID:-1) ERR00100 PTA call acl api failed."""
QUEUE_MEMORY = "\nMemory_Allocation_Failure(EL0004): Failed to allocate memory requested by APP module."

HOST_MEMORY_FULL = """allocate_host_memory_slowpath:../torch_npu/csrc/core/npu/CachingHostAllocator.cpp:252 NPU \
function error: aclrtMallocHostWithCfg, error code is 207001
[Error]: Failed to apply for memory.
TraceBack (most recent call last):
        rtsMallocHost execution failed, reason=driver error:out of memory"""
MEMORY_FULL = [
    CUDA_MEMORY_FULL,
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: CUDA driver error: out of memory",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "failed to allocate 32.00M (33554432 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "NPU out of memory. Tried to allocate 52.00 MiB (NPU 0; 60.96 GiB total capacity; 59.36 GiB already allocated)",
    HOST_MEMORY_FULL,
    "call aclnnBatchMatMul failed, error code is 207001\n[Error]: Failed to apply for memory.",
    "OPS function error: HcclAllreduce, error code is 24\n[PID: 4906] Memory_Allocation_Failure(EL0004): Failed",
    "rtMalloc: ErrCode=207018, desc=[device oom]",
    "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate",
    r"[enforce fail at c10\core\impl\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried to",
    "std::bad_alloc",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)",
]

NEITHER = [
    INVALID_ARGUMENT,
    "torch.cuda.CudaError: invalid configuration argument (9)",
    "CUDA error: invalid configuration argument" + TORCH_HINTS.format(name="cudaErrorInvalidConfiguration"),
    "CUDA error: no kernel image is available for execution on the device"
    + TORCH_HINTS.format(name="cudaErrorNoKernelImageForDevice"),
    "CUDA error 701",
    "CUDA driver error: 209",
    "Cuda failure 1 'invalid argument'",
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "out of resource: shared memory, Required: 507015, Hardware limit: 232448",
    # The hint that every CUDA error carries is not an assertion that failed.
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    """addmm:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:112 NPU function error: call aclnnAddmm failed, error \
code is 161002
[ERROR] 2025-12-23-12:56:15 (PID:172866, Device:0, RankID:-1) ERR00100 PTA call acl api failed.
[PID: 172866] 2025-12-23-12:56:15.164.100 AclNN_Parameter_Error(EZ1001): The k-axis of the two inputs are different.""",
    "HCCL function error: HcclGetRootInfo(&hcclID), error code is 7",
    "shape '[507015, 700]' is invalid for input of size 207001",
    "mat1 and mat2 shapes cannot be multiplied (507015x700 and 719x4)",
    "torch_npu/csrc/core/npu/NPUStream.cpp:507015 NPU function error",
    "error code is 700",
    "CUDA error: 507015",
    "error code is " + "7" * 5000,
    "CUDA error " + "7" * 5000,
    "error code is 507015.5",
    "error code = 0x7bc870",
    "RuntimeError: 507018 is not divisible by 8",
    "The device's address space is misaligned address by address",
    "IndexError: index 700 is out of bounds for dimension 0 with size 700",
]


@pytest.mark.parametrize(("words", "name", "code"), CUDA_SEEN)
@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: {words}" + TORCH_HINTS,
        "CUDA error: {words}",  # from torch.cuda._compile_kernel
        "Triton Error [CUDA]: {words}",
        "torch.cuda.CudaError: {words} ({code})",
    ],
)
def test_sticky_cuda_error_as_seen_on_hardware(message, words, name, code):
    assert fatal_device_error(message.format(words=words, name=name, code=code)) == f"CUDA error {code} ({words})"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k, ...)`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART",
    ],
)
def test_libraries_echo_a_poisoned_context(message):
    assert "EXECUTION_FAILED" in fatal_device_error(message)


@pytest.mark.parametrize(
    ("platform", "message", "code"),
    [("CUDA", *case) for case in CUDA_REPORTED] + [("Ascend", *case) for case in ASCEND_REPORTED],
)
def test_reported_error(platform, message, code):
    assert fatal_device_error(message).startswith(f"{platform} error {code} (")
    assert not is_out_of_memory(message)


@pytest.mark.parametrize("message", MEMORY_FULL)
def test_out_of_memory(message):
    assert is_out_of_memory(message)
    assert fatal_device_error(message) is None


@pytest.mark.parametrize("message", NEITHER)
def test_neither(message):
    assert fatal_device_error(message) is None
    assert not is_out_of_memory(message)


@pytest.mark.parametrize("echo", [INVALID_ARGUMENT, CUDA_MEMORY_FULL, HOST_MEMORY_FULL])
@pytest.mark.parametrize(("poison", "code"), [(ILLEGAL_ADDRESS, 700), (SYNC_507035, 507035)])
def test_first_error_is_the_cause(poison, code, echo):
    log = f"Traceback (most recent call last):\nRuntimeError: {poison}\n\nRuntimeError: {echo}\n"
    assert f" {code} (" in fatal_device_error(log)
    assert not is_out_of_memory(log)


def test_memory_that_ran_out_first_is_the_cause_though_the_context_is_lost_too():
    log = f"{HOST_MEMORY_FULL}\nsynchronized memcpy failed, kind = 1, runtime result = 507899[FUNC:ReportCallError]"
    assert is_out_of_memory(log)
    assert " 507899 (" in fatal_device_error(log)
    assert is_out_of_memory(f"{CUDA_MEMORY_FULL}\n{ILLEGAL_ADDRESS}")
    assert fatal_device_error(f"{INVALID_ARGUMENT}\n{ILLEGAL_ADDRESS}") is not None


@pytest.mark.parametrize("before", ["", "torch.OutOfMemoryError: "])
@pytest.mark.parametrize("after", ["", QUEUE_MEMORY])
def test_an_ended_task_queue_poisons_the_process_in_any_case(before, after):
    """Later operators return at once without having run: a process in this state would measure nothing."""
    message = f"{before}{QUEUE_ENDED}{after}"
    assert "aclnnRmsNorm" in fatal_device_error(message)
    assert not is_out_of_memory(message)


_WORDS = st.one_of(st.sampled_from(["main.cpp:", "Error:", "line", "got"]), st.text("shape,:()[]->", max_size=8))
_CODES = st.sampled_from([46, 214, 220, 226, 700, 702, 710, 719, 911, 999, 207001, 507000, 507015, 507035, 507899])
_NUMBERS = st.one_of(_CODES, _CODES.map(hex), _CODES.map(lambda code: f"0x7f{code:08x}"), st.integers(), st.floats())


@given(st.lists(st.one_of(_WORDS, _NUMBERS.map(str))), st.sampled_from([" ", "", "\n", ", "]))
def test_numbers_without_an_error_code_before_them_are_ignored(parts, separator):
    text = separator.join(parts)
    assert fatal_device_error(text) is None
    assert not is_out_of_memory(text)


def raised_after_poison(error):
    """The error as if raised while an illegal address was being handled."""
    error.__context__ = RuntimeError(ILLEGAL_ADDRESS)
    return error


def test_text_of_lists_the_causes_of_an_exception_oldest_first():
    text = error_text(raised_after_poison(MemoryError()))
    assert text.index("RuntimeError: CUDA error") < text.index("MemoryError")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (torch.OutOfMemoryError(CUDA_MEMORY_FULL), Status.OOM, "OutOfMemoryError: CUDA out of memory."),
        (MemoryError(), Status.OOM, "MemoryError: no message"),
        (RuntimeError(HOST_MEMORY_FULL), Status.OOM, "RuntimeError: allocate_host_memory_slowpath"),
        (
            RuntimeError(ILLEGAL_ADDRESS),
            Status.DEVICE_ERROR,
            "CUDA error 700 (an illegal memory access was encountered): RuntimeError: CUDA error",
        ),
        (
            raised_after_poison(MemoryError()),
            Status.DEVICE_ERROR,
            "CUDA error 700 (an illegal memory access was encountered): MemoryError",
        ),
        (
            RuntimeError(SYNC_507015),
            Status.DEVICE_ERROR,
            "Ascend error 507015 (aicore exception): RuntimeError: npuSync",
        ),
        (torch.OutOfMemoryError(QUEUE_ENDED), Status.DEVICE_ERROR, "Ascend: the task queue ended"),
        (RuntimeError(INVALID_ARGUMENT), Status.FAILED, "RuntimeError: CUDA error: invalid argument"),
        (InvalidRow(ILLEGAL_ADDRESS), Status.INVALID, "CUDA error: an illegal memory access"),
    ],
)
def test_outcome(error, status, reason):
    outcome = outcome_of(error)
    assert outcome.status is status
    assert outcome.reason.startswith(reason)
    if status is Status.DEVICE_ERROR:
        assert str(error) in outcome.detail
        assert "\n" not in outcome.reason


@pytest.mark.parametrize(
    "text", ["lone \udcff surrogate", "\x1b[2Jcleared", "nul \0", "a\rb", "\u202eturned", "x" * 10**7]
)
@pytest.mark.parametrize("kind", [RuntimeError, InvalidRow])
def test_a_reason_is_one_printable_line_whatever_an_exception_says(kind: type[Exception], text: str) -> None:
    outcome = outcome_of(kind(text))
    assert outcome.reason.isprintable()
    assert len(outcome.reason) <= MOST_CHARACTERS
    assert len(outcome.detail) <= MOST_CHARACTERS_OF_DETAIL
    assert (outcome.reason + outcome.detail).encode()


@replays("Skipping", npu=None)
def skipping(row, replay):
    pytest.skip("no such library")


@replays("Unittest", npu=None)
def unittest_skipping(row, replay):
    raise unittest.SkipTest("no such library")


@replays("Expecting", npu=None)
def expecting_failure(row, replay):
    pytest.xfail("known to be wrong")


@replays("Failing", npu=None)
def failing(row, replay):
    pytest.fail("too bad")


@pytest.mark.parametrize(
    ("function", "status", "said"),
    [
        (skipping, Status.SKIPPED, "no such library"),
        (unittest_skipping, Status.SKIPPED, "no such library"),
        (expecting_failure, Status.FAILED, "known to be wrong"),
        (failing, Status.FAILED, "too bad"),
    ],
)
def test_outcomes_of_pytest_mean_the_same_in_a_row(function, status, said) -> None:
    outcome = runner().run(job_of("Any", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.{function.__name__}"))
    assert outcome.status is status
    assert said in outcome.reason


def later_than_poison() -> Exception:
    error = ValueError("later")
    error.__cause__ = RuntimeError(ILLEGAL_ADDRESS)
    return error


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no exception groups before 3.11")
@pytest.mark.parametrize("depth", [1, 2, 40])
@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ([ValueError("something else"), RuntimeError(ILLEGAL_ADDRESS)], Status.DEVICE_ERROR),
        ([later_than_poison()], Status.DEVICE_ERROR),
        ([RuntimeError(CUDA_MEMORY_FULL)], Status.OOM),
        ([ValueError("a"), TypeError("b")], Status.FAILED),
    ],
)
def test_members_of_a_group_of_exceptions_count(errors: list[Exception], status: Status, depth: int) -> None:
    error = ExceptionGroup("several", errors)  # noqa: F821
    for _ in range(depth - 1):
        error = ExceptionGroup("several", [error])  # noqa: F821
    assert outcome_of(error).status is status


@replays("Neg", npu=None)
def with_a_misspelt_formula(row, replay):
    replay(torch.neg, row.tensor(0), expected=formulas.negg)


def test_a_misspelt_function_gets_a_suggestion_with_the_line_of_the_replay():
    outcome = runner().run(job_of("Neg", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.with_a_misspelt_formula"))
    assert outcome.status is Status.FAILED
    assert "negate" in outcome.reason
    files = [line.split('"')[1] for line in outcome.detail.splitlines() if line.startswith("  File")]
    assert [file.rpartition("/")[2] for file in files] == ["test_device_errors.py", "registry.py"]
