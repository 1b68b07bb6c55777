"""What `opatlas check` finds in an op_mapping.yaml, and on which line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checked import check_named, findings, message, product, write_database

from opatlas.ask.checks.check import CheckedDatabase
from opatlas.data.op_mapping import MAPPING, write_default_mapping
from opatlas.row.location import DEFAULT_NPU_DEVICE
from opatlas.run.registry import replays_of_bench


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A version folder of an NPU with rows of MatMulV2 and of a kernel type without a replay."""
    path = tmp_path / DEFAULT_NPU_DEVICE / "vllm_ascend" / "vllm0.18.0_torch2.9.0_cann8.5"
    return write_database(path, {"MatMulV2": [product(1, 9.0)], "OwnKernelV3": [product(1, 9.0)]})


def checked(folder: Path) -> CheckedDatabase:
    return CheckedDatabase(folder, replayed_types=frozenset(replays_of_bench()))


def found(folder: Path, *operators: str, settings: str = "") -> list[tuple[int | None, str, str]]:
    """Line, name and value of each finding in a mapping that has its operators from line 3 on."""
    reference = "communication_data_ref: ../../hccl/v8.5"
    lines = [
        settings or reference,
        "operator_mappings:",
        *(f"  {operator}" for operator in operators or ("z: {zero_cost: true}",)),
        "",
    ]
    (folder / MAPPING).write_text("\n".join(lines))
    return sorted((finding.line, finding.row, finding.value) for finding in findings("op-mapping", checked(folder)))


def test_the_mapping_that_opatlas_writes_is_right(folder: Path) -> None:
    assert write_default_mapping(folder) is not None
    assert not findings("op-mapping", checked(folder))


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("a: {kernel_type: RMSNorm}", "RMSNorm"),
        ("a: {kernel_type: MatMuIV2}", "MatMuIV2"),
        ("a: {kernel_type: OwnkernelV3}", "OwnkernelV3"),
        ("a: {kernel_type: hcom_allreduce_, category: communication}", "hcom_allreduce_"),
        ("a: {kernel_type: Add, alternate_kernel_types: [addAiCore]}", "addAiCore"),
        ("a: {composite: true, sub_kernels: [RmsNorn, DynamicQuant]}", "RmsNorn"),
        ("a: {kernel_type: Add, alternate_kernel_type: [AddAiCore]}", "alternate_kernel_type: ['AddAiCore']"),
        ("a: {kernel_type: Add, alternate_kernel_types: AddAiCore}", "alternate_kernel_types: AddAiCore"),
        ("a: {kernel_type: Add, query_mode: element_wise}", "query_mode: element_wise"),
        ("a: {kernel_type: Add, category: comm}", "category: comm"),
        ("a: {kernel_type: Add, tc_input_count: two}", "tc_input_count: two"),
        ("a: {kernel_type: Add, tc_input_count: true}", "tc_input_count: True"),
        ("a: {kernel_type: Add, zero_cost: maybe}", "zero_cost: maybe"),
        ("a: {notes: nothing}", ""),
        ("a: {composite: true}", ""),
        ("a: Add", ""),
    ],
)
def test_a_wrong_line_is_found(folder: Path, operator: str, value: str) -> None:
    assert found(folder, "b: {kernel_type: MatMulV2}", operator) == [(4, "a", value)]


@pytest.mark.parametrize(
    "operator",
    [
        "a: {kernel_type: OwnKernelV3}",
        # Another version of a known kernel type, and graph mode's spelling of a collective.
        "a: {kernel_type: OwnKernelV4, alternate_kernel_types: [LayerNormV3]}",
        "a: {kernel_type: hcom_reduceScatter_, alternate_kernel_types: [HcomReduceScatter], category: communication}",
        "a: {kernel_type: GeluGrad, alternate_kernel_types: [Min, BatchMatMulNd]}",
        "a: {kernel_type: NobodysKernel, expected_input_formats: [ND]}",
        "a: {composite: true, decomposer: true}",
        "a: {zero_cost: true}",
        "a: {accepted_miss: another kernel has its time}",
        "a: {accepted_miss: true}",
    ],
)
def test_what_may_be_right_is_left_alone(folder: Path, operator: str) -> None:
    assert found(folder, operator) == []


@pytest.mark.parametrize("reference", ["../../hccl/v8.3.RC1/", "/somewhere", "[1]", "../hccl"])
def test_a_reference_that_leads_elsewhere_is_found(folder: Path, reference: str) -> None:
    ((line, name, _),) = found(folder, settings=f"communication_data_ref: {reference}")
    assert (line, name) == (1, "communication_data_ref")


def test_messages_of_another_version_of_the_same_release_are_those_of_the_place(folder: Path) -> None:
    other = folder.parents[1] / "hccl" / "v8.5.RC1"
    assert not found(folder, settings="communication_data_ref: ../../hccl/v8.5.RC1/")
    other.mkdir(parents=True)
    (folder / MAPPING).unlink()
    write_default_mapping(folder)
    assert "hccl/v8.5.RC1/" in (folder / MAPPING).read_text()
    assert not findings("op-mapping", checked(folder))
    other.with_name("v8.5").mkdir()
    assert [finding.row for finding in findings("op-mapping", checked(folder))] == ["communication_data_ref"]


def test_a_mapping_without_a_reference_is_found(folder: Path) -> None:
    assert [name for _, name, _ in found(folder, settings="version: '1'")] == ["communication_data_ref"]


def test_a_file_that_is_no_mapping_is_found(folder: Path) -> None:
    (folder / MAPPING).write_text("operator_mappings: [")
    (finding,) = findings("op-mapping", checked(folder))
    assert finding.file == str(folder / MAPPING)
    assert not findings("op-mapping-rows", checked(folder))


def test_operators_without_rows_and_rows_without_an_operator_are_told(folder: Path) -> None:
    found(
        folder,
        "a: {kernel_type: MatMulV3, alternate_kernel_types: [MatMulV2]}",
        "b: {kernel_type: MatMulV3, alternate_kernel_types: [MatMulCommon]}",
        "c: {kernel_type: hcom_allReduce_, category: communication}",
        "profiling.d: {kernel_type: Sort}",
        "e: {kernel_type: Sort, zero_cost: true}",
    )
    told = {(finding.row, finding.kernel_type) for finding in findings("op-mapping-rows", checked(folder))}
    assert told == {("b", "MatMulV3"), ("c", "hcom_allReduce_"), ("OwnKernelV3", "OwnKernelV3")}
    messages = folder.parents[1] / "hccl" / "v8.5"
    shutil.move(write_database(folder.parent / "messages", {"hcom_allReduce_": [message(1024, 9.0)]}), messages)
    assert "c" not in {finding.row for finding in findings("op-mapping-rows", checked(folder))}


def test_a_database_without_a_mapping_is_not_looked_at(folder: Path) -> None:
    assert MAPPING in check_named("op-mapping").why_skipped(checked(folder))
