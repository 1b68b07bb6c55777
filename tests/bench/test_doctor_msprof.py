"""The doctor's session of msprof, in good and in broken forms.

The device process, the session, and the reading of the summary are those of a replay. msprof and the NPU are stand-ins
(tests/support/stand_in_msprof.py, stand_in_npu.py), which break in the ways that a test names.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import stand_in_msprof

from opatlas.devices.device import DeviceSpec
from opatlas.devices.discovery import VISIBLE, pin_devices
from opatlas.doctor import replaying
from opatlas.doctor.sample_rows import ROWS
from opatlas.doctor.verdict import State, Target, Verdict


@pytest.fixture
def npu(tmp_path, monkeypatch):
    """Runs the probe `replay` on a stand-in NPU; takes how msprof breaks."""
    folder = tmp_path / "bin"
    folder.mkdir()
    msprof = folder / "msprof"
    msprof.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in_msprof.__file__} "$@"\n')
    msprof.chmod(0o755)
    files = tmp_path / "files"
    files.mkdir()
    (spec,) = pin_devices(DeviceSpec("npu", opener="stand_in_npu:StandInNpu"), VISIBLE["npu"], ["0"])
    monkeypatch.setattr(replaying, "available_devices", lambda name: [spec])
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def run(fault: str = "", **environment: str) -> Verdict:
        monkeypatch.setenv(stand_in_msprof.FAULTS, json.dumps({"all": fault}))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return replaying.replay(Target("npu", "npu", files=files))

    run.files = files
    return run


def test_a_session_that_works(npu) -> None:
    verdict = npu()
    assert verdict.state is State.PASS, verdict
    assert all(f"{kernel_type} " in verdict.detail for kernel_type in ROWS)
    # A mark for each row, two for each of its three samples.
    assert "21 of 21 marks with their shapes" in verdict.detail
    assert {"Add", "SoftmaxV2", "MatMulV2", "Neg"} <= verdict.facts["types"].keys()
    assert {"opened_s", "rows_s", "export_s"} <= verdict.facts.keys()
    assert "Device_id, " in verdict.facts["header"][0]
    (summary,) = npu.files.glob("op_summary_*.csv")
    assert "MatMulV2" in summary.read_text()


def test_the_header_of_an_older_msprof_is_told(npu) -> None:
    verdict = npu("older-header")
    assert verdict.state is State.PASS, verdict
    assert "(with Block Dim, OP State)" in verdict.detail


def test_a_line_that_cannot_be_read_is_told(npu) -> None:
    verdict = npu("torn-line")
    assert verdict.state is State.PASS, verdict
    assert "(lines that cannot be read: 1)" in verdict.detail
    assert len(verdict.facts["left_out"]) == 1


def test_the_type_that_ran_is_told(npu) -> None:
    verdict = npu(STAND_IN_KERNELS=json.dumps({"MatMulV2": ["MatMulV3"]}))
    assert verdict.state is State.PASS, verdict
    assert "MatMulV2 (ran as MatMulV3) " in verdict.detail


@pytest.mark.parametrize(
    ("fault", "found", "remedy"),
    [
        ("no-start", "did not start", "msprof itself works"),
        ("killed", "ended as crashed", "dmesg"),
        ("no-export", "exported no op_summary", "python3 on PATH"),
        ("no-summary", "exported no op_summary", "python3 on PATH"),
        ("unknown-header", "no column 'Type'", "the report"),
        ("no-shapes", "no input shapes", "--task-time=l1"),
        ("no-marks", "lacks 21 of 21 marks", "the report"),
        ("nanoseconds", "durations are not in microseconds", "the report"),
        ("milliseconds", "durations are not in microseconds", "the report"),
        ("start-picoseconds", "start times are not in microseconds", "the report"),
        ("cut", "op_summary", "the report"),
    ],
)
def test_each_way_to_break_has_its_remedy(npu, fault, found, remedy) -> None:
    verdict = npu(fault)
    assert verdict.state is State.FAIL
    assert found in verdict.detail
    assert remedy in verdict.remedy


def test_what_is_wrong_with_all_rows_is_told_once_and_no_folder_that_is_gone(npu) -> None:
    detail = npu("no-export").detail
    assert detail.count("op_summary") == 2
    assert "opatlas-tmp" not in detail
    assert all(kernel_type in detail for kernel_type in ROWS)


def test_another_type_than_the_rows_is_no_success(npu) -> None:
    verdict = npu(STAND_IN_KERNELS=json.dumps({"Add": ["Sub"]}))
    assert verdict.state is State.FAIL
    assert "the row Add ended as unsupported" in verdict.detail
    assert "Sub" in verdict.facts["types"]


def test_a_profile_without_a_summary_is_kept_for_the_report(npu) -> None:
    assert npu("no-export").state is State.FAIL
    (listing,) = npu.files.glob("PROF_*.txt")
    assert "host/launches.jsonl" in listing.read_text()
    assert [path for path in npu.files.rglob("launches.jsonl") if path.is_file()]


def test_without_msprof(npu, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "bin" / "msprof").unlink()
    verdict = npu()
    assert verdict.state is State.FAIL
    assert "msprof is not on PATH" in verdict.detail
