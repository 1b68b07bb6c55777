"""The doctor's group: two real ranks over Gloo, and what is said of each way in which ranks do not meet."""

from __future__ import annotations

import json
import os
import sys

import pytest
import stand_in_msprof
from stand_in_npu import collective_us

from opatlas.devices.device import DeviceSpec
from opatlas.devices.discovery import VISIBLE, pin_devices
from opatlas.doctor import group
from opatlas.doctor.verdict import State, Target, Verdict

_CPU = Target("cpu", "cpu", backend="gloo")


def test_two_ranks_add_up_a_message() -> None:
    verdict = group.group(_CPU)
    assert verdict.state is State.PASS, verdict
    assert verdict.facts["wall-clock us"] > 0


def test_ranks_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    verdict = group.group(_CPU)
    assert verdict.state is State.FAIL
    assert "did not start" in verdict.detail
    assert "GLOO_SOCKET_IFNAME" in verdict.remedy


def test_a_library_of_other_devices_is_refused() -> None:
    verdict = group.group(Target("cpu", "cpu", backend="hccl"))
    assert (verdict.state, verdict.remedy) == (State.FAIL, "--gloo")


@pytest.fixture
def npus(tmp_path, monkeypatch):
    """Two stand-ins for NPUs, whose ranks meet over gloo, and for msprof; takes how that breaks."""
    msprof = tmp_path / "msprof"
    msprof.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in_msprof.__file__} "$@"\n')
    msprof.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    specs = pin_devices(DeviceSpec("npu", opener="stand_in_npu:StandInNpu"), VISIBLE["npu"], ["0", "1"])
    monkeypatch.setattr(group, "available_devices", lambda name: specs)
    # Events need an NPU.
    monkeypatch.setattr(group, "EVENTS", {})

    def run(fault: str = "") -> Verdict:
        monkeypatch.setenv(stand_in_msprof.FAULTS, json.dumps({"all ranks": fault}))
        return group.group(Target("npu", "npu", backend="hccl"))

    return run


def test_two_ranks_under_msprof(npus) -> None:
    verdict = npus()
    assert verdict.state is State.PASS, verdict
    assert "(msprof; " in verdict.detail
    assert verdict.facts["msprof us"] == collective_us(1)


def test_two_ranks_whose_profiles_are_empty(npus) -> None:
    verdict = npus("no-export")
    assert verdict.state is State.FAIL
    assert "op_summary" in verdict.detail
    assert "opatlas-tmp" not in verdict.detail, "the folder is gone when the user reads this"


def test_nobody_asks() -> None:
    verdict = group.group(Target("cpu", "cpu"))
    assert verdict.state is State.SKIP
    assert "--gloo" in verdict.detail


def test_fewer_than_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pin_devices(DeviceSpec("npu"), VISIBLE["npu"], ["3"])
    monkeypatch.setattr(group, "available_devices", lambda name: one)
    verdict = group.group(Target("npu", "npu", backend="hccl"))
    assert verdict.state is State.FAIL
    assert "needs 2 devices, 1 is there (ASCEND_RT_VISIBLE_DEVICES shows 1)" in verdict.detail
