"""Kernel records of a list as the device, and of a library in the place of CUPTI."""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from opatlas.row.errors import ReplayError
from opatlas.run.devices.device import InstrumentMissing
from opatlas.run.group import SharedRule
from opatlas.run.instruments import cupti as instrument
from opatlas.run.instruments.instrument import StopRule
from opatlas.run.instruments.kernel_records import MARK, KernelRecord, KernelRecords, readable_name

#: The device is idle for so long after each kernel.
GAP_US = 0.5


class Device:
    """Runs a launch at once, and remembers it while it is recorded."""

    name = "toy-records"

    def __init__(self, lose=()):
        self.launched = []
        self.sessions = 0
        self._recorded = None
        self._lose = lose
        self._clock_us = 0.0

    def launch(self, name, duration_us=1.0):
        self.launched.append(name)
        if self._recorded is not None:
            self._recorded.append(KernelRecord(len(self.launched), name, self._clock_us, duration_us))
        self._clock_us += duration_us + GAP_US

    def mark(self):
        self.launch(f"at::cuda::{MARK}(long)", 0.6)

    @contextmanager
    def recording(self):
        self._recorded, self.sessions = [], self.sessions + 1
        try:
            # Buffers of records come back in any order.
            yield lambda: [r for i, r in enumerate(reversed(self._recorded)) if i not in self._lose]
        finally:
            self._recorded = None


def sample(device, call, before_each=None, rule=None):
    instrument = KernelRecords(device, device.mark, lambda: None)
    return instrument.sample(call, before_each, rule or StopRule(repeat_count=3, time_limit_s=60))


def test_a_calls_kernels_add_up_and_its_preparation_does_not_count():
    device = Device()

    def call():
        device.launch("gemm_split_k", 10.0)
        device.launch("split_k_reduce", 2.5)

    samples = sample(device, call, lambda: device.launch("flush", 40.0))
    assert samples.durations_us == (12.5, 12.5, 12.5)
    assert samples.device_kernels == 2
    assert samples.calls_per_sample == 1


def test_without_a_count_samples_come_in_batches_until_the_rule_has_enough():
    device = Device()
    samples = sample(device, lambda: device.launch("add"), rule=StopRule(repeat_count=None, time_limit_s=60))
    assert samples.durations_us == (1.0,) * 10
    assert device.sessions == 1


def test_ranks_of_a_group_take_one_sample_at_a_time():
    class Alone:
        def first_rank_decides(self, decision):
            return decision

    device = Device()
    rule = SharedRule(StopRule(repeat_count=3, time_limit_s=60), Alone())
    assert len(sample(device, lambda: device.launch("add"), rule=rule).durations_us) == 3
    assert device.sessions == 3


def test_a_lost_record_is_an_error_and_no_average():
    # Counted from the end: the last mark, and the only kernel of the last call.
    with pytest.raises(ReplayError, match=r"5 marks.* 6 "):
        sample(Device(lose={0}), lambda: None)
    device = Device(lose={1})
    with pytest.raises(ReplayError, match="no kernel"):
        sample(device, lambda: device.launch("add"))


def test_calls_alike_that_launch_different_kernels_are_an_error():
    device = Device()
    with pytest.raises(ReplayError, match=r"add and add \+ add"):
        sample(device, lambda: [device.launch("add") for _ in range(1 + len(device.launched) % 2)])


def test_the_kernels_of_a_call_are_named_and_their_span_includes_the_gaps():
    device = Device()

    def call():
        device.launch("void at::native::(anonymous namespace)::cat<float, std::array<int, 3> >(float*, int)", 10.0)
        device.launch("_ZN7cutlass6KernelINS_4gemmEEEvT_", 2.5)

    samples = sample(device, call)
    assert samples.kernel_names == ("at::native::cat", "cutlass::Kernel")
    assert samples.durations_us == (12.5,) * 3
    assert samples.spans_us == pytest.approx((12.5 + GAP_US,) * 3)


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("_fused_add_rms_norm_kernel", "_fused_add_rms_norm_kernel"),
        (
            "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)",
            "flashinfer::norm::FusedAddRMSNormKernel",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, (bool)1>(Params)",
            "internal::gemvx::kernel",
        ),
        ("_ZN7cutlass13device_kernelINS_4gemm" + "no name that can be demangled", "cutlass::device_kernel"),
        ("memcpy", "memcpy"),
    ],
)
def test_names_are_shown_without_templates_and_parameters(name, readable):
    assert readable_name(name) == readable


KERNEL, MEMCPY, MEMSET, OTHER = 10, 1, 2, 9


def layout(size, **fields):
    names = ["kind", *fields]
    offsets = [0, *fields.values()]
    return np.dtype(
        {"names": names, "offsets": offsets, "formats": ["<u4"] + [KINDS[n] for n in fields], "itemsize": size}
    )


KINDS = {"start": "<u8", "end": "<u8", "correlation_id": "<u4", "name": "<u8"}
#: As in cupti-python 13.0.1; older versions of a record are shorter.
LAYOUTS = {
    "activity_kernel9_dtype": layout(200, start=16, end=24, correlation_id=92, name=104),
    "activity_kernel10_dtype": layout(216, start=16, end=24, correlation_id=92, name=104),
    "activity_memcpy6_dtype": layout(80, start=16, end=24, correlation_id=44),
    "activity_memcpy_pto_p4_dtype": layout(80, start=24, end=32, correlation_id=40),
    "activity_memset4_dtype": layout(64, start=16, end=24, correlation_id=44),
}
OF_KIND = {KERNEL: "activity_kernel10_dtype", MEMCPY: "activity_memcpy6_dtype", MEMSET: "activity_memset4_dtype"}


