"""msmodeling gets durations from a database through its interface for data sources.

The interface is msmodeling's own where its package (tensor_cast) can be imported. Elsewhere a stand-in has the names,
fields and signatures of tensor_cast/performance_model/profiling_database/data_source.py of msmodeling 84fec85.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch

import opatlas
from opatlas.ask.query.msmodeling import OpAtlasDataSource
from opatlas.theory.model_calls import call_cells
from tests.ask.tables import RUN, product_rows, write_table

NAME = "tensor_cast.performance_model.profiling_database.data_source"
SIZES = [(m, n, 1024) for m in (1, 2, 4, 8, 16, 32, 64, 128) for n in (512, 1024, 2048)]
aten = torch.ops.aten


def stand_in() -> ModuleType:
    class QuerySource(Enum):
        MEASURED = auto()
        INTERPOLATED = auto()
        EXTRAPOLATED = auto()
        PARTIAL = auto()

    @dataclass
    class QueryResult:
        latency_us: float
        confidence: float
        source: QuerySource
        details: dict[str, Any] = field(default_factory=dict)
        shape_match_info: Any = None
        sub_kernel_shapes: Any = None

    @dataclass
    class ShapeMatchInfo:
        simulation_shapes: list[list[int]]
        kernel_shapes: list[list[int]]
        shape_match_rule: str

    class DataSourcePerformanceModel(ABC):
        @abstractmethod
        def lookup(self, op_invoke_info: Any) -> Any: ...

        def store(self, op_invoke_info: Any, result: Any) -> None:
            raise NotImplementedError

    module = ModuleType(NAME)
    for each in (QuerySource, QueryResult, ShapeMatchInfo, DataSourcePerformanceModel):
        setattr(module, each.__name__, each)
    return module


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> Any:
    if find_spec("tensor_cast") is not None:
        from importlib import import_module

        return import_module(NAME)
    module = stand_in()
    parts = NAME.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


@dataclass
class Operator:
    """The fields of msmodeling's OpInvokeInfo that a data source reads."""

    func: Any
    args: tuple[Any, ...]
    out: Any = None
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Base:
    """A data source behind: 5 us for everything."""

    interface: Any
    last_miss_reason: str = ""

    def lookup(self, op_invoke_info: Any) -> Any:
        return self.interface.QueryResult(5.0, 0.7, self.interface.QuerySource.INTERPOLATED)


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def product(m: int, n: int, k: int = 1024) -> Operator:
    """A product as a simulation has it: the weight is (k, n), and the activation may have a batch of 1."""
    return Operator(aten.mm.default, (tensor(m, k), tensor(k, n)), tensor(m, n))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_table(tmp_path / "db", "MatMulV2", product_rows(SIZES, [5 + m * n / 1e5 for m, n, _ in SIZES]))
    return tmp_path / "db"


def test_it_is_a_data_source_of_msmodeling(folder: Path, interface: Any) -> None:
    source = OpAtlasDataSource(folder)
    assert isinstance(source, interface.DataSourcePerformanceModel)
    with pytest.raises(NotImplementedError):
        source.store(product(16, 512), None)


def test_a_stored_row_answers_with_itself_and_where_it_comes_from(folder: Path, interface: Any) -> None:
    found = OpAtlasDataSource(folder).lookup(product(16, 512))
    assert isinstance(found, interface.QueryResult)
    assert found.latency_us == pytest.approx(5 + 16 * 512 / 1e5, abs=1e-4)
    assert found.source is interface.QuerySource.MEASURED
    assert found.details["kernel_type"] == "MatMulV2"
    assert found.details["run_ids"] == [RUN]
    assert found.shape_match_info.simulation_shapes == [[16, 1024], [1024, 512]]


def test_a_product_between_the_rows_is_predicted_with_its_interval(folder: Path, interface: Any) -> None:
    source = OpAtlasDataSource(folder)
    found = source.lookup(product(24, 1024))
    answer = opatlas.open(folder).matmul(m=24, n=1024, k=1024)
    assert (found.latency_us, found.details["low_us"], found.details["high_us"]) == (
        answer.duration_us,
        *answer.interval_us,
    )
    assert found.source is interface.QuerySource.INTERPOLATED
    assert 0 < found.confidence < 1


def test_layouts_of_stored_weights_are_found(tmp_path: Path, interface: Any) -> None:
    cells = call_cells("MatMulV2", "matmul", {"m": 64, "n": 512, "k": 1024}, dtype="BF16", nz=True)
    write_table(tmp_path, "MatMulV2", pd.DataFrame([{**cells, "Average Duration(us)": "8"}]))
    sizes = {"m": 64, "n": 512, "k": 1024}
    cells = call_cells("QuantBatchMatmulV3", "quant_matmul_per_token", sizes, dtype="INT8", nz=True)
    write_table(tmp_path, "QuantBatchMatmulV3", pd.DataFrame([{**cells, "Average Duration(us)": "6"}]))
    source = OpAtlasDataSource(tmp_path)
    assert source.lookup(product(64, 512)).latency_us == 8
    quantized = [tensor(64, 1024, dtype=torch.int8), tensor(1024, 512, dtype=torch.int8), tensor(512)]
    found = source.lookup(Operator("tensor_cast.static_quant_linear.default", tuple(quantized), tensor(64, 512)))
    assert (found.latency_us, found.source) == (6, interface.QuerySource.MEASURED)


