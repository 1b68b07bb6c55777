"""A data source for msmodeling (tensor_cast), whose durations come from `opatlas.open` and not from the nearest rows.

msmodeling asks a data source for the duration of each operator of a simulation: `lookup(op_invoke_info)` returns its
QueryResult, or None, after which its analytic model answers. Operators are those of the database's op_mapping.yaml, or
else of the default one of OpAtlas.

Answered here are products, attention with its lengths, operators whose tensors are those of a row, and those that
launch no kernel. All others go to the data source that is given as `base`, such as msmodeling's own: composites,
collectives, and calls that no row answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.question import How, NoAnswer, QueryResult
from opatlas.data.op_mapping import MappedOperator, default_mapping, read_mapping
from opatlas.errors import OpAtlasError
from opatlas.row.slots import MATMUL_FAMILY, known_dtype
from opatlas.theory.model_calls import call_cells

_INTERFACE = "tensor_cast.performance_model.profiling_database.data_source"
#: Modes of op_mapping.yaml that are answered here.
_ATTENTION, _ELEMENTWISE = "attention_special", "elementwise"
#: Patterns of the catalog for products, by kernel type.
_PRODUCTS = {**dict.fromkeys(MATMUL_FAMILY, "matmul"), "QuantBatchMatmulV3": "quant_matmul_per_token"}
#: torch's names of dtypes that are not those of the CSVs.
_DTYPES = {"BFLOAT16": "BF16", "FLOAT32": "FLOAT"}
#: Positions in the arguments of tensor_cast.attention.
_QUERY, _KEY, _LENGTHS = 0, 1, 6


@dataclass(frozen=True)
class _Tensor:
    """Shape and dtype of a tensor of the simulation, without a leading axis of length 1."""

    shape: tuple[int, ...]
    dtype: str


class OpAtlasDataSource:
    """A DataSourcePerformanceModel of msmodeling.

    Attributes:
        last_miss_reason: why the last operator was not answered here; "" if it was.
    """

    def __init__(
        self,
        place: Path | str,
        base: Any = None,
        *,
        same_machine: bool = False,
        compositions: bool = False,
    ) -> None:
        """
        Args:
            place, same_machine, compositions: as for `opatlas.open`.
            base: a data source of msmodeling for the calls that are not answered here; None: no source.

        Raises:
            OpAtlasError: msmodeling is not installed, the database does not exist, or its op_mapping.yaml is malformed.
        """
        from opatlas.ask.query.database import open as open_database

        try:
            self._interface = import_module(_INTERFACE)
        except ImportError as error:
            raise OpAtlasError(f"{_INTERFACE} cannot be imported ({error}): run this where msmodeling runs") from error
        # Its abstract class is not known before.
        self._interface.DataSourcePerformanceModel.register(type(self))
        self.database = open_database(place, same_machine=same_machine, compositions=compositions)
        self.base = base
        mapping = read_mapping(self.database.path) or default_mapping()
        self._operators = {operator.name: operator for operator in mapping.operators}
        self.last_miss_reason = ""

    def lookup(self, op_invoke_info: Any) -> Any:
        """Returns msmodeling's QueryResult for an operator; None if neither the database nor the base answers."""
        self.last_miss_reason = ""
        name = str(op_invoke_info.func).removeprefix("torch.ops.")
        operator = self._operators.get(name)
        if operator is not None and operator.is_free:
            details = {"kernel_type": operator.kernel_type, "zero_cost": True}
            return self._interface.QueryResult(0.0, 1.0, self._interface.QuerySource.MEASURED, details)
        answer = self._answer(operator, op_invoke_info) if operator is not None else None
        if answer is not None:
            self.last_miss_reason = ""
            return self._result(answer, _tensors(op_invoke_info.args))
        self.last_miss_reason = self.last_miss_reason or f"{name} has no rows of its own"
        found = self.base.lookup(op_invoke_info) if self.base is not None else None
        if found is None and self.base is not None:
            self.last_miss_reason = getattr(self.base, "last_miss_reason", "") or self.last_miss_reason
        return found

    def store(self, op_invoke_info: Any, result: Any) -> None:
        """Raises NotImplementedError: a database gets its durations from measurements."""
        raise NotImplementedError("this data source is read-only")

    def _answer(self, operator: MappedOperator, info: Any) -> QueryResult | None:
        """Returns the best answer of the operator's kernel types; None, with the reason, if none answers."""
        mode = operator.query_mode
        if operator.composite or operator.is_communication:
            return None
        if mode not in ("", _ATTENTION, _ELEMENTWISE):
            self.last_miss_reason = f"query_mode {mode} is not answered here"
            return None
        inputs = _tensors(info.args)[: operator.tc_input_count]
        # The row itself, or else the first kernel type and its most usual layout.
        first = None
        for kernel_type in operator.kernel_types:
            if kernel_type in self.database.kernel_types():
                for answer in self._answers(_questions(self.database, kernel_type, mode, inputs, info)):
                    if answer.how is How.MEASURED:
                        return answer
                    first = first or answer
        self.last_miss_reason = self.last_miss_reason or f"{operator.kernel_type}: no rows of this kernel type"
        return first

    def _answers(self, questions: Iterable[Callable[[], QueryResult]]) -> Iterator[QueryResult]:
        """Yields the answers to questions, but for analytic ones: msmodeling has an analytic model of its own."""
        for ask in questions:
            try:
                answer = ask()
            except OpAtlasError as error:
                self.last_miss_reason = str(error)
                continue
            if answer.how is How.ANALYTIC:
                self.last_miss_reason = answer.note
            else:
                yield answer

    def _result(self, answer: QueryResult, inputs: Sequence[_Tensor]) -> Any:
        source = {
            How.MEASURED: self._interface.QuerySource.MEASURED,
            How.INTERPOLATED: self._interface.QuerySource.INTERPOLATED,
            How.EXTRAPOLATED: self._interface.QuerySource.EXTRAPOLATED,
        }[answer.how]
        low, high = answer.interval_us
        details = {
            "kernel_type": answer.kernel_type,
            "method": f"opatlas {answer.how}",
            "low_us": low,
            "high_us": high,
            "implementation": answer.implementation,
            "rows": [row.case_id for row in answer.rows],
            "run_ids": list(answer.run_ids),
            "composed": answer.composed,
            "device": answer.device,
            "source": answer.source,
            "note": answer.note,
        }
        shapes = [list(each.shape) for each in inputs]
        return self._interface.QueryResult(
            latency_us=answer.duration_us,
            confidence=max(0.0, 1 - (high - low) / (2 * answer.duration_us)),
            source=source,
            details=details,
            shape_match_info=self._interface.ShapeMatchInfo(shapes, [], f"opatlas_{answer.how}"),
        )


