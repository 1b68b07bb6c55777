"""`opatlas doctor`: each stage, what it says of each way to fail, and that none can hurt another."""

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
import stand_in_npu_plugin
from sessions import wait_for

from opatlas.cli.main import main
from opatlas.outer.doctor import command, stages
from opatlas.outer.doctor.command import run_stage
from opatlas.outer.doctor.stages import ROWS, STAGES, Stage, State, Target, failed, passed
from opatlas.run.devices import npu as npu_module

pytestmark = pytest.mark.usefixtures("forks")
REPOSITORY = Path(__file__).parents[2]
#: What a library may do to the process that touches it.
_BAD_STAGES = """
import ctypes, os, subprocess, sys
from opatlas.outer.doctor.stages import passed
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
    """Runs a stage of _BAD_STAGES."""
    tmp_path.joinpath("bad_stages.py").write_text(_BAD_STAGES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    monkeypatch.syspath_prepend(tmp_path)
    import bad_stages

    def run(name, target=None, deadline_s=60.0):
        monkeypatch.setitem(STAGES, name, Stage(getattr(bad_stages, name), deadline_s))
        return run_stage(name, target or Target())

    yield run
    del sys.modules["bad_stages"]


def test_a_stage_that_dies_is_a_finding(bad):
    verdict = bad("dies")
    assert verdict.state is State.FAIL
    assert "SIGSEGV" in verdict.detail
    assert "last words" in verdict.output
    assert "in dies" in verdict.output
    assert "exit code 7" in bad("exits").detail


def test_a_stage_that_hangs_is_ended_with_what_it_started(bad, tmp_path):
    mark = f"mark-of-{tmp_path.name}-{os.getpid()}"
    verdict = bad("hangs", Target(device=mark), 3.0)
    assert verdict.state is State.FAIL
    assert "3 s" in verdict.detail

    def has_ended() -> bool:
        processes = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
        return not [line for line in processes.splitlines() if mark in line and not line.startswith("Z")]

    # A busy system takes a moment to end what it was told to kill.
    assert wait_for(has_ended)


def test_what_a_stage_raises_is_a_finding(bad):
    verdict = bad("raises")
    assert (verdict.state, verdict.detail) == (State.FAIL, "RuntimeError: no device")
    assert "and a long story" in verdict.facts["traceback"]
    assert bad("says").detail == "no such thing: do that"


def test_what_a_stage_is_told_and_tells(bad, tmp_path):
    verdict = bad("good", Target("ATLAS", "npu", tmp_path))
    assert (verdict.state, verdict.detail, verdict.facts) == (State.PASS, f"ATLAS npu {tmp_path}", {"number": 7})


#: Stages that stand for all: the others are tested by themselves, and all together by an acceptance session.
FEW = ("device", "replay")


def test_a_cpu(tmp_path, monkeypatch, capsys):
    """The command with real stages, and its report."""
    monkeypatch.setattr(command, "STAGES", {name: STAGES[name] for name in FEW})
    monkeypatch.setenv("OPATLAS_API_KEY", "very secret")
    monkeypatch.setenv("VLLM_AUTH_HEADER", "very secret")
    path = tmp_path / "found.zip"
    status = main(["doctor", "--format", "text", "--device", "cpu", "--report", str(path)])
    out = capsys.readouterr().out
    assert status == 0, out
    assert states(out) == dict.fromkeys(FEW, "pass")
    printed = " ".join(out.split())
    with zipfile.ZipFile(path) as report:
        text = report.read("doctor.json").decode()
    found = json.loads(text)
    assert found["packages"]["pytest"] == metadata.version("pytest")
    # The command prints which variables are in the file; those of secrets have no values.
    assert found["environment"]["OPATLAS_API_KEY"] == "(left out)"
    assert "very secret" not in text
    assert all(name in printed for name in found["environment"])


def test_rows_that_are_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "ROWS", {"Add": (*ROWS["Add"][:3], "17,64", "FLOAT", "ND")})
    verdict = stages.replay(Target("cpu", "cpu", files=tmp_path))
    assert verdict.state is State.FAIL
    assert {"Add", "invalid"} <= set(re.findall(r"\w+", verdict.detail))
    assert "--report" in verdict.remedy


@pytest.fixture
def doctor(monkeypatch, capsys):
    """The command, with verdicts of the test's own; gives status and stdout."""

    def run(*arguments, signs=(), kind="cpu", **verdicts):
        def run_stage(name, target, environment):
            found = passed("1", kind=kind) if name == "device" and kind else passed("fine")
            (target.files / "left.csv").write_text("OP Type\n")
            return verdicts.get(name, found)

        monkeypatch.setattr(command, "run_stage", run_stage)
        monkeypatch.setattr(stages, "signs_of_ascend", lambda: list(signs))
        status = main(["doctor", *arguments])
        return status, capsys.readouterr().out

    return run


def states(out: str) -> dict[str, str]:
    """Returns the printed status of each stage."""
    return dict(re.findall(r"^(\w+) +(pass|fail|warn|skip) ", out, re.MULTILINE))