def test_operators_have_the_tensors_of_their_rows(tmp_path: Path, interface: Any) -> None:
    rows = product_rows(SIZES[:1], [4.0])
    gated = {"Input Shapes": "64,512", "Output Shapes": "64,256", "Input Data Types": "DT_BF16", "Input Formats": "ND"}
    added = {"Input Shapes": "64,512;64,512", "Output Shapes": "64,512"}
    write_table(tmp_path, "SwiGlu", rows.assign(**gated))
    write_table(tmp_path, "Add", rows.assign(**added))
    source = OpAtlasDataSource(tmp_path)
    halves = (tensor(1, 64, 256), tensor(1, 64, 256))
    sequences = (tensor(4, 16, 512), tensor(4, 16, 512))
    for operator in (
        Operator(aten.add.Tensor, sequences, sequences[0]),
        Operator("tensor_cast.swiglu.default", halves, tensor(1, 64, 256)),
        Operator(aten.add.Tensor, (tensor(64, 512), tensor(64, 512)), tensor(64, 512)),
    ):
        found = source.lookup(operator)
        assert (found.latency_us, found.source) == (4, interface.QuerySource.MEASURED), operator


@pytest.mark.parametrize(("queries", "keys", "pattern"), [(1, 4000, "paged_attention"), (32, 32, "packed_attention")])
def test_attention_is_asked_with_its_lengths(
    tmp_path: Path, interface: Any, queries: int, keys: int, pattern: str
) -> None:
    sizes = {"s": 4, "t": queries, "k": keys, "q": 64, "kv": 8, "d": 128}
    cells = call_cells("FusedInferAttentionScore", pattern, sizes, dtype="BF16")
    write_table(tmp_path, "FusedInferAttentionScore", pd.DataFrame([{**cells, "Average Duration(us)": "99"}]))
    cache, tokens = tensor(128, 128, 8, 128), 4 * queries
    lengths = torch.tensor([keys + 2, keys - 2, keys, keys])
    arguments = (tensor(tokens, 64 * 128), cache, cache, None, tensor(4, 32), tensor(5), lengths, None)
    name = "tensor_cast.attention.default"
    source = OpAtlasDataSource(tmp_path)
    found = source.lookup(Operator(name, arguments, arguments[0]))
    assert (found.latency_us, found.source) == (99, interface.QuerySource.MEASURED)
    unknown = (*arguments[:6], tensor(4, dtype=torch.int64), None)
    assert source.lookup(Operator(name, unknown, arguments[0])) is None
    assert source.last_miss_reason


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(Operator("tensor_cast.all_reduce.default", (tensor(64, 512), 0, [0, 1])), id="a message"),
        pytest.param(Operator("tensor_cast.mlapo.default", (tensor(64, 512),)), id="a composite"),
        pytest.param(Operator("tensor_cast.unheard_of.default", (tensor(64, 512),)), id="not mapped"),
        pytest.param(Operator(aten.sort.default, (tensor(64, 512),)), id="no rows"),
        pytest.param(Operator(aten.mm.default, (tensor(64, 512), tensor(64, 512))), id="no product"),
    ],
)
def test_unanswered_questions_go_to_the_data_source_behind(folder: Path, interface: Any, operator: Operator) -> None:
    alone = OpAtlasDataSource(folder)
    assert alone.lookup(operator) is None
    assert alone.last_miss_reason
    assert OpAtlasDataSource(folder, Base(interface)).lookup(operator).latency_us == 5


def test_a_view_takes_no_time(folder: Path, interface: Any) -> None:
    found = OpAtlasDataSource(folder, Base(interface)).lookup(Operator(aten.view.default, (tensor(4, 4), [16])))
    assert (found.latency_us, found.source) == (0, interface.QuerySource.MEASURED)


def test_a_guess_from_few_rows_is_left_to_the_analytic_model(tmp_path: Path, interface: Any) -> None:
    write_table(tmp_path, "MatMulV2", product_rows(SIZES[:2], [5.0, 6.0]))
    source = OpAtlasDataSource(tmp_path)
    assert source.lookup(product(24, 1024)) is None
    assert source.last_miss_reason


def test_the_mapping_of_the_database_counts(folder: Path, interface: Any) -> None:
    (folder / "op_mapping.yaml").write_text("operator_mappings:\n  my.product.default: {kernel_type: MatMulV2}\n")
    source = OpAtlasDataSource(folder)
    assert source.lookup(Operator("my.product.default", product(16, 512).args)) is not None
    assert source.lookup(product(16, 512)) is None


@pytest.mark.skipif(find_spec("tensor_cast") is not None, reason="msmodeling is installed")
def test_without_msmodeling_there_is_an_error(folder: Path) -> None:
    with pytest.raises(opatlas.OpAtlasError):
        OpAtlasDataSource(folder)
