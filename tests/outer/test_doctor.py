"""`opatlas doctor`: each probe, what it says of each way to fail, and that none can hurt another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import stand_in_msprof
from sessions import wait_for

from opatlas.cli.main import main
from opatlas.outer.doctor import command, measure, stages
from opatlas.outer.doctor.command import PROBES
from opatlas.outer.doctor.measure import ROWS
from opatlas.outer.doctor.probe import Probe, ProbeResult, State, Target, failed, passed, run_probe
from opatlas.run.devices import npu as npu_module
from opatlas.run.devices.device import DeviceSpec, kind_named, pin_devices

pytestmark = pytest.mark.usefixtures("forks")
REPOSITORY = Path(__file__).parents[2]
#: What a library may do to the process that touches it.
_BAD_PROBES = """
import ctypes, os, subprocess, sys
from opatlas.outer.doctor.probe import passed
from opatlas.errors import OpAtlasError

def dies(target):
    print("last words", flush=True)
    ctypes.string_at(0)

def exits(target):
    os._exit(7)

def hangs(target):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", target.device])
    ctypes.PyDLL(None).sleep(300)

def raises(target):
    raise RuntimeError("no device\\nand a long story")

def says(target):
    raise OpAtlasError("no such thing: do that")

def good(target):
    return passed(f"{target.device} {target.kind} {target.files}", number=7)
"""


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """Gives a probe by its name."""
    tmp_path.joinpath("bad_probes.py").write_text(_BAD_PROBES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    monkeypatch.syspath_prepend(tmp_path)
    import bad_probes

    yield lambda name: Probe(getattr(bad_probes, name), deadline_s=60)
    del sys.modules["bad_probes"]


def test_a_probe_that_dies_is_a_finding(bad):
    result = run_probe(bad("dies"), Target())
    assert result.verdict.state is State.FAIL
    assert "SIGSEGV" in result.verdict.detail
    assert "last words" in result.output
    assert "in dies" in result.output
    assert "exit code 7" in run_probe(bad("exits"), Target()).verdict.detail


def test_a_probe_that_hangs_is_ended_with_what_it_started(bad, tmp_path):
    mark = f"mark-of-{tmp_path.name}-{os.getpid()}"
    result = run_probe(Probe(bad("hangs").function, deadline_s=3), Target(device=mark))
    assert result.verdict.state is State.FAIL
    assert "3 s" in result.verdict.detail

    def has_ended() -> bool:
        processes = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
        return not [line for line in processes.splitlines() if mark in line and not line.startswith("Z")]

    # A busy system takes a moment to end what it was told to kill.
    assert wait_for(has_ended)


def test_what_a_probe_raises_is_a_finding(bad):
    verdict = run_probe(bad("raises"), Target()).verdict
    assert (verdict.state, verdict.detail) == (State.FAIL, "RuntimeError: no device")
    assert "and a long story" in verdict.facts["traceback"]
    assert run_probe(bad("says"), Target()).verdict.detail == "no such thing: do that"


def test_what_a_probe_is_told_and_tells(bad, tmp_path):
    verdict = run_probe(bad("good"), Target("ATLAS", "npu", files=tmp_path)).verdict
    assert (verdict.state, verdict.detail, verdict.facts) == (State.PASS, f"ATLAS npu {tmp_path}", {"number": 7})


#: Probes that stand for all: the others are tested by themselves, and all together by an acceptance session.
FEW = ("device", "packages", "replay")


def test_a_cpu(tmp_path, monkeypatch, capsys):
    """The command with real probes, and its report."""
    monkeypatch.setattr(command, "PROBES", {name: PROBES[name] for name in FEW})
    monkeypatch.setenv("OPATLAS_API_KEY", "very secret")
    monkeypatch.setenv("VLLM_AUTH_HEADER", "very secret")
    path = tmp_path / "found.zip"
    status = main(["doctor", "--device", "cpu", "--report", str(path)])
    out = capsys.readouterr().out
    assert status == 0, out
    assert states(out) == dict.fromkeys(FEW, "pass")
    printed = " ".join(out.split())
    with zipfile.ZipFile(path) as report:
        text = report.read("doctor.json").decode()
    found = json.loads(text)
    facts = {probe["name"]: probe["facts"] for probe in found["probes"]}
    assert facts["packages"]["installed"]["pytest"] == metadata.version("pytest")
    # The command prints which variables are in the file; those of secrets have no values.
    assert found["environment"]["OPATLAS_API_KEY"] == "(left out)"
    assert "very secret" not in text
    assert all(name in printed for name in found["environment"])


def test_rows_that_are_not_measured(monkeypatch):
    monkeypatch.setattr(measure, "available_devices", lambda name: [DeviceSpec("cpu", opener="no_such_module:Device")])
    verdict = measure.replay(Target("cpu", "cpu"))
    assert verdict.state is State.FAIL
    assert "no_such_module" in verdict.detail
    unlike = {**ROWS, "Add": {**ROWS["Add"], "Output Shapes": "17,64"}}
    monkeypatch.setattr(measure, "ROWS", unlike)
    monkeypatch.setattr(measure, "available_devices", lambda name: [DeviceSpec("cpu")])
    verdict = measure.replay(Target("cpu", "cpu"))
    assert verdict.state is State.FAIL
    assert {"Add", "invalid"} <= set(re.findall(r"\w+", verdict.detail))
    assert "--report" in verdict.remedy


@pytest.fixture
def doctor(monkeypatch, capsys):
    """The command, with verdicts of the test's own; gives status and stdout."""

    def run(*arguments, signs=(), kind="cpu", **verdicts):
        def run_probe(probe, target, environment):
            found = passed("1", kind=kind) if probe.name == "device" and kind else passed("fine")
            (target.files / "left.csv").write_text("OP Type\n")
            return ProbeResult(verdicts.get(probe.name, found))

        monkeypatch.setattr(command, "run_probe", run_probe)
        monkeypatch.setattr(stages, "signs_of_ascend", lambda: list(signs))
        status = main(["doctor", *arguments])
        return status, capsys.readouterr().out

    return run


