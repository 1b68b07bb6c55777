"""Rows of reports are completed; a row that contradicts itself stays unchanged."""

from __future__ import annotations

import pytest
from replaying import replay_of, runner

from opatlas.row.status import Status
from opatlas.run.job import Job
from tests.bench.a3_reports import completed, kernel_type_of


def replayed(kernel_type, shapes, dtypes=None):
    module, _, name = replay_of(kernel_type).rpartition(".")
    return runner().run(Job(module, "", name, kernel_type, completed(kernel_type, shapes, dtypes, {}), timeout_s=60))


@pytest.mark.parametrize(
    ("name", "kernel_type"),
    [
        ("aclnnQuantMatmulWeightNz_QuantBatchMatmulV3_QuantBatchMatmulV3", "QuantBatchMatmulV3"),
        ("aclnnMatmulWeightNz_MatMulCommon_MatMulV2", "MatMulV2"),
        ("MatMulV2_NDNZ_ND_FP16_FP16_false_true_all_229955", "MatMulV2"),
        ("FusedInferAttentionScore_3b093497fc536d61a77a7a3293a524da_5000000000010200203", "FusedInferAttentionScore"),
        ("SwiGlu_3_high_performance_27", "SwiGlu"),
        ("trans_TransData_6", "TransData"),
        ("split_qkv_rmsnorm_rope_kernel", "split_qkv_rmsnorm_rope_kernel"),
        ("AddRmsNormBias", "AddRmsNormBias"),
    ],
)
def test_kernel_type_of_a_launch(name, kernel_type):
    assert kernel_type_of(name) == kernel_type


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [("8,64;3,4,16,32;96;8", "INT8;INT8;DT_BF16;FLOAT"), ("8,64;3,4,16,32;96;96", "INT8;INT8;FLOAT;INT32")],
)
def test_a_scale_per_token_is_distinguished_from_a_bias(shapes, dtypes):
    cells = completed("QuantBatchMatmulV3", shapes, None, {})
    assert cells["Input Data Types"] == dtypes
    assert cells["Input Formats"] == "ND;FRACTAL_NZ;ND;ND"
    assert (cells["Output Shapes"], cells["Output Data Types"]) == ("8,96", "DT_BF16")


def test_empty_slots_are_scalars_where_the_kernel_takes_some_and_absent_elsewhere():
    assert completed("MaskedFill", "4,8;4,1;", None, {})["Input Data Types"] == "FLOAT;BOOL;FLOAT"
    assert completed("AddRmsNormBias", "4,8;4,8;8;", None, {})["Input Data Types"].endswith(";DT_UNDEFINED")


def test_prefill_returns_its_writes_to_the_caches():
    shapes = "5,1,1,24;16;5,1,1,8;5,1,1,8;5;4,8,1,8;4,8,1,16;;;;;"
    outputs = {
        scenario: completed("KvRmsNormRopeCache", shapes, None, {"scenario": scenario})["Output Shapes"]
        for scenario in ("DSv3 Prefill", "DSv3 Decode")
    }
    assert outputs == {"DSv3 Prefill": "4,8,1,8;4,8,1,16;5,1,1,8;5,1,1,16", "DSv3 Decode": "4,8,1,8;4,8,1,16"}


@pytest.mark.parametrize(
    ("kernel_type", "shapes", "dtypes", "status"),
    [
        ("Add", "4,8;3,8", "FLOAT;FLOAT", Status.INVALID),
        ("MatMulV2", "4,8;9,7", None, Status.INVALID),
        ("QuantBatchMatmulV3", "8,64;3,5,16,32;96;8", None, Status.INVALID),
        ("AddRmsNormBias", "4,8;5,8;8;", None, Status.INVALID),
        ("RmsNorm", "4,8;9", None, Status.INVALID),
        ("_triton_rope", "4,2,8;4,1,8;9,8", "DT_BF16;65534;DT_BF16", Status.INVALID),
        ("Cast", "5", "BOOL", Status.MEASURED),
        ("Slice", "6,5", "DT_BF16", Status.MEASURED),
        ("AsStrided", "6144;3;3;1", "DT_BF16;INT64;INT64;INT64", Status.MEASURED),
        ("BroadcastTo", "1;1", "INT32;INT64", Status.MEASURED),
        ("Fill", "2;", "INT64;BOOL", Status.MEASURED),
        ("TransData", "2,3,4,16,16", None, Status.MEASURED),
        ("Sort", "3,40", None, Status.MEASURED),
    ],
)
def test_completed_rows_replay_and_contradictory_ones_are_refused(kernel_type, shapes, dtypes, status):
    assert replayed(kernel_type, shapes, dtypes).status is status
