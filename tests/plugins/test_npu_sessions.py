"""Sessions on NPUs that are not there: npu-smi is a stand-in, and where rows run, the CPU plays the NPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec

import pytest
from fake_npu_smi import A3, fake_npu_smi
from sessions import ROOT, Sessions, row

pytestmark = pytest.mark.usefixtures("forks")
CONFTEST = """
from opatlas.run.devices.device import DeviceSpec

pytest_plugins = ("opatlas.plugins",)


def pytest_opatlas_devices():
    return [DeviceSpec("stand-in", opener="stand_in:NpuStandIn")]
"""

DEVICE = """
from dataclasses import replace

from opatlas.run.devices import npu_operators
from opatlas.run.devices.cpu import CpuDevice


class NpuStandIn(CpuDevice):
    def describe(self):
        return replace(super().describe(), kind="npu", no_custom_operators=npu_operators.registration_obstacle())

    def kernel(self, impl, npu):
        return npu_operators.load_npu_call(npu)
"""

REPLAYS = """
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays


@replays("Custom", npu="torch.ops._C_ascend.npu_toy")
def test_custom(row, replay, custom_opp):
    raise AssertionError("its row is not to be sent to the device")


@replays("Unaware", npu="torch.ops._C_ascend.npu_toy")
def test_unaware(row, replay):
    replay(impl.add, *row.inputs(), expected=formulas.add)


@replays("Plain", npu="torch.add")
def test_plain(row, replay, npu):
    assert npu is None
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""


@pytest.mark.skipif(find_spec("vllm_ascend") is not None, reason="vllm-ascend is installed in this Python")
def test_rows_of_custom_operators_are_skipped_with_the_exports_and_others_go_on(sessions: Sessions) -> None:
    (sessions.folder / "test_toys.py").write_text(REPLAYS)
    (sessions.folder / "conftest.py").write_text(CONFTEST)
    (sessions.folder / "stand_in.py").write_text(DEVICE)
    for name in ("Custom", "Unaware", "Plain"):
        sessions.write(name, [row(1), row(2)])
    done = sessions.run("-rs", ASCEND_CUSTOM_OPP_PATH="", LD_LIBRARY_PATH="")
    assert (done.code, done.outcomes()) == (0, {"passed": 2, "skipped": 4})
    assert sessions.statuses("Plain") == {1: "measured", 2: "measured"}
    for name in ("Custom", "Unaware"):
        for cells in sessions.read(name):
            assert cells["Status"] == "skipped"
            for variable in ("ASCEND_CUSTOM_OPP_PATH", "LD_LIBRARY_PATH"):
                assert f"export {variable}=<package>/vendors/" in cells["Status Reason"]


@pytest.mark.skipif(find_spec("torch_npu") is not None, reason="torch_npu is installed in this Python")
def test_an_npu_without_torch_npu_ends_the_session_and_says_what_to_install(sessions: Sessions, tmp_path) -> None:
    smi = fake_npu_smi(tmp_path / "smi", A3)
    sessions.write("Toy", [row(1)])
    path = f"{smi.folder}:{os.environ['PATH']}"
    done = sessions.run("--device=npu", "--instrument=npu-events", PATH=path, ASCEND_RT_VISIBLE_DEVICES="2")
    assert done.code != 0
    assert "pip install torch_npu==" in done
    assert sessions.statuses("Toy") == {1: ""}


@pytest.fixture
def collected(tmp_path):
    """What `pytest bench/` says on a machine with an A3 and CANN 8.5, and no other software than here."""
    smi = fake_npu_smi(tmp_path / "smi", A3)
    (tmp_path / "cann").mkdir()
    (tmp_path / "cann" / "version.info").write_text("Version=8.5.0\n")
    environment = {"PATH": f"{smi.folder}:{os.environ['PATH']}", "ASCEND_HOME_PATH": str(tmp_path / "cann")}

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "bench/test_norm.py", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
        return done.stdout + done.stderr

    return run


def test_what_an_npu_measures_is_filed_under_it_and_its_software(collected) -> None:
    torch = metadata.version("torch").partition("+")[0]
    said = collected("--co", "--versions=vllm=0.18.0")
    assert f"/ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch{torch}_cann8.5\n" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device=ATLAS_800_A2_376T_64G"], ("npu-smi", "Ascend910")),
        (["--versions=vllm=0.18.0,cann=10.0"], ("--versions", "cann=10.0", "8.5.0")),
        (["--instrument=wall-clock"], ("--instrument wall-clock", "msprof")),
    ],
)
def test_what_does_not_fit_the_machine_is_refused(collected, options, said) -> None:
    output = collected("--versions=vllm=0.18.0", *options)
    assert all(word in output for word in said)
    assert "Traceback" not in output