def states(out: str) -> dict[str, str]:
    """Returns the printed status of each step."""
    return dict(re.findall(r"^(\w+) +(pass|fail|warn|skip) ", out, re.MULTILINE))


@pytest.mark.parametrize("place", ["file/r.zip", "folder"])
def test_a_report_that_cannot_be_written_is_told_before_the_probes(doctor, tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    status, out = doctor("--report", str(tmp_path / place))
    assert (status, "pass" in out) == (1, False)


def test_a_report_has_what_probes_left(doctor, tmp_path):
    status, _ = doctor("--report", str(tmp_path / "r.zip"))
    with zipfile.ZipFile(tmp_path / "r.zip") as report:
        assert report.read("probes/device/left.csv") == b"OP Type\n"
    assert status == 0


BROKEN = failed("no CANN", "install it")


@pytest.mark.parametrize(
    ("options", "kind", "signs", "verdicts", "status", "expected"),
    [
        # What the device does not need may fail.
        ([], "cpu", ["torch_npu"], {"torch_npu": BROKEN}, 0, {"torch_npu": "warn"}),
        # What stands on a probe that fails does not say the same again.
        (
            [],
            "npu",
            ["torch_npu"],
            {"torch_npu": BROKEN, "operators": BROKEN},
            1,
            {"torch_npu": "fail", "operators": "skip"},
        ),
        ([], "npu", ["torch_npu"], {"operators": failed("an older one")}, 0, {"operators": "warn"}),
        ([], "", [], {"device": failed("two of them")}, 1, {"device": "fail", "replay": "skip", "group": "skip"}),
        # Probes of an NPU run where there is a sign of one, or where one is asked for.
        ([], "cpu", [], {"torch_npu": BROKEN}, 0, {"torch_npu": None, "npu_driver": None}),
        (["--device", "npu"], "", [], {"torch_npu": BROKEN}, 1, {"torch_npu": "fail"}),
    ],
)
def test_the_state_of_each_step(doctor, options, kind, signs, verdicts, status, expected):
    found, out = doctor(*options, signs=signs, kind=kind, **verdicts)
    assert found == status, out
    assert {name: states(out).get(name) for name in expected} == expected


@pytest.fixture
def machine_of(tmp_path, monkeypatch):
    """An empty machine: no devices, no tools on PATH, no CANN. Gives its folder."""
    for name in ("dev", "Ascend", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(stages, "_DEVICE_FILES", tmp_path / "dev")
    monkeypatch.setattr(stages, "_ASCEND", tmp_path / "Ascend")
    monkeypatch.setattr(npu_module, "_ASCEND", tmp_path / "Ascend")
    monkeypatch.setattr(stages, "cann_version", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH", "ASCEND_CUSTOM_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def tool(folder, name, script):
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def says(probe, state, words):
    verdict = probe(Target(kind="npu"))
    assert verdict.state is state, verdict
    assert words in f"{verdict.detail} -> {verdict.remedy}"


def test_the_driver(machine_of, monkeypatch):
    says(stages.npu_driver, State.FAIL, "davinci0")
    for name in ("davinci10", "davinci2", "davinci_manager", "hisi_hdc"):
        (machine_of / "dev" / name).touch()
    says(stages.npu_driver, State.FAIL, f"--device {machine_of / 'dev' / 'devmm_svm'}")
    (machine_of / "dev" / "devmm_svm").touch()
    says(stages.npu_driver, State.PASS, "davinci2, davinci10; npu-smi: npu-smi is not on PATH")
    tool(machine_of, "npu-smi", "echo 'dcmi module initialize failed. ret is -8005'; exit 3")
    monkeypatch.setattr(stages, "list_chips", tuple)
    says(stages.npu_driver, State.PASS, "exit code 3: dcmi module initialize failed")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "davinci2")
    says(stages.npu_driver, State.FAIL, "davinci2 cannot be read and written")


def test_cann(machine_of, monkeypatch):
    says(stages.cann, State.FAIL, "no CANN toolkit below")
    monkeypatch.setattr(stages, "cann_version", lambda: "8.5.0")
    home = machine_of / "Ascend" / "ascend-toolkit"
    says(stages.cann, State.FAIL, f"ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME are empty -> source {home}")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    says(stages.cann, State.FAIL, f"ASCEND_HOME_PATH={home} is no folder")
    home.mkdir()
    (home / "set_env.sh").touch()
    says(stages.cann, State.FAIL, f"LD_LIBRARY_PATH has no folder of it -> source {home / 'set_env.sh'}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{home / 'lib64'}")
    says(stages.cann, State.PASS, f"8.5.0, {home}")


#: A stand-in for msprof on PATH, and an NPU that is a stand-in: the device process, the session and the reading of the
#: summary are those of a replay.
@pytest.fixture
def npu(tmp_path, monkeypatch):
    """Runs `replay` on a stand-in NPU; takes how msprof breaks."""
    folder, files = tmp_path / "bin", tmp_path / "files"
    folder.mkdir()
    files.mkdir()
    stand_in_msprof.write_program(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    devices = pin_devices(DeviceSpec("npu", opener="stand_in_npu:StandInNpu"), kind_named("npu").visible, ["0"])
    monkeypatch.setattr(measure, "available_devices", lambda name: devices)

    def run(fault="", **environment):
        monkeypatch.setenv(stand_in_msprof.FAULTS, json.dumps({"all": fault}))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return measure.replay(Target("npu", "npu", files=files))

    run.files = files
    return run


def test_a_session_of_msprof(npu):
    verdict = npu(STAND_IN_KERNELS=json.dumps({"MatMulV2": ["MatMulV3"]}))
    assert verdict.state is State.PASS, verdict
    assert all(f"{kernel_type} " in verdict.detail for kernel_type in ROWS)
    assert re.search(r"MatMulV2 \([^)]*MatMulV3\) ", verdict.detail)
    assert {"Add", "SoftmaxV2", "MatMulV3", "Neg"} <= verdict.facts["types"].keys()


def test_a_profile_without_a_summary_is_told_once_and_kept_for_the_report(npu):
    verdict = npu("no-export")
    assert verdict.state is State.FAIL
    assert "op_summary" in verdict.detail
    assert "opatlas-tmp" not in verdict.detail
    assert all(kernel_type in verdict.detail for kernel_type in ROWS)
    (listing,) = npu.files.glob("PROF_*.json")
    assert "host/launches.jsonl" in listing.read_text()
    assert [path for path in npu.files.rglob("launches.jsonl") if path.is_file()]


_GROUP = Target("cpu", "cpu", with_group=True)


def test_two_ranks_add_up_a_message():
    verdict = measure.group(_GROUP)
    assert verdict.state is State.PASS, verdict
    assert verdict.facts["wall-clock us"] > 0
    assert measure.group(Target("cpu", "cpu")).state is State.SKIP


def test_ranks_that_do_not_meet(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    verdict = measure.group(_GROUP)
    assert verdict.state is State.FAIL
    assert "GLOO_SOCKET_IFNAME" in verdict.remedy


def test_fewer_than_two_devices(monkeypatch):
    one = pin_devices(DeviceSpec("npu"), kind_named("npu").visible, ["3"])
    monkeypatch.setattr(measure, "available_devices", lambda name: one)
    verdict = measure.group(Target("npu", "npu", with_group=True))
    assert verdict.state is State.FAIL
    assert kind_named("npu").visible in verdict.detail
