"""Every implementation that is installed, on a GPU: each kernel type is measured and right, or says why it is not run.

Rows run in device processes, so that a row that ends its process ends nothing else. Measurements are written after
each kernel type (`--write-implementation-proofs`), so that a session that is ended keeps its results. Compiling
takes most of the time: `-n 14` compiles on as many cores, and its workers share the GPU, since no duration is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from library_jobs import library_job
from replaying import cells_of
from sample_rows import ROWS
from written_facts import keep_implementation_proof

from opatlas.data.database import Database
from opatlas.row.location import ROOT, list_databases, parse_path
from opatlas.row.slots import base_type
from opatlas.row.status import Status
from opatlas.run.implementation_catalog import shipped
from opatlas.run.registry import IMPLEMENTATION_PROOFS, read_facts, replay_spec, replays_of_bench

#: One kernel type of each way in which torch's own functions compute: compiling one takes seconds for each row.
WRAPPED = (
    *("Abs", "Add", "AddRmsNorm", "Cast", "DynamicQuant", "LayerNormV4", "MatMulV2", "ReduceSum", "RmsNorm"),
    *("RotaryMul", "SoftmaxV2", "SwiGlu", "Transpose", "QuantBatchMatmulV3", "GatherV2", "AddRmsNormDynamicQuant"),
    "GroupedMatmul",
)
#: So many rows of a kernel type are measured: libraries refuse many sample rows.
MEASURED = 2
#: So many rows of a database follow if too few are measured: libraries have only usual sizes.
FROM_DATABASE = 4


def kernel_types_of(name: str) -> list[str]:
    implementation, replays = shipped()[name], replays_of_bench()
    marked = {*implementation.sources, *(WRAPPED if implementation.wrap is not None else ())}
    # AddAiCore is Add by another name: the same function with the same arguments.
    return [
        each
        for each in sorted(marked)
        if each in replays and (base_type(each) == each or base_type(each) not in marked)
    ]


CASES = [(name, kernel_type) for name in shipped() for kernel_type in kernel_types_of(name)]


def rows_of(kernel_type: str) -> Iterator[dict[str, str]]:
    """The sample rows, those without elements left out, which launch nothing."""
    for row in ROWS[kernel_type]:
        cells = cells_of(row)
        if not any("0" in shape.split(",") for cell in cells.values() for shape in cell.split(";")):
            yield cells


@cache
def databases() -> list[Path]:
    return [path for path in list_databases(ROOT) if "NVIDIA" in str(path) and parse_path(path) is not None]


def rows_of_databases(kernel_type: str) -> Iterator[dict[str, str]]:
    """The rows of a database of a GPU whose shapes have the fewest characters, which are about the smallest."""
    rows = [dict(row) for path in databases() for row in Database(path).read_or_empty(kernel_type).identities()]
    yield from sorted(rows, key=lambda cells: sum(map(len, cells.values())))[:FROM_DATABASE]


@pytest.mark.parametrize(("name", "kernel_type"), CASES)
def test_kernel_type_is_measured_or_unsupported(name, kernel_type, processes, request):
    implementation = shipped()[name]
    if implementation.missing:
        pytest.skip(f"{name} is {implementation.missing}")
    if "cuda" not in implementation.devices:
        pytest.skip(f"{name} does not run on a GPU")
    spec = replay_spec(replays_of_bench()[kernel_type])
    if spec.group is not None:
        pytest.skip(f"{kernel_type} is run by several devices together")
    process = processes(name)
    measured, wrong, unsupported = 0, [], []
    rows = [*rows_of(kernel_type), *rows_of_databases(kernel_type)]
    for cells in rows:
        if measured >= MEASURED:
            break
        outcome = process.run(library_job(name, kernel_type, cells))
        if outcome.status is Status.MEASURED:
            measured += 1
            assert outcome.measurement.device_kernels >= 1
        elif outcome.status is Status.UNSUPPORTED:
            assert outcome.reason
            unsupported.append(outcome.reason)
        else:
            wrong.append(f"{cells}: {outcome.status}: {outcome.explanation}\n{outcome.detail}")
    if request.config.getoption("--write-implementation-proofs"):
        proof = f"checked on {process.describe().name}, {implementation.label}" if measured and not wrong else ""
        keep_implementation_proof(name, kernel_type, proof)
    assert not wrong, "\n".join(wrong)
    if not measured:
        assert unsupported, "no row to run"
        assert kernel_type not in read_facts(IMPLEMENTATION_PROOFS).get(name, {})
        pytest.skip(f"every row is unsupported: {unsupported[0]}")
