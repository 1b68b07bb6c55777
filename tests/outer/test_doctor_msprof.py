"""The doctor's session of msprof, in good and in broken forms.

The device process, the session, and the reading of the summary are those of a replay. msprof and the NPU are stand-ins
(tests/support/stand_in_msprof.py, stand_in_npu.py), which break in the ways that a test names. Faults of the summary
are written into the profile of one session, which all tests share.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import stand_in_msprof

from opatlas.outer.doctor import measure
from opatlas.outer.doctor.measure import ROWS, SAMPLES, RecordedSession, check_session, record_session
from opatlas.outer.doctor.probe import State, Target, Verdict
from opatlas.run.devices.device import DeviceSpec, kind_named, pin_devices
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.msprof.pending import read_output

pytestmark = pytest.mark.usefixtures("forks")
#: A mark for each row, and two for each sample of a row.
MARKS = len(ROWS) * (1 + 2 * SAMPLES)


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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordedSession, Path]:
    """A session without a fault, and the folder that msprof wrote."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as monkeypatch:
        spec = stand_ins(folder, monkeypatch)
        monkeypatch.setenv("STAND_IN_KERNELS", json.dumps({"MatMulV2": ["MatMulV3"]}))
        return record_session(spec, MeasureSettings(repeat_count=SAMPLES), folder / "profiles"), folder / "profiles"


@pytest.fixture
def verdict_on(recorded: tuple[RecordedSession, Path], tmp_path: Path):
    """Checks the session after its summary was written again with a fault."""
    session, profiles = recorded
    copy = tmp_path / "profiles"
    shutil.copytree(profiles, copy)

    def check(fault: str) -> Verdict:
        (profile,) = (path.parent for path in copy.rglob("host"))
        shutil.rmtree(profile / "mindstudio_profiler_output")
        stand_in_msprof.write_summary(profile, fault, {})
        return check_session(replace(session, output=read_output(copy, exports=False)))

    return check


def test_a_session_that_works(recorded: tuple[RecordedSession, Path]) -> None:
    verdict = check_session(recorded[0])
    assert verdict.state is State.PASS, verdict
    assert all(f"{kernel_type} " in verdict.detail for kernel_type in ROWS)
    assert re.search(r"MatMulV2 \([^)]*MatMulV3\) ", verdict.detail)
    assert f"{MARKS} of {MARKS} marks" in verdict.detail
    assert {"Add", "SoftmaxV2", "MatMulV3", "Neg"} <= verdict.facts["types"].keys()
    assert "Device_id, " in verdict.facts["header"][0]


def test_the_header_of_an_older_msprof_is_told(verdict_on) -> None:
    verdict = verdict_on("older-header")
    assert verdict.state is State.PASS, verdict
    assert {"Block Dim", "OP State"} <= set(verdict.facts["header"][0].split(", "))


def test_a_line_that_cannot_be_read_is_told(verdict_on) -> None:
    verdict = verdict_on("torn-line")
    assert verdict.state is State.PASS, verdict
    assert len(verdict.facts["left_out"]) == 1


@pytest.mark.parametrize(
    ("fault", "found", "remedy"),
    [
        ("no-summary", "exported no op_summary", "python3 on PATH"),
        ("unknown-header", "no column 'Type'", "the report"),
        ("no-shapes", "no input shapes", "--task-time=l1"),
        ("no-marks", f"lacks {MARKS} of {MARKS} marks", "the report"),
        ("cut", "op_summary", "the report"),
    ],
)
def test_each_fault_of_a_summary_has_its_remedy(verdict_on, fault: str, found: str, remedy: str) -> None:
    verdict = verdict_on(fault)
    assert verdict.state is State.FAIL
    assert found in verdict.detail
    assert remedy in verdict.remedy


@pytest.mark.parametrize(
    ("fault", "found", "remedy"),
    [("no-start", "did not start", "msprof itself works"), ("killed", "crashed", "dmesg")],
)
def test_each_fault_of_a_process_has_its_remedy(npu, fault: str, found: str, remedy: str) -> None:
    verdict = npu(fault)
    assert verdict.state is State.FAIL
    assert found in verdict.detail
    assert remedy in verdict.remedy


def test_a_profile_without_a_summary_is_told_once_and_kept_for_the_report(npu) -> None:
    verdict = npu("no-export")
    assert verdict.state is State.FAIL
    assert "python3 on PATH" in verdict.remedy
    assert verdict.detail.count("op_summary") == 2
    assert "opatlas-tmp" not in verdict.detail
    assert all(kernel_type in verdict.detail for kernel_type in ROWS)
    (listing,) = npu.files.glob("PROF_*.txt")
    assert "host/launches.jsonl" in listing.read_text()
    assert [path for path in npu.files.rglob("launches.jsonl") if path.is_file()]


def test_another_type_than_the_rows_is_no_success(npu) -> None:
    verdict = npu(STAND_IN_KERNELS=json.dumps({"Add": ["Sub"]}))
    assert verdict.state is State.FAIL
    assert {"Add", "unsupported"} <= set(re.findall(r"\w+", verdict.detail))
    assert "Sub" in verdict.facts["types"]
    (summary,) = npu.files.glob("op_summary_*.csv")
    assert "MatMulV2" in summary.read_text()


def test_without_msprof(npu, tmp_path: Path) -> None:
    (tmp_path / "bin" / "msprof").unlink()
    verdict = npu()
    assert verdict.state is State.FAIL
    assert "msprof is not on PATH" in verdict.detail
