"""The requirements of custom operators, and the message to a user where one is missing."""

from __future__ import annotations

import importlib
import os
import sys

import pytest
import torch

from opatlas.row.errors import MissingPrecondition, Unsupported
from opatlas.row.status import Status
from opatlas.run.devices import npu_operators
from opatlas.run.devices.device import DeviceSpec, device_environment
from opatlas.run.devices.npu_operators import (
    is_environment_set,
    load_npu_call,
    missing_kernel,
    operator_environment,
    registration_obstacle,
)
from opatlas.run.job import outcome_of

CALL = "torch.ops._C_ascend.npu_add_rms_norm_bias"


#: Vendors of the operator package of vllm-ascend: before version 0.20, and since.
VENDORS = ["vllm-ascend", "custom_transformer"]

#: vllm_ascend/utils.py: an import that fails is passed over, with a warning.
UTILS = """
def enable_custom_op():
    try:
        import vllm_ascend.vllm_ascend_C
        return True
    except ImportError:
        return False
"""
#: The effect of loading the library vllm_ascend_C.
EXTENSION = """
import torch
library = torch.library.Library('_C_ascend', 'FRAGMENT')
library.define('toy_of_the_tests(Tensor x) -> Tensor')
"""
#: vllm_ascend/ops/triton/linearnorm/split_qkv_rmsnorm_rope.py: a launch of the kernel asks for the number of cores.
TRITON_OPERATOR = """
import torch
from vllm_ascend.ops.triton.triton_utils import get_vectorcore_num

library = torch.library.Library('vllm', 'FRAGMENT')
library.define('qkv_rmsnorm_rope_of_the_tests(Tensor x) -> int')
library.impl('qkv_rmsnorm_rope_of_the_tests', lambda x: get_vectorcore_num(), 'CPU')
"""
#: vllm_ascend/ops/triton/triton_utils.py
TRITON_UTILS = """
cores = -1

def init_device_properties_triton():
    global cores
    cores = 48

def get_vectorcore_num():
    assert cores > 0, 'Device properties not initialized. Please call init_device_properties_triton() first.'
    return cores
"""