def _questions(
    database: OpenDatabase, kernel_type: str, mode: object, inputs: Sequence[_Tensor], info: Any
) -> Iterator[Callable[[], QueryResult]]:
    """Yields the questions that an operator may be, the most probable one first."""
    if mode == _ATTENTION:
        yield lambda: _attention(database, kernel_type, info)
        return
    if kernel_type in _PRODUCTS:
        matrices = [each for each in inputs if len(each.shape) == 2]
        if len(matrices) == 2 and matrices[0].shape[1] == matrices[1].shape[0]:
            yield from _products(database, kernel_type, *matrices)
        return
    if kernel_type == "SwiGlu" and len(inputs) == 2 and inputs[0] == inputs[1]:
        *rows, width = inputs[0].shape
        inputs = [_Tensor((*rows, 2 * width), inputs[0].dtype)]
    dtypes = [each.dtype for each in inputs]
    # An engine has the tokens of all sequences in one axis.
    for form in (_same, _flat):
        shapes = [form(each.shape) for each in inputs]
        outputs = [form(each.shape) for each in _tensors([info.out])]
        if form is _same or any(len(each.shape) > 2 for each in inputs):
            yield partial(database.query, kernel_type, shapes, dtypes=dtypes)
            if outputs:
                yield partial(database.query, kernel_type, shapes, dtypes=dtypes, output_shapes=outputs)


def _same(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape


def _products(
    database: OpenDatabase, kernel_type: str, x: _Tensor, weight: _Tensor
) -> Iterator[Callable[[], QueryResult]]:
    """Yields the questions for a product in the layouts of its rows: operands alone, or as the catalog has the call."""
    (m, k), n = x.shape, weight.shape[1]

    def catalog_row(nz: bool) -> QueryResult:
        cells = call_cells(kernel_type, _PRODUCTS[kernel_type], {"m": m, "n": n, "k": k}, dtype=x.dtype, nz=nz)
        return database.query_row(kernel_type, cells)

    share = database.answers.stored_rows(kernel_type, next(iter(database.implementations))).share_in_nz
    plain = [lambda: database.matmul(m=m, n=n, k=k, dtype=x.dtype, kernel_type=kernel_type), lambda: catalog_row(False)]
    stored = [lambda: catalog_row(True)] if share else []
    # matmul has no answer where rows have further operands, as most of quantized products have.
    yield from [*stored, *plain] if share > 0.5 else [*plain[:1], *stored, *plain[1:]]


def _attention(database: OpenDatabase, kernel_type: str, info: Any) -> QueryResult:
    """Asks for attention in which all sequences have the average length, as msmodeling does. Raises NoAnswer."""
    query, key = (_tensor(info.args[place]) for place in (_QUERY, _KEY))
    lengths = _values(info.args[_LENGTHS]) if len(info.args) > _LENGTHS else []
    if query is None or key is None or not lengths or len(key.shape) < 2 or query.dtype != key.dtype:
        raise NoAnswer(f"{kernel_type}: the operator has no lengths, or another dtype for keys than for queries")
    kv_heads, head_size = key.shape[-2:]
    tokens, *of_token = query.shape
    heads = of_token[0] if len(of_token) == 2 else of_token[0] // head_size if len(of_token) == 1 else 0
    if not heads or not kv_heads or tokens % len(lengths):
        raise NoAnswer(f"{kernel_type}: {query.shape} are not queries of {len(lengths)} sequences of one length")
    queries, keys = tokens // len(lengths), round(sum(lengths) / len(lengths))
    return database.attention(
        sequences=len(lengths),
        keys=keys,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        queries=queries,
        dtype=query.dtype,
    )


def _values(tensor: Any) -> list[int]:
    """Returns the values of a tensor; none if it has no values, as on torch's meta device."""
    try:
        return [int(value) for value in tensor.tolist()]
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return []


def _tensors(values: Sequence[Any]) -> list[_Tensor]:
    """Returns the tensors with dimensions among arguments, also those in lists."""
    flat = [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]
    return [tensor for tensor in map(_tensor, flat) if tensor is not None and tensor.shape]


def _tensor(value: Any) -> _Tensor | None:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    shape = tuple(map(int, value.shape))
    word = str(value.dtype).removeprefix("torch.").upper()
    known = known_dtype(_DTYPES.get(word, word))
    return _Tensor(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape, word if known is None else known.name)
