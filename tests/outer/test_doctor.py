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
from sessions import wait_for

from opatlas.cli.main import main
from opatlas.outer.doctor import ascend, command, measure
from opatlas.outer.doctor.command import PROBES
from opatlas.outer.doctor.measure import ROWS
from opatlas.outer.doctor.probe import Probe, ProbeResult, State, Target, failed, passed, run_probe
from opatlas.run.devices import npu as torch_npu_module
from opatlas.run.devices.device import DeviceSpec

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
FEW = ("device", "packages", "cpu")


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
        def run_probe(probe, target):
            found = passed("1", kind=kind) if probe.name == "device" and kind else passed("fine")
            (target.files / "left.csv").write_text("OP Type\n")
            return ProbeResult(verdicts.get(probe.name, found), 0.0, "")

        monkeypatch.setattr(command, "run_probe", run_probe)
        monkeypatch.setattr(ascend, "signs_of_ascend", lambda: list(signs))
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
            {"torch_npu": BROKEN, "npu_calls": BROKEN},
            1,
            {"torch_npu": "fail", "npu_calls": "skip"},
        ),
        ([], "npu", ["torch_npu"], {"npu_calls": failed("an older one")}, 0, {"npu_calls": "warn"}),
        ([], "", [], {"device": failed("two of them")}, 1, {"device": "fail", "replay": "skip", "group": "skip"}),
        # Probes of an NPU run where there is a sign of one, or where one is asked for.
        ([], "cpu", [], {"torch_npu": BROKEN}, 0, {"torch_npu": None, "npu_devices": None}),
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
    monkeypatch.setattr(ascend, "_DEVICE_FILES", tmp_path / "dev")
    monkeypatch.setattr(ascend, "_ASCEND", tmp_path / "Ascend")
    monkeypatch.setattr(torch_npu_module, "_ASCEND", tmp_path / "Ascend")
    monkeypatch.setattr(ascend, "cann_version", lambda: None)
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


def test_device_files(machine_of, monkeypatch):
    says(ascend.npu_devices, State.FAIL, "davinci0 is missing -> install the NPU driver")
    for name in ("davinci10", "davinci2", "davinci_manager", "hisi_hdc"):
        (machine_of / "dev" / name).touch()
    says(ascend.npu_devices, State.FAIL, f"{machine_of / 'dev' / 'devmm_svm'} missing -> in a container")
    (machine_of / "dev" / "devmm_svm").touch()
    says(ascend.npu_devices, State.PASS, "2 (davinci2, davinci10)")
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "davinci2")
    says(ascend.npu_devices, State.FAIL, "davinci2 cannot be read and written")


def test_npu_smi(machine_of, monkeypatch):
    says(ascend.npu_smi, State.FAIL, "not on PATH -> install the NPU driver")
    tool(machine_of, "npu-smi", "echo 'dcmi module initialize failed. ret is -8005'; exit 3")
    says(ascend.npu_smi, State.FAIL, "exit code 3: dcmi module initialize failed")
    tool(machine_of, "npu-smi", "echo fine")
    monkeypatch.setattr(ascend, "list_chips", tuple)
    says(ascend.npu_smi, State.FAIL, "no chip")


def test_cann(machine_of, monkeypatch):
    says(ascend.cann, State.FAIL, "no CANN toolkit below")
    monkeypatch.setattr(ascend, "cann_version", lambda: "8.5.0")
    home = machine_of / "Ascend" / "ascend-toolkit"
    says(
        ascend.cann,
        State.FAIL,
        f"its environment is not set (ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME are empty) -> source {home}",
    )
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    says(ascend.cann, State.FAIL, f"ASCEND_HOME_PATH={home} is no folder")
    home.mkdir()
    (home / "set_env.sh").touch()
    says(ascend.cann, State.FAIL, f"LD_LIBRARY_PATH has no folder of it -> source {home / 'set_env.sh'}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{home / 'lib64'}")
    says(ascend.cann, State.PASS, f"8.5.0, {home}")
