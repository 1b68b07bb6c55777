"""What the doctor says of the operators that replays call: custom ones, Triton's, ATB's.

vllm-ascend is a stand-in of a few modules that register operators as the real ones do; the device is a stand-in, too.
The library of ATB is a real one, which the loader finds or does not find.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opatlas.outer.doctor.stages import State, Target, Verdict
from opatlas.run.devices.npu_operators import OR
from opatlas.run.registry import replay_spec, replays_of_bench

REPOSITORY = Path(__file__).parents[2]
_PROBE = """
import json
from dataclasses import asdict
from opatlas.outer.doctor import stages
from opatlas.run.devices.device import DeviceSpec

stages.available_devices = lambda name: [DeviceSpec("npu", opener="stand_in_npu:StandInNpu")]
stages.import_torch_npu = lambda: None
print("verdict", json.dumps(asdict(stages.operators(stages.Target("npu", "npu")))))
"""
_REGISTER = """
import torch
library = torch.library.Library({namespace!r}, "FRAGMENT")
for name in {names!r}:
    library.define(f"{{name}}(Tensor x) -> Tensor")
"""
_SHARED = ("gcc", "-shared", "-fPIC", "-x", "c", "-")


def build_library(path: Path, text: str = "int call(void) { return 1; }", *more: str) -> None:
    """Builds a library that the loader takes."""
    if shutil.which("gcc") is None:
        pytest.skip("the libraries are built with gcc")
    subprocess.run([*_SHARED, "-o", str(path), *more], input=text, text=True, check=True)


def operators_of(namespace: str) -> list[str]:
    """The operators that replays call there."""
    specs = [spec for function in replays_of_bench().values() if (spec := replay_spec(function)) is not None]
    prefix = f"torch.ops.{namespace}."
    names = {spec.npu for spec in specs if spec.npu and OR not in spec.npu}
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


@pytest.fixture
def verdict_of(tmp_path):
    """Runs the stage in a process of its own, which finds what the test has put into a folder."""

    def run(**environment: str) -> Verdict:
        paths = [tmp_path, REPOSITORY, REPOSITORY / "tests" / "support"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND")}
        variables = kept | {"PYTHONPATH": os.pathsep.join(map(str, paths))} | environment
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        (found,) = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("verdict ")]
        return Verdict(State(found["state"]), found["detail"], found["remedy"], found["facts"])

    return run


@pytest.fixture
def vllm_ascend(tmp_path):
    """A stand-in for vllm-ascend; gives its folder, and the variables of a device process."""
    package = tmp_path / "vllm_ascend"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "utils.py").write_text("def enable_custom_op():\n    import vllm_ascend.vllm_ascend_C\n")
    custom = _REGISTER.format(namespace="_C_ascend", names=operators_of("_C_ascend"))
    (package / "vllm_ascend_C.py").write_text(custom)
    opp = package / "_cann_ops_custom" / "vendors" / "custom_transformer"
    (opp / "op_api" / "lib").mkdir(parents=True)
    build_library(opp / "op_api" / "lib" / "libcust_opapi.so")
    return package, {"ASCEND_CUSTOM_OPP_PATH": str(opp), "LD_LIBRARY_PATH": str(opp / "op_api" / "lib")}


def test_all_are_there(verdict_of, vllm_ascend) -> None:
    found = verdict_of(**vllm_ascend[1])
    assert set(found.facts["calls"]) >= {f"torch.ops._C_ascend.{name}" for name in operators_of("_C_ascend")}


def test_operators_that_cannot_be_registered(verdict_of, vllm_ascend) -> None:
    package, environment = vllm_ascend
    (package / "vllm_ascend_C.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    found = verdict_of(**environment)
    assert found.state is State.FAIL
    assert "AddRmsNormBias" in found.detail
    assert "undefined symbol" in found.detail


def test_kernels_that_cannot_be_loaded(verdict_of, vllm_ascend, tmp_path) -> None:
    """torch_npu logs it, and says of each call that it has no kernel."""
    _, environment = vllm_ascend
    library = Path(environment["LD_LIBRARY_PATH"], "libcust_opapi.so")
    build_library(tmp_path / "libnnopbase.so")
    build_library(library, "int call(void); int own(void) { return call(); }", f"-L{tmp_path}", "-lnnopbase")
    other_cann = verdict_of(**environment)
    assert other_cann.state is State.FAIL
    assert "libnnopbase.so" in other_cann.detail


def test_a_stage_may_have_the_environment_of_a_device_process(tmp_path, monkeypatch) -> None:
    """The loader reads LD_LIBRARY_PATH when a process starts, and not later."""
    from opatlas.outer.doctor.command import run_stage
    from opatlas.outer.doctor.stages import STAGES, Stage

    (tmp_path / "own_stages.py").write_text(
        "import os\nfrom opatlas.outer.doctor.stages import passed\n"
        "def said(target):\n    return passed(os.environ.get('LD_LIBRARY_PATH', ''))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    import own_stages

    monkeypatch.setitem(STAGES, "said", Stage(own_stages.said))
    assert run_stage("said", Target(), {"LD_LIBRARY_PATH": "/opp/lib"}).detail == "/opp/lib"
    del sys.modules["own_stages"]
