"""The rights of a function marked with `@implements`, the cells of its row, and the layouts that libraries share."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
from opatlas.bench import formulas
from opatlas.bench.implementations import _calls as layouts, torch as impl
from opatlas.bench.implementations.torch import fp8
from replaying import job_of

from opatlas import Unsupported
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation import KernelSource, Support
from opatlas.run.implementation_catalog import read_directory
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.runner import Runner

ROW = "24,32; 24,32; 32 | BF16; BF16; BF16 -> 24,32; 24,1; 24,32 | BF16; FLOAT; BF16"

HEAD = """
import torch
from opatlas import Prepared, Unsupported, implements

def formula(x1, x2, gamma, epsilon):
    total = x1.float() + x2.float()
    rstd = (total.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (total * rstd * gamma.float()).to(x1.dtype), rstd, total.to(x1.dtype)

"""


def run(tmp_path, body, *, function="kernel", wraps=False):
    path = tmp_path / "AddRmsNorm.py"
    path.write_text(HEAD + body)
    source = KernelSource("mine 1", "", str(path), function, wraps)
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=3, cache="warm"))
    return runner.run(dataclasses.replace(job_of("AddRmsNorm", ROW), source=source))


def test_a_function_may_be_the_kernel(tmp_path):
    outcome = run(
        tmp_path,
        """
def kernel(x1, x2, gamma, epsilon):
    return formula(x1, x2, gamma, epsilon)
""",
    )
    assert outcome.status is Status.MEASURED
    execution = outcome.measurement.execution
    assert execution.implementation == "mine 1"
    assert execution.outputs_missing == ()
    assert execution.conversions == ()
    assert execution.set_up_s > 0
    assert 0 <= execution.max_error <= 1
    assert outcome.measurement.stand_in == ""


def test_a_prepared_call_may_change_tensors_lack_results_and_convert_them(tmp_path):
    outcome = run(
        tmp_path,
        """
def kernel(x1, x2, gamma, epsilon):
    wide = gamma.float()
    def call():
        y, _, total = formula(x1, x2, wide, epsilon)
        x1.copy_(y)
        x2.copy_(total)
        return x1.mT, None, x2
    return Prepared(call, changes=(x1, x2), results=lambda out: (out[0].mT, *out[1:]), converted=["gamma to float32"])
""",
    )
    assert outcome.status is Status.MEASURED, outcome.reason
    execution = outcome.measurement.execution
    assert execution.outputs_missing == (1,)
    assert execution.conversions == ("gamma to float32",)


WRONG = {
    "wrong result": "return 1.1 * y, rstd, total",
    "input changed by the call": "x1.add_(1); return y, rstd, total",
    "input changed by set-up": "x1.zero_(); return Prepared(lambda: formula(x1, x2, gamma, epsilon), changes=(x1,))",
    "result of another shape": "return y[1:], rstd, total",
    "too few results": "return y, rstd",
    "no result": "return None",
    "first result missing": "return None, rstd, total",
    "error": "raise ValueError('a shape that the library does not like')",
    "error in the call": "return Prepared(lambda: 1 / 0)",
}


@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG)
def test_a_mistake_costs_the_row(tmp_path, line):
    body = f"def kernel(x1, x2, gamma, epsilon):\n    y, rstd, total = formula(x1, x2, gamma, epsilon)\n    {line}\n"
    outcome = run(tmp_path, body)
    assert outcome.status in (Status.FAILED, Status.INVALID)
    assert outcome.measurement is None
    assert outcome.reason


def test_a_file_that_cannot_be_imported_costs_the_row_and_is_named(tmp_path):
    outcome = run(tmp_path, "import no_such_library\ndef kernel(x1, x2, gamma, epsilon): ...\n")
    assert outcome.status is Status.FAILED
    assert "no_such_library" in outcome.reason
    assert f"AddRmsNorm.py:{len(HEAD.splitlines()) + 1}" in outcome.reason


def test_a_kernel_with_other_parameters_fails_with_the_arguments_of_the_replay(tmp_path):
    outcome = run(tmp_path, "def kernel(a, b: torch.Tensor): ...\n")
    assert (outcome.status, outcome.detail) == (Status.FAILED, "")
    assert "(a, b)" in outcome.reason
    assert "x1, x2, gamma, epsilon" in outcome.reason


def test_a_refused_row_is_unsupported_with_the_reason(tmp_path):
    outcome = run(tmp_path, "def kernel(x1, *_): raise Unsupported(f'width {x1.shape[1]}: 64 and 128 only')\n")
    assert (outcome.status, outcome.reason) == (Status.UNSUPPORTED, "width 32: 64 and 128 only")


def test_a_wrap_gets_the_function_of_torch(tmp_path):
    body = "def wrap(function):\n    return lambda *arguments: function(*arguments)\n"
    outcome = run(tmp_path, body, function="wrap", wraps=True)
    assert outcome.status is Status.MEASURED
    assert outcome.measurement.execution.implementation == "mine 1"


def test_results_of_the_first_call_take_no_memory_while_samples_are_taken(tmp_path):
    outcome = run(
        tmp_path,
        """
import weakref
first = []

def kernel(x1, x2, gamma, epsilon):
    def call():
        results = formula(x1, x2, gamma, epsilon)
        if len(first) > 1:
            assert first[0]() is None
        first.append(weakref.ref(results[0]))
        return results
    return Prepared(call)
""",
    )
    assert outcome.status is Status.MEASURED


def run_folder(folder, path):
    (implementation,) = [
        each for each in read_directory(folder) if each.sources["AddRmsNorm"].path == str(folder / path)
    ]
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=3, cache="warm"))
    return runner.run(dataclasses.replace(job_of("AddRmsNorm", ROW), source=implementation.sources["AddRmsNorm"]))


KERNEL = "def kernel(x1, x2, gamma, epsilon):\n    return formula(x1, x2, gamma, epsilon)\n"


@pytest.mark.parametrize("path", ["AddRmsNorm.py", "AddRmsNorm/fast.py"])
def test_a_kernel_imports_the_helpers_of_its_own_folder(tmp_path, path):
    for name in ("one", "two"):
        kernel = tmp_path / name / path
        kernel.parent.mkdir(parents=True)
        wrong = "\nformula = None\n" if name == "one" else ""
        (tmp_path / name / "_common.py").write_text(HEAD + wrong)
        kernel.write_text(f"from _common import formula\n\n{KERNEL}")
    before = list(sys.path)
    assert run_folder(tmp_path / "one", path).status is Status.FAILED
    assert run_folder(tmp_path / "two", path).status is Status.MEASURED
    assert sys.path == before


def test_a_kernel_that_imports_another_candidate_is_refused(tmp_path):
    (tmp_path / "AddRmsNorm").mkdir()
    (tmp_path / "AddRmsNorm" / "other.py").write_text(HEAD + KERNEL)
    (tmp_path / "AddRmsNorm" / "fast.py").write_text("from other import kernel as rival\n\n" + HEAD + KERNEL)
    outcome = run_folder(tmp_path, "AddRmsNorm/fast.py")
    assert outcome.status is Status.FAILED
    assert str(tmp_path / "AddRmsNorm" / "other.py") in outcome.explanation


def test_a_helper_that_changes_after_the_folder_was_read_costs_the_row(tmp_path):
    (tmp_path / "_common.py").write_text(HEAD)
    (tmp_path / "AddRmsNorm.py").write_text("from _common import formula\n\n" + KERNEL)
    (implementation,) = read_directory(tmp_path)
    (tmp_path / "_common.py").write_text(HEAD + "# faster\n")
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=3, cache="warm"))
    outcome = runner.run(dataclasses.replace(job_of("AddRmsNorm", ROW), source=implementation.sources["AddRmsNorm"]))
    assert outcome.status is Status.FAILED


LIBRARY = Support("Anything")
#: (B, N, S, D): the heads are axis 1, and the angles depend on batch and token.
X = torch.arange(2 * 3 * 4 * 8.0).view(2, 3, 4, 8)
COS = torch.arange(2 * 4 * 8.0).view(2, 1, 4, 8)


def test_tokens_with_one_stride_are_a_view_and_others_are_refused() -> None:
    tokens = X.transpose(1, 2).contiguous()
    found = layouts.tokens_by_heads(tokens, 2, LIBRARY)
    assert found.shape == (8, 3, 8)
    assert found.data_ptr() == tokens.data_ptr()
    with pytest.raises(Unsupported):
        layouts.tokens_by_heads(X, 1, LIBRARY)


def test_the_axis_of_heads_is_the_last_one_along_which_all_have_one_angle() -> None:
    assert layouts.axis_of_heads(X, COS, LIBRARY) == 1
    assert layouts.axis_of_heads(X.transpose(1, 2), COS.transpose(1, 2), LIBRARY) == 2
    with pytest.raises(Unsupported):
        layouts.axis_of_heads(X[:, :1], COS, LIBRARY)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_token_finds_its_angles_in_the_table(dtype: torch.dtype) -> None:
    tokens = X.transpose(1, 2).contiguous()
    cos = COS.transpose(1, 2)
    rows = layouts.rows_of_tokens(tokens, cos, 2, LIBRARY, dtype)
    table = layouts.table_of_pairs(cos, -cos, torch.float64)
    assert rows.dtype == dtype
    assert torch.equal(table[rows.long(), :4], cos.expand(2, 4, 1, 8).reshape(8, 8)[:, :4].double())
    assert torch.equal(table[:, 4:], -table[:, :4])
    # One table for all sequences.
    assert layouts.rows_of_tokens(tokens, cos[:1], 2, LIBRARY).tolist() == [0, 1, 2, 3] * 2
    with pytest.raises(Unsupported):
        layouts.rows_of_tokens(tokens, tokens, 2, LIBRARY)


def test_a_scale_is_float32_whatever_it_is_stored_in() -> None:
    scale, converted = torch.tensor([0.5, 3.0]), []
    assert fp8.real_scale(scale, converted) is scale
    packed = torch.stack([scale.view(torch.int32), torch.zeros(2, dtype=torch.int32)], -1).view(torch.int64).squeeze(-1)
    assert not converted
    for stored in (packed, scale.bfloat16()):
        assert torch.equal(fp8.real_scale(stored, converted), scale)
    assert len(converted) == 2


def test_a_weight_is_stored_by_columns_and_a_conversion_is_told() -> None:
    weight, converted = torch.arange(12.0).view(3, 4), []
    found = fp8.by_columns(weight, converted, "weight to (N, K)")
    assert torch.equal(found, weight)
    assert found.stride() == (1, 3)
    assert converted == ["weight to (N, K)"]
    assert fp8.by_columns(found, converted) is found
    assert len(converted) == 1


def test_features_side_by_side_come_half_a_head_apart() -> None:
    assert layouts.pairs_in_halves(torch.tensor([[0, 4, 1, 5, 2, 6]])).tolist() == [[0, 1, 2, 4, 5, 6]]


@layouts.takes
def taking(first: int, call: layouts.RingMla) -> tuple[int, object, float]:
    return first, call.seqlen, call.qk_scale


def test_a_function_takes_the_arguments_of_a_replay_as_one_object() -> None:
    earlier = {"pre_out": None, "prev_lse": None, "mask_type": "no_mask", "calc_type": "calc_type_default"}
    assert taking(7, *range(9), **earlier, qk_scale=0.5) == (7, 6, 0.5)
    for wrong in ({}, {"qk_scale": 0.5, "pre_outs": None}, {"scale": 0.5}):
        with pytest.raises(TypeError):
            taking(7, *range(9), **earlier, **wrong)


def misspelt(function, *arguments, **keywords):
    with pytest.raises(TypeError, match="atten_masks"):
        function(*arguments, **keywords, atten_masks=None)


def test_a_misspelt_argument_is_seen_by_the_replay_and_its_formula() -> None:
    x, how = torch.ones(1, 1, 1, 8), {"head_num": 1, "input_layout": "BNSD", "scale": 1.0}
    misspelt(impl.flash_attention_score, x, x, x, **how)
    results = impl.flash_attention_score(x, x, x, **how)
    misspelt(lambda *own, **named: formulas.flash_attention_score.compare(own, named, results, 0), x, x, x, **how)
