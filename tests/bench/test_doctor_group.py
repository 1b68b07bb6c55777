"""The doctor's group: two real ranks over Gloo, and what is said of each way in which ranks do not meet."""

from __future__ import annotations

import pytest

from bench.devices.visible import VISIBLE, pinned
from bench.doctor import group
from bench.doctor.verdict import State, Target
from bench.job import DeviceSpec

_CPU = Target("cpu", "cpu", backend="gloo")


def test_two_ranks_add_up_a_message() -> None:
    verdict = group.group(_CPU)
    assert verdict.state is State.PASS, verdict
    assert verdict.facts["duration_us"] > 0


def test_ranks_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    verdict = group.group(_CPU)
    assert verdict.state is State.FAIL
    assert "did not start" in verdict.detail
    assert "GLOO_SOCKET_IFNAME" in verdict.remedy


def test_a_library_of_other_devices_is_refused() -> None:
    verdict = group.group(Target("cpu", "cpu", backend="hccl"))
    assert (verdict.state, verdict.remedy) == (State.FAIL, "--gloo")


def test_nobody_asks() -> None:
    verdict = group.group(Target("cpu", "cpu"))
    assert verdict.state is State.SKIP
    assert "--gloo" in verdict.detail


def test_fewer_than_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pinned(DeviceSpec("npu"), VISIBLE["npu"], ["3"])
    monkeypatch.setattr(group, "devices_at_hand", lambda name: one)
    verdict = group.group(Target("npu", "npu", backend="hccl"))
    assert verdict.state is State.FAIL
    assert "needs 2 devices, 1 is there (ASCEND_RT_VISIBLE_DEVICES shows 1)" in verdict.detail