@pytest.mark.parametrize("place", ["file/r.zip", "folder"])
def test_a_report_that_cannot_be_written_is_told_before_the_stages(doctor, tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    status, out = doctor("--report", str(tmp_path / place))
    assert (status, "pass" in out) == (1, False)


def test_a_report_has_what_stages_left(doctor, tmp_path):
    status, _ = doctor("--report", str(tmp_path / "r.zip"))
    with zipfile.ZipFile(tmp_path / "r.zip") as report:
        assert report.read("stages/device/left.csv") == b"OP Type\n"
    assert status == 0


BROKEN = failed("no CANN", "install it")


@pytest.mark.parametrize(
    ("options", "kind", "signs", "verdicts", "status", "expected"),
    [
        # What the device does not need may fail.
        ([], "cpu", ["torch_npu"], {"cann": BROKEN}, 0, {"cann": "warn"}),
        ([], "npu", ["torch_npu"], {"cann": BROKEN}, 1, {"cann": "fail", "operators": "pass"}),
        ([], "npu", ["torch_npu"], {"operators": failed("an older one")}, 0, {"operators": "warn"}),
        # What stands on a stage that fails does not say the same again.
        ([], "", [], {"device": failed("two of them")}, 1, {"device": "fail", "replay": "skip", "group": "skip"}),
        # Stages of an NPU run where there is a sign of one, or where one is asked for.
        ([], "cpu", [], {"cann": BROKEN}, 0, {"cann": None, "npu_driver": None}),
        (["--device", "npu"], "", [], {"cann": BROKEN}, 1, {"cann": "fail"}),
    ],
)
def test_the_state_of_each_stage(doctor, options, kind, signs, verdicts, status, expected):
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


def says(stage, state, *words):
    verdict = stage(Target(kind="npu"))
    assert verdict.state is state, verdict
    assert all(word in f"{verdict.detail} {verdict.remedy}" for word in words), verdict


def test_the_driver(machine_of, monkeypatch):
    says(stages.npu_driver, State.FAIL, "davinci0")
    for name in ("davinci10", "davinci2", "davinci_manager", "hisi_hdc"):
        (machine_of / "dev" / name).touch()
    says(stages.npu_driver, State.FAIL, str(machine_of / "dev" / "devmm_svm"))
    (machine_of / "dev" / "devmm_svm").touch()
    says(stages.npu_driver, State.PASS, "davinci2", "davinci10", "PATH")
    tool(machine_of, "npu-smi", "echo 'dcmi module initialize failed. ret is -8005'; exit 3")
    monkeypatch.setattr(stages, "list_chips", tuple)
    says(stages.npu_driver, State.PASS, "exit code 3", "-8005")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "davinci2")
    says(stages.npu_driver, State.FAIL, "davinci2")


def test_cann(machine_of, monkeypatch):
    says(stages.cann, State.FAIL, str(machine_of / "Ascend"))
    monkeypatch.setattr(stages, "cann_version", lambda: "8.5.0")
    home = machine_of / "Ascend" / "ascend-toolkit"
    says(stages.cann, State.FAIL, "ASCEND_HOME_PATH", f"source {home}")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    says(stages.cann, State.FAIL, f"ASCEND_HOME_PATH={home}")
    home.mkdir()
    (home / "set_env.sh").touch()
    says(stages.cann, State.FAIL, "LD_LIBRARY_PATH", f"source {home / 'set_env.sh'}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{home / 'lib64'}")
    says(stages.cann, State.PASS, "8.5.0", str(home))


@pytest.fixture
def npu(tmp_path, monkeypatch):
    """A stand-in NPU and a stand-in for msprof; runs `replay`, and takes how msprof breaks."""
    folder, files = tmp_path / "bin", tmp_path / "files"
    folder.mkdir()
    stand_in_msprof.write_program(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests" / "support"))))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p stand_in_npu_plugin")
    # The stand-in has no events.
    monkeypatch.setattr(npu_module.KIND, "events", None)

    def run(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return stages.replay(Target(stand_in_npu_plugin.NAME, "npu", files))

    return run


def test_a_session_of_msprof(npu, tmp_path):
    verdict = npu(STAND_IN_KERNELS=json.dumps({"MatMulV2": ["MatMulV3"]}))
    assert verdict.state is State.PASS, verdict
    assert all(f"{kernel_type} " in verdict.detail for kernel_type in ROWS)
    assert "msprof" in verdict.detail
    assert (tmp_path / "files" / "rows" / "MatMulV3.csv").is_file()


def test_two_ranks_add_up_a_message(tmp_path, monkeypatch):
    verdict = stages.group(Target("cpu", "cpu", tmp_path))
    assert verdict.state is State.PASS, verdict
    assert "hcom_allReduce_" in verdict.detail
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    apart = stages.group(Target("cpu", "cpu", tmp_path))
    assert apart.state is State.FAIL
    assert "GLOO_SOCKET_IFNAME" in apart.remedy
