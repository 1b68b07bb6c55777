"""What custom operators need, and what a user is told where it is not there."""

from __future__ import annotations

import importlib
import sys

import pytest

from bench import custom_opp
from bench.custom_opp import call_of, cannot_be_registered, is_set_up, missing_kernel, remedy
from bench.errors import MissingPrecondition, Unsupported
from database.schema import Status

CALL = "torch.ops._C_ascend.npu_add_rms_norm_bias"


@pytest.fixture
def vllm_ascend(monkeypatch, tmp_path):
    """Installs a package that stands in for vllm-ascend; gives its folder and that of its operators."""
    monkeypatch.delenv("ASCEND_CUSTOM_OPP_PATH", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    package = tmp_path / "vllm_ascend"
    opp = package / "_cann_ops_custom/vendors/vllm-ascend"
    (opp / "op_api/lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    custom_opp._import.cache_clear()
    yield package, opp
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_ascend"]:
        # Not by monkeypatch, which would bring it back.
        del sys.modules[name]
    custom_opp._import.cache_clear()
    importlib.invalidate_caches()


def set_up(monkeypatch, opp):
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f"/elsewhere:{opp}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{opp}/op_api/lib/")


def test_without_vllm_ascend_nothing_can_register_them(monkeypatch):
    monkeypatch.setattr(custom_opp, "find_spec", lambda name: None)
    assert "vllm-ascend, which brings them, is not installed: pip install vllm-ascend; export" in cannot_be_registered()
    with pytest.raises(MissingPrecondition, match=r"ModuleNotFoundError.*export ASCEND_CUSTOM_OPP_PATH=<vllm_ascend>/"):
        call_of(CALL)


def test_the_exports_have_the_real_path(vllm_ascend):
    _, opp = vllm_ascend
    assert cannot_be_registered() == ""
    assert remedy() == (
        f"export ASCEND_CUSTOM_OPP_PATH={opp}:$ASCEND_CUSTOM_OPP_PATH; "
        f"export LD_LIBRARY_PATH={opp}/op_api/lib:$LD_LIBRARY_PATH"
    )


def test_one_variable_alone_is_not_enough(vllm_ascend, monkeypatch):
    _, opp = vllm_ascend
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(opp))
    assert not is_set_up()
    set_up(monkeypatch, opp)
    assert is_set_up()
    set_up(monkeypatch, opp / "removed")
    assert not is_set_up()


def test_an_operator_is_run_once_it_is_registered_whatever_the_variables_say(vllm_ascend):
    package, _ = vllm_ascend
    (package / "vllm_ascend_C.py").write_text(
        "import torch\n"
        "library = torch.library.Library('_C_ascend', 'FRAGMENT')\n"
        "library.define('toy_of_the_tests(Tensor x) -> Tensor')\n"
    )
    assert "toy_of_the_tests" in str(call_of("torch.ops._C_ascend.toy_of_the_tests"))


def test_what_fails_in_registering_is_told(vllm_ascend, monkeypatch):
    package, opp = vllm_ascend
    (package / "vllm_ascend_C.py").write_text("raise ImportError('libcust_opapi.so: cannot open shared object file')\n")
    with pytest.raises(MissingPrecondition, match=rf"libcust_opapi\.so: cannot open.*export \w+PATH={opp}"):
        call_of(CALL)
    set_up(monkeypatch, opp)
    with pytest.raises(MissingPrecondition, match="are set; is this vllm-ascend built for this torch and CANN"):
        call_of(CALL)


def test_a_vllm_ascend_that_was_built_without_them(vllm_ascend):
    _, opp = vllm_ascend
    opp.rename(opp.with_name("another"))
    assert "was built without custom operators" in remedy()


def test_a_call_of_torch_npu_that_is_not_there_is_another_thing():
    with pytest.raises(Unsupported, match=r"torch_npu\.npu_of_tomorrow is not there"):
        call_of("torch_npu.npu_of_tomorrow")


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
    assert str(lacking).startswith("no kernel SparseFlashAttention in CANN's libopapi.so nor in a custom OPP: export ")
    set_up(monkeypatch, opp)
    lacking = missing_kernel(NO_KERNEL)
    assert lacking is not None
    assert lacking.status is Status.UNSUPPORTED


def test_other_words_are_no_missing_kernel():
    assert missing_kernel("RuntimeError: aclnnAdd failed, error code is 561103") is None
