"""The real torch_npu, opened as a device as far as stand-ins for CANN let it; and each way in which it cannot be."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_npu_smi import A3, fake_npu_smi
from npu_environment import TORCH_NPU, run

from opatlas.outer.doctor.stages import STAGES, State, Target, Verdict
from opatlas.row.status import Status
from opatlas.run.devices.npu import TorchNpuMissing, import_torch_npu
from opatlas.run.process.messages import decode, encode

HERE = Path(__file__).parent


def opened(python: Path, *path: Path, words: tuple[str, ...] = (), **environment: str):
    """The output of open_npu.py with some arguments; `path` goes before all packages."""
    with tempfile.TemporaryDirectory() as folder:
        done = run(python, HERE / "open_npu.py", *words, folder=Path(folder), path=path, **environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout
    return json.loads(lines[-1])


@pytest.fixture(scope="module")
def an_npu(npu_python, tmp_path_factory):
    smi = fake_npu_smi(tmp_path_factory.mktemp("smi"), A3)
    variables = {"NPU_STUB_DEVICES": "1", "ASCEND_CUSTOM_OPP_PATH": "/opp/vendors/one"}
    return opened(npu_python, PATH=f"{smi.folder}:{os.environ['PATH']}", **variables)


def test_a_process_that_sees_all_npus_takes_its_own(an_npu, npu_python):
    one_of_two = opened(npu_python, words=("all-visible",), NPU_STUB_DEVICES="2")
    assert (one_of_two["torch_device"], an_npu["torch_device"]) == ("npu:1", "npu:0")
    assert "visible_as" not in one_of_two["description"]["facts"]
    assert an_npu["description"]["facts"]["visible_as"] == "ASCEND_RT_VISIBLE_DEVICES=3"


def test_facts_of_an_open_npu(an_npu):
    description = an_npu["description"]
    assert description["name"] == "ATLAS_800_A3_752T_128G_DIE"
    assert description["facts"] == description["facts"] | {
        "torch_npu": TORCH_NPU,
        "cann": "9.0.0",
        "driver": "25.2.1",
        "firmware": "7.7.0.6.236",
        "soc": "Ascend910B2",
        "memory_bytes": 64 << 30,
        "l2_cache_bytes": 192 << 20,
        "l2_cache_bytes_are": "assumed",
        "visible_as": "ASCEND_RT_VISIBLE_DEVICES=3",
        "chip_place": "1.1 (davinci3)",
        "npu_smi Serial Number": "033ABC10P8000011",
        "custom_opp_path": "/opp/vendors/one",
    }


def test_answers_of_an_open_npu(an_npu):
    """Its changing values stand apart from the facts."""
    state = an_npu["description"]["state"]
    assert (state["Temperature(C)"], state["NPU Real-time Power(W)"], state["HBM Capacity(MB)"]) == (36, 178.5, 65536)
    assert not any("Temperature" in name for name in an_npu["description"]["facts"])
    assert an_npu["available_bytes"] == 60 << 30
    # A sleep of 10 ms between two events is never shorter.
    assert (an_npu["instrument"], len(an_npu["durations_us"])) == ("npu-events", 3)
    assert min(an_npu["durations_us"]) >= 10_000


def test_calls_are_found_by_their_names(an_npu):
    kernels = an_npu["kernels"]
    unknown = "torch_npu.npu_swiglu_of_tomorrow"
    assert kernels["None"]["status"] == kernels[unknown]["status"] == Status.UNSUPPORTED
    assert unknown in kernels[unknown]["text"]
    assert "add" in kernels["torch.add"]["text"]
    assert "npu_swiglu" in kernels["torch_npu.npu_swiglu"]["text"]


def test_a_custom_operator_that_nothing_registers_is_skipped_with_the_exports(an_npu):
    said = an_npu["kernels"]["torch.ops._C_ascend.npu_add_rms_norm_bias"]
    assert said["status"] == Status.SKIPPED
    assert "ASCEND_CUSTOM_OPP_PATH=" in said["text"]
    assert "vllm-ascend" in an_npu["description"]["no_custom_operators"]


def test_without_a_device(npu_python):
    said = opened(npu_python, NPU_STUB_DEVICES="0")
    assert said["error"] == "OpAtlasError"
    assert "/dev/davinci0" in said["message"]


def test_the_doctor_says_so_too(npu_python, tmp_path):
    target, verdict = tmp_path / "target", tmp_path / "verdict"
    target.write_bytes(encode(Target("npu", "npu")))
    module = STAGES["operators"].examine.__module__
    words = ("-m", "opatlas.outer.doctor.command", module, "operators", target, verdict)
    done = run(npu_python, *words, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    found = decode(verdict.read_bytes(), Verdict)
    assert found.state is State.FAIL
    assert "/dev/davinci0" in found.detail


def test_a_device_that_cannot_be_set(npu_python, tmp_path):
    # CANN counts a device, and fails to set it: the driver's own words say why.
    said = opened(npu_python, NPU_STUB_DEVICES="1", NPU_STUB_FAILS="1")
    assert said["error"] == "DeviceUnhealthy"
    assert "npu 3 " in said["message"]
    assert "507899" in said["message"]


@pytest.fixture(scope="module")
def without_cann(npu_python):
    """The wheel at a place where no stand-ins are."""
    home = npu_python.parents[1]
    packages = next(home.glob("lib/python*/site-packages"))
    folder = home / "without-cann"
    if not (folder / "torch_npu").is_dir():
        shutil.copytree(packages / "torch_npu", folder / "torch_npu.new", copy_function=os.link)
        (folder / "torch_npu.new").rename(folder / "torch_npu")
    return folder


def test_without_cann(npu_python, without_cann):
    said = opened(npu_python, without_cann)
    assert said["error"] == "TorchNpuMissing"
    assert "ascend-toolkit/set_env.sh" in said["message"]


def test_cann_that_is_installed_and_not_set_up(npu_python, without_cann, tmp_path):
    (tmp_path / "set_env.sh").touch()
    said = opened(npu_python, without_cann, ASCEND_TOOLKIT_HOME=str(tmp_path))
    assert f"source {tmp_path}/set_env.sh" in said["message"]


@pytest.mark.skipif(find_spec("torch_npu") is not None, reason="torch_npu is installed in this Python")
def test_without_the_package():
    torch = metadata.version("torch").partition("+")[0]
    with pytest.raises(TorchNpuMissing, match=f"pip install torch_npu=={torch},"):
        import_torch_npu()


@pytest.mark.parametrize(
    ("raised", "version", "said"),
    [
        (
            'ImportError("/x/libtorch_npu.so: undefined symbol: _ZN3c1010TensorImpl17set_autograd_metaEv")',
            "2.1.0",
            r"2\.1\.0 .*undefined symbol.*pip install torch_npu==",
        ),
        (
            'ImportError("/x/libtorch_npu.so: undefined symbol: aclrtGetStreamAttribute")',
            None,
            "torch_npu .* .* CANN .*release notes",
        ),
        (
            'ImportError("libascend_hal.so: cannot open shared object file: No such file or directory")',
            None,
            r"libascend_hal\.so .*driver and firmware",
        ),
        (
            'ImportError("libatb.so: cannot open shared object file: No such file or directory")',
            None,
            r"libatb\.so .*NNAL.*source /usr/local/Ascend/nnal/atb/set_env",
        ),
        ('ModuleNotFoundError("No module named \'yaml\'", name="yaml")', None, "package yaml.*pip install pyyaml"),
        (
            'RuntimeError("Two accelerators cannot be used at the same time in PyTorch: npu and cuda.")',
            None,
            "torch's CPU build",
        ),
        ('OSError("Permission denied")', None, "torch_npu .*Permission denied"),
        ('ModuleNotFoundError("decorator is too old")', None, "torch_npu .*: decorator is too old"),
    ],
)
def test_errors_of_a_failed_import_get_a_remedy(monkeypatch, tmp_path, raised, version, said):
    """The words are those of the loader and of torch_npu, raised by a stand-in for it."""
    package = tmp_path / "torch_npu"
    package.mkdir()
    (package / "__init__.py").write_text(f"raise {raised}\n")
    info = tmp_path / "torch_npu-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: torch_npu\nVersion: {version or metadata.version('torch')}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with pytest.raises(TorchNpuMissing, match=said):
        import_torch_npu()
