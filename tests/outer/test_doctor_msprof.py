"""The doctor's session of msprof, in good and in broken forms.

The device process, the session, and the reading of the summary are those of a replay. msprof and the NPU are stand-ins
(tests/support/stand_in_msprof.py, stand_in_npu.py), which break in the ways that a test names.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import stand_in_msprof

from opatlas.outer.doctor import measure
from opatlas.outer.doctor.measure import ROWS
from opatlas.outer.doctor.probe import State, Target, Verdict
from opatlas.run.devices.device import DeviceSpec, kind_named, pin_devices

pytestmark = pytest.mark.usefixtures("forks")


def stand_ins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceSpec:
    """Puts a stand-in for msprof on PATH; returns a stand-in NPU."""
    stand_in_msprof.write_program(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    (spec,) = pin_devices(DeviceSpec("npu", opener="stand_in_npu:StandInNpu"), kind_named("npu").visible, ["0"])
    return spec


@pytest.fixture
def npu(tmp_path, monkeypatch):
    """Runs the probe `replay` on a stand-in NPU; takes how msprof breaks."""
    folder, files = tmp_path / "bin", tmp_path / "files"
    folder.mkdir()
    files.mkdir()
    spec = stand_ins(folder, monkeypatch)
    monkeypatch.setattr(measure, "available_devices", lambda name: [spec])

    def run(fault: str = "", **environment: str) -> Verdict:
        monkeypatch.setenv(stand_in_msprof.FAULTS, json.dumps({"all": fault}))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return measure.replay(Target("npu", "npu", files=files))

    run.files = files
    return run


def test_a_session_that_works(npu) -> None:
    verdict = npu(STAND_IN_KERNELS=json.dumps({"MatMulV2": ["MatMulV3"]}))
    assert verdict.state is State.PASS, verdict
    assert all(f"{kernel_type} " in verdict.detail for kernel_type in ROWS)
    assert re.search(r"MatMulV2 \([^)]*MatMulV3\) ", verdict.detail)
    assert {"Add", "SoftmaxV2", "MatMulV3", "Neg"} <= verdict.facts["types"].keys()


def test_a_profile_without_a_summary_is_told_once_and_kept_for_the_report(npu) -> None:
    verdict = npu("no-export")
    assert verdict.state is State.FAIL
    assert "op_summary" in verdict.detail
    assert "opatlas-tmp" not in verdict.detail
    assert all(kernel_type in verdict.detail for kernel_type in ROWS)
    (listing,) = npu.files.glob("PROF_*.json")
    assert "host/launches.jsonl" in listing.read_text()
    assert [path for path in npu.files.rglob("launches.jsonl") if path.is_file()]


def test_without_msprof(npu, tmp_path: Path) -> None:
    (tmp_path / "bin" / "msprof").unlink()
    verdict = npu()
    assert verdict.state is State.FAIL
    assert "msprof is not on PATH" in verdict.detail