@pytest.fixture
def place(monkeypatch, tmp_path):
    """The folder of a stand-in for vllm-ascend, without an operator package."""
    monkeypatch.delenv("ASCEND_CUSTOM_OPP_PATH", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    package = tmp_path / "vllm_ascend"
    for folder in (package, package / "ops", package / "ops/triton", package / "ops/triton/linearnorm"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_ascend"]:
        # Not by monkeypatch, which would bring it back.
        del sys.modules[name]
    _forget()
    importlib.invalidate_caches()


def _forget():
    npu_operators._register_extension.cache_clear()
    npu_operators._register_triton.cache_clear()


@pytest.fixture(params=VENDORS)
def vllm_ascend(place, request):
    """Folders of a stand-in for vllm-ascend, and of its operators, as their installer leaves them."""
    opp = place / "_cann_ops_custom/vendors" / request.param
    (opp / "op_api/lib").mkdir(parents=True)
    (opp.parent / "config.ini").write_text(f"load_priority={request.param}\n")
    (place / "utils.py").write_text(UTILS)
    (place / "vllm_ascend_C.py").write_text(EXTENSION)
    return place, opp


def set_up(monkeypatch, opp):
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f"/elsewhere:{opp}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{opp}/op_api/lib/")


def test_without_vllm_ascend_nothing_can_register_them(monkeypatch):
    monkeypatch.setattr(npu_operators, "find_spec", lambda name: None)
    _forget()
    assert "vllm-ascend" in registration_obstacle()
    with pytest.raises(MissingPrecondition, match="ASCEND_CUSTOM_OPP_PATH"):
        load_npu_call(CALL)
    _forget()
    assert operator_environment({"PATH": "/usr/bin"}) == {}


def test_a_process_starts_with_the_operators_of_vllm_ascend(vllm_ascend):
    _, opp = vllm_ascend
    assert device_environment(DeviceSpec("npu"))["ASCEND_CUSTOM_OPP_PATH"] == str(opp)
    assert "ASCEND_CUSTOM_OPP_PATH" not in device_environment(DeviceSpec("cpu"))
    assert operator_environment({"LD_LIBRARY_PATH": "/usr/lib"}) == {
        "ASCEND_CUSTOM_OPP_PATH": str(opp),
        "LD_LIBRARY_PATH": f"{opp}/op_api/lib:/usr/lib",
    }
    assert is_environment_set(operator_environment({}))


def test_operators_that_the_user_names_come_before_those_of_vllm_ascend(vllm_ascend, tmp_path):
    _, opp = vllm_ascend
    own = tmp_path / "own"
    (own / "op_api/lib").mkdir(parents=True)
    said = operator_environment({"ASCEND_CUSTOM_OPP_PATH": f"{own}", "LD_LIBRARY_PATH": "/usr/lib"})
    assert said == {
        "ASCEND_CUSTOM_OPP_PATH": f"{own}:{opp}",
        "LD_LIBRARY_PATH": f"{own}/op_api/lib:{opp}/op_api/lib:/usr/lib",
    }
    # Again, as a process sees it that was started with them.
    assert operator_environment(said) == said


@pytest.mark.parametrize("other", ["", " or torch.add", "torch.no_such_call or "])
@pytest.mark.parametrize("utils", [UTILS, "import vllm_that_is_not_installed\n"])
def test_the_first_registered_call_of_several_is_made(vllm_ascend, other, utils):
    (vllm_ascend[0] / "utils.py").write_text(utils)
    call = "torch.ops._C_ascend.toy_of_the_tests"
    assert "toy_of_the_tests" in str(load_npu_call(f"{other}{call}" if other.endswith(" ") else f"{call}{other}"))


def test_vllm_ascend_itself_enables_its_operators(vllm_ascend):
    """It prepares more than the import: here, the libraries that the import needs."""
    package, _ = vllm_ascend
    (package / "vllm_ascend_C.py").write_text("import os\nassert os.environ['ENABLED_BY_VLLM_ASCEND']\n" + EXTENSION)
    (package / "utils.py").write_text(
        "def enable_custom_op():\n    import os\n    os.environ['ENABLED_BY_VLLM_ASCEND'] = '1'\n"
    )
    try:
        assert "toy_of_the_tests" in str(load_npu_call("torch.ops._C_ascend.toy_of_the_tests"))
    finally:
        os.environ.pop("ENABLED_BY_VLLM_ASCEND", None)


def test_a_failed_registration_is_reported(vllm_ascend, monkeypatch):
    package, opp = vllm_ascend
    (package / "vllm_ascend_C.py").write_text("raise ImportError('libcust_opapi.so: cannot open shared object file')\n")
    with pytest.raises(MissingPrecondition, match=rf"libcust_opapi\.so: .*PATH={opp}"):
        load_npu_call(CALL)
    _forget()
    set_up(monkeypatch, opp)
    with pytest.raises(MissingPrecondition, match="ASCEND_CUSTOM_OPP_PATH"):
        load_npu_call(CALL)


def test_triton_kernels_know_the_number_of_cores(place):
    (place / "ops/triton/triton_utils.py").write_text(TRITON_UTILS)
    (place / "ops/triton/linearnorm/split_qkv_rmsnorm_rope.py").write_text(TRITON_OPERATOR)
    call = load_npu_call("torch.ops.vllm.qkv_rmsnorm_rope_of_the_tests")
    assert call(torch.ones(1)) == 48


def test_a_triton_without_the_number_of_cores_is_reported(place):
    (place / "ops/triton/triton_utils.py").write_text(
        TRITON_UTILS.replace("    cores = 48", "    raise RuntimeError('no driver of Triton')")
    )
    (place / "ops/triton/linearnorm/split_qkv_rmsnorm_rope.py").write_text(TRITON_OPERATOR.replace("of_the", "of_no"))
    with pytest.raises(MissingPrecondition, match="triton-ascend"):
        load_npu_call("torch.ops.vllm.qkv_rmsnorm_rope_of_no_tests")


#: In torch_npu's own words.
NO_KERNEL = (
    "call_impl:../OpApiCommon.h:1 aclnnSparseFlashAttention or aclnnSparseFlashAttentionGetWorkspaceSize not in "
    "libopapi.so, or libopapi.sonot found."
)


def test_a_registered_operator_without_a_kernel_lacks_its_opp(vllm_ascend, monkeypatch):
    _, opp = vllm_ascend
    lacking = missing_kernel(NO_KERNEL)
    assert lacking is not None
    assert lacking.status is Status.SKIPPED
    assert "SparseFlashAttention" in str(lacking)
    set_up(monkeypatch, opp)
    lacking = missing_kernel(NO_KERNEL)
    assert lacking is not None
    assert lacking.status is Status.UNSUPPORTED


def _not_loaded(reason):
    """Raises the error of torch_npu (op_plugin/python/atb/_atb_ops.py) at the first call of an operator of ATB."""
    words = ""
    if "libatb.so" in reason:
        words = "Please check that the nnal package is installed. Please run 'source set_env.sh' in the NNAL path."
    raise OSError(None, words) from OSError(f"Could not load this library: torch_npu/lib/libop_plugin_atb.so: {reason}")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("libatb.so: cannot open shared object file: No such file or directory", "nnal/atb/set_env.sh"),
        # Later versions of torch put the loader's words into the error before this one.
        ("", "nnal/atb/set_env.sh"),
        ("undefined symbol: _ZN3atb15CreateOperationINS_5infer14GroupTopkParamEEE", "does not fit torch_npu"),
    ],
)
def test_atb_that_cannot_be_loaded_is_reported_with_the_script_to_source(reason, words):
    try:
        _not_loaded(reason)
    except OSError as error:
        outcome = outcome_of(error)
    assert outcome.status is Status.SKIPPED
    assert words in outcome.reason


def test_an_error_in_a_kernel_of_atb_is_not_taken_for_a_missing_library():
    stack = "frame #3: <unknown function> + 0x1a2b (0xffff in /torch_npu/lib/libop_plugin_atb.so)"
    assert missing_kernel(f"RuntimeError: setup failed! Error code is 22\n{stack}") is None


def test_a_missing_call_of_torch_npu_is_unsupported():
    with pytest.raises(Unsupported, match=r"torch_npu\.npu_of_tomorrow"):
        load_npu_call("torch_npu.npu_of_tomorrow")


def test_of_two_versions_the_one_that_takes_the_arguments_is_called_and_named():
    library = torch.library.Library("opatlas_versions", "FRAGMENT")
    library.define("attend(Tensor x, *, float scale=1.0) -> Tensor")
    library.define("attend_v2(Tensor x, *, float softmax_scale=1.0, Tensor? learnable_sink=None) -> Tensor")
    library.impl("attend", lambda x, *, scale=1.0: x * scale, "CPU")
    library.impl("attend_v2", lambda x, *, softmax_scale=1.0, learnable_sink=None: -x * softmax_scale, "CPU")
    first, second = "torch.ops.opatlas_versions.attend", "torch.ops.opatlas_versions.attend_v2"
    call, x = load_npu_call(f"{first} or {second}"), torch.ones(1)
    assert (call(x, scale=2.0, learnable_sink=None).item(), call.__qualname__) == (2, first)
    assert (call(x, scale=2.0, learnable_sink=x).item(), call.__qualname__) == (-2, second)