class Library:
    """The behaviour of libcupti towards callbacks, with the functions of cupti-python's module."""

    def __init__(self, status=0):
        self.ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=KERNEL, MEMCPY=MEMCPY, MEMSET=MEMSET)
        self.enabled = set()
        self.pending = []
        self.status = status
        self.broken = False
        self._names = []

    def get_timestamp(self):
        return 1

    def activity_enable(self, kind):
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.remove(kind)

    def cuptiActivityRegisterCallbacks(self, requested, completed):  # noqa: N802 (CUPTI's name)
        self.requested, self.completed = requested, completed
        return self.status

    def ran(self, kind, correlation_id, start, end, name=b""):
        if kind not in self.enabled:
            return
        record = np.zeros((), LAYOUTS[OF_KIND[kind]])
        record["kind"], record["start"], record["end"] = kind, start, end
        record["correlation_id"] = correlation_id
        if kind == KERNEL:
            self._names.append(ctypes.create_string_buffer(name))
            record["name"] = ctypes.addressof(self._names[-1])
        self.pending.append(record.tobytes())

    def activity_flush_all(self, flag):
        """Two records a buffer, so that several are asked for."""
        while self.pending:
            buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
            self.requested(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
            assert buffer.value % 8 == 0
            assert most.value == 0
            held = b"".join(self.pending[:2])
            del self.pending[:2]
            assert len(held) <= size.value
            ctypes.memmove(buffer.value, held, len(held))
            self.completed(None, 0, buffer.value, size.value, len(held))

    def cuptiActivityGetNextRecord(self, buffer, valid, record):  # noqa: N802 (CUPTI's name)
        if self.broken:
            return 15
        pointer = record._obj
        at = buffer.value
        if pointer.value is not None:
            kind = ctypes.c_uint32.from_address(pointer.value).value
            at = pointer.value + LAYOUTS[OF_KIND[kind]].itemsize
        if at >= buffer.value + valid.value:
            return instrument.MAX_LIMIT_REACHED
        pointer.value = at
        return 0


@pytest.fixture
def library(monkeypatch):
    made = Library()
    for name, dtype in LAYOUTS.items():
        setattr(made, name, dtype)
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=made))
    monkeypatch.setattr(instrument, "loaded_library", lambda: made)
    return made


def test_records_are_read_where_they_lie(library):
    waited = []
    recorder = instrument.CuptiRecorder(lambda: waited.append(True))
    library.ran(KERNEL, 1, 0, 1000, b"before")
    with recorder.recording() as records:
        library.ran(KERNEL, 7, 1000, 16500, b"gemm")
        library.ran(MEMCPY, 9, 30000, 32400)
        library.ran(MEMSET, 8, 17000, 17700)
        assert list(records()) == [
            KernelRecord(7, "gemm", 1.0, 15.5),
            KernelRecord(9, "memcpy", 30.0, 2.4),
            KernelRecord(8, "memset", 17.0, 0.7),
        ]
        assert waited == [True]
    library.ran(KERNEL, 10, 0, 1000, b"after")
    assert library.pending == []
    with recorder.recording() as records:
        library.ran(KERNEL, 11, 0, 2000, b"add")
        assert list(records()) == [KernelRecord(11, "add", 0.0, 2.0)]


def test_a_call_that_raised_leaves_no_records_for_the_next_row(library):
    recorder = instrument.CuptiRecorder(lambda: None)

    def raises():
        library.ran(KERNEL, 1, 0, 1000, b"of the row that failed")
        raise ReplayError("the call failed")

    with pytest.raises(ReplayError), recorder.recording():
        raises()
    with recorder.recording() as records:
        library.ran(KERNEL, 2, 0, 2000, b"add")
        assert list(records()) == [KernelRecord(2, "add", 0.0, 2.0)]


def test_a_buffer_that_cannot_be_read_costs_its_own_row_alone(library):
    recorder = instrument.CuptiRecorder(lambda: None)
    library.broken = True
    with recorder.recording() as records:
        library.ran(KERNEL, 1, 0, 1000, b"add")
        with pytest.raises(ReplayError):
            records()
    library.broken = False
    with recorder.recording() as records:
        library.ran(KERNEL, 2, 0, 2000, b"add")
        assert list(records()) == [KernelRecord(2, "add", 0.0, 2.0)]


def test_records_that_another_profiler_has_are_missing(library):
    library.status = 39
    with pytest.raises(InstrumentMissing, match=r"status 39"):
        instrument.CuptiRecorder(lambda: None)


@pytest.mark.parametrize(
    "fields", [{"start": 16, "correlation_id": 44}, {"start": 24, "end": 16, "correlation_id": 44}]
)
def test_a_record_that_lies_otherwise_is_not_read(library, fields):
    library.activity_memset4_dtype = layout(64, **fields)
    with pytest.raises(InstrumentMissing, match="record of a memset"):
        instrument.CuptiRecorder(lambda: None)


def test_without_the_package_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(InstrumentMissing, match=r"pip install 'opatlas\[cuda\]'"):
        instrument.CuptiRecorder(lambda: None)
