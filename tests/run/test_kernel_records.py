"""Kernel records, with a list as the device: the kernels of a call, and errors."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from opatlas.row.errors import ReplayError
from opatlas.run.group import SharedRule
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


def test_each_kernel_of_a_call_has_its_mean_duration():
    device = Device()
    durations = iter([1.0, 3.0] * 20)

    def call():
        device.launch("one", next(durations))
        device.launch("two", 5.0)

    # One call finds out how many are queued at once.
    found = sample(device, call, rule=StopRule(repeat_count=4, time_limit_s=60))
    assert found.kernel_names == ("one", "two")
    assert found.kernels_us == (2.0, 5.0)


def test_a_calls_kernels_add_up_and_its_preparation_does_not_count():
    device = Device()

    def call():
        device.launch("gemm_split_k", 10.0)
        device.launch("split_k_reduce", 2.5)

    samples = sample(device, call, lambda: device.launch("flush", 40.0))
    assert samples.durations_us == (12.5, 12.5, 12.5)
    assert samples.device_kernels == 2
    assert samples.calls_per_sample == 1


def test_samples_are_queued_and_their_records_read_together():
    device = Device()
    assert len(sample(device, lambda: device.launch("add")).durations_us) == 3
    assert device.sessions == 1


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


def test_a_call_that_launches_nothing_is_an_error():
    with pytest.raises(ReplayError, match="no kernel"):
        sample(Device(), lambda: None)
