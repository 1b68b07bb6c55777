"""The doctor's group: two real ranks over Gloo, and what is said of each way in which ranks do not meet."""

from __future__ import annotations

import re

import pytest

from opatlas.outer.doctor import measure
from opatlas.outer.doctor.probe import State, Target
from opatlas.run.devices.device import DeviceSpec, kind_named, pin_devices

pytestmark = pytest.mark.usefixtures("forks")
_CPU = Target("cpu", "cpu", with_group=True)


def test_two_ranks_add_up_a_message() -> None:
    verdict = measure.group(_CPU)
    assert verdict.state is State.PASS, verdict
    assert verdict.facts["wall-clock us"] > 0


def test_ranks_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    verdict = measure.group(_CPU)
    assert verdict.state is State.FAIL
    assert "GLOO_SOCKET_IFNAME" in verdict.remedy


def test_ranks_meet_only_with_the_option() -> None:
    verdict = measure.group(Target("cpu", "cpu"))
    assert verdict.state is State.SKIP
    assert "--group" in verdict.detail


def test_fewer_than_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pin_devices(DeviceSpec("npu"), kind_named("npu").visible, ["3"])
    monkeypatch.setattr(measure, "available_devices", lambda name: one)
    verdict = measure.group(Target("npu", "npu", with_group=True))
    assert verdict.state is State.FAIL
    assert kind_named("npu").visible in verdict.detail
    assert re.findall(r"\b\d\b", verdict.detail) == ["2", "1", "1"]
