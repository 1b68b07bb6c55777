"""--where: an expression over the cells of a row, `M <= 64 and dtype == BF16`.

The expression is parsed, never `eval`uated. As in SQL a comparison has three results: a comparison with a value that a
row lacks (M of an Add, the duration of a row that was never measured) is neither true nor false.
"""

from __future__ import annotations

import argparse
import ast
import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opatlas.arrays import Floats
from opatlas.data.manifest import run_id_time
from opatlas.errors import CellError
from opatlas.row.columns import CACHE_STATE, INSTRUMENT, QUALITY, RUN_ID
from opatlas.row.slots import Slot, dtype_name, format_name, known_dtype
from opatlas.row.status import Status
from opatlas.row.table import Row, RowTable
from opatlas.text import parse_real, suggest
from opatlas.theory.patterns import ExpressionError, parse_tree

_DAY_S = 86400.0

#: The values of `status`; the first value is that of a row that was never run.
STATUSES = ("none", *(status.value for status in Status))


@dataclass(frozen=True)
class Variable:
    """A variable.

    Attributes:
        values: returns the value of each row of a table, None where a row has none.
        is_text: whether values are texts, which a user may write without quotes.
    """

    values: Callable[[RowTable], Sequence[object]]
    is_text: bool = False


def values_of(table: RowTable, names: Iterable[str]) -> Mapping[str, Sequence[object]]:
    """Returns the values of some names for all rows of a table; None where a row has none."""
    by_slug = slugs(table)
    found: dict[str, Sequence[object]] = {}
    for name in names:
        if name in VARIABLES:
            found[name] = VARIABLES[name].values(table)
        else:
            found[name] = [_number_or_text(cell.strip()) for cell in table.cells(by_slug.get(name, ""))]
    return found


def slugs(table: RowTable) -> dict[str, str]:
    """Returns the columns of a table by their slugs: `average_duration_us` is `Average Duration(us)`."""
    return {re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_"): column for column in table.columns}


def _number_or_text(cell: str) -> float | str | None:
    """Returns the number in a cell, or its text; None for an empty cell."""
    number = parse_real(cell)
    return number if number is not None else cell or None


def _size(name: str, *, is_text: bool = False) -> Variable:
    """Returns a size by its name in `row_sizes`."""
    return Variable(
        lambda table: [None if size == "" else size for row in table for size in (row.sizes.get(name),)], is_text
    )


def _tensors(value: Callable[[Sequence[Slot], Sequence[Slot]], object], *, is_text: bool = False) -> Variable:
    """Returns a value of the inputs and outputs; rows with a malformed cell have no slots."""

    def of_row(row: Row) -> object:
        try:
            return value(*row.tensors)
        except CellError:
            return value((), ())

    return Variable(lambda table: [of_row(row) for row in table], is_text)


def _numbers(column: Callable[[RowTable], Floats]) -> Variable:
    return Variable(lambda table: [None if math.isnan(number) else number for number in column(table).tolist()])


def _cells(column: str, default: str | None = None) -> Variable:
    return Variable(lambda table: [cell.strip() or default for cell in table.cells(column)], is_text=True)


def _age_days(cell: str) -> float | None:
    began = run_id_time(cell.strip())
    return None if began is None else (time.time() - began) / _DAY_S


#: The variables by name. Any other name is the slug of a column of the CSV.
VARIABLES: Mapping[str, Variable] = {
    "type": Variable(lambda table: [table.kernel_type] * len(table), is_text=True),
    "dtype": _size("dtype", is_text=True),
    "dtypes": _tensors(lambda inputs, outputs: tuple(slot.dtype for slot in inputs), is_text=True),
    "format": _size("format", is_text=True),
    "formats": _tensors(lambda inputs, outputs: tuple(slot.format for slot in inputs), is_text=True),
    "inputs": _tensors(lambda inputs, outputs: tuple(slot.shape for slot in inputs)),
    "outputs": _tensors(lambda inputs, outputs: tuple(slot.shape for slot in outputs)),
    "m": _size("m"),
    "n": _size("n"),
    "k": _size("k"),
    "tokens": _tensors(lambda inputs, outputs: next((x.shape[0] for x in inputs[:1] if x.shape), None)),
    "elements": _tensors(lambda inputs, outputs: next((math.prod(x.shape) for x in outputs), None)),
    "bytes": _size("bytes"),
    "duration": _numbers(lambda table: table.replayed.us),
    "captured": _numbers(lambda table: table.captured.us),
    "noise": _numbers(lambda table: table.replayed.noise),
    "samples": _numbers(lambda table: table.replayed.samples),
    "age_days": Variable(lambda table: list(map(_age_days, table.cells(RUN_ID)))),
    "status": Variable(
        lambda table: [STATUSES[0] if status is None else status.value for status in table.statuses], is_text=True
    ),
    "quality": _cells(QUALITY),
    "cache": _cells(CACHE_STATE),
    "instrument": _cells(INSTRUMENT),
    "run": _cells(RUN_ID, "none"),
}


#: A number, a text, a shape, a list of these, or a truth value; None: the row lacks it.
Value = Any
_RowFunction = Callable[[Callable[[str], Value]], Value]

_LONGEST = 500
_ORDER: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Where:
    """A parsed expression.

    Attributes:
        text: as the user wrote it.
        names: its variables in lower case, with the column (from 1) of their first use.
    """

    text: str
    names: Mapping[str, int]
    _value: _RowFunction = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def selected(self, table: RowTable) -> list[bool]:
        """Returns whether the expression is true of each row of a table."""
        values = values_of(table, self.names)

        def is_true(position: int) -> bool:
            return self._value(lambda name: values[name][position]) is True

        return list(map(is_true, range(len(table))))

    @property
    def is_of_status(self) -> bool:
        """Whether the expression is about statuses alone, which change from session to session."""
        return self.names.keys() == {"status"}

    def unknown(self, columns: Iterable[str]) -> str:
        """Returns what is wrong with the names; "" where each name is a variable or the slug of a column."""
        known = {*VARIABLES, *columns}
        for name, column in self.names.items():
            if name not in known:
                return (
                    f"column {column}: there is no variable {name!r}{suggest(name, known)}; the variables are "
                    f"{', '.join(VARIABLES)}, and the columns of the CSVs (average_duration_us); put a text with "
                    f"other characters than letters in quotes"
                )
        return ""


def parse_where(text: str) -> Where:
    """Reads an expression from the command line. Raises argparse.ArgumentTypeError."""
    names: dict[str, int] = {}
    try:
        value = _walk(parse_tree(text, _LONGEST), names)
    except ExpressionError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError(f"{text!r}: the expression is nested too deeply") from None
    return Where(text.strip(), names, value)


def _walk(node: ast.expr, names: dict[str, int]) -> _RowFunction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str):
        constant = node.value
        return lambda row: constant
    if isinstance(node, ast.Name):
        name = node.id.lower()
        names.setdefault(name, node.col_offset + 1)
        return lambda row: row(name)
    if isinstance(node, ast.Tuple | ast.List):
        items = [_walk(item, names) for item in node.elts]
        return lambda row: tuple(item(row) for item in items)
    if isinstance(node, ast.Subscript):
        of, index = _walk(node.value, names), _walk(node.slice, names)
        return lambda row: _item(of(row), index(row))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        operand = _walk(node.operand, names)
        return _negated(operand) if isinstance(node.op, ast.Not) else _negative(operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        calculate = _ARITHMETIC[type(node.op)]
        left, right = _walk(node.left, names), _walk(node.right, names)
        return lambda row: _calculated(calculate, left(row), right(row))
    if isinstance(node, ast.BoolOp):
        return _boolean_operation([_walk(value, names) for value in node.values], decisive=isinstance(node.op, ast.Or))
    if isinstance(node, ast.Compare):
        return _comparison(node, names)
    raise ExpressionError(
        f"column {node.col_offset + 1}: {ast.unparse(node)!r} is not understood: use variables, numbers, texts, "
        f"== != < <= > >=, in, and, or, not, + - * / // %, inputs[0][1]"
    )


def _comparison(node: ast.Compare, names: dict[str, int]) -> _RowFunction:
    sides = [node.left, *node.comparators]
    values = [_side(side, sides[max(i - 1, 0) : i], sides[i + 1 : i + 2], names) for i, side in enumerate(sides)]
    parts = [_compared(op, left, right) for op, left, right in zip(node.ops, values, values[1:], strict=False)]
    return parts[0] if len(parts) == 1 else _boolean_operation(parts, decisive=False)


def _side(node: ast.expr, before: list[ast.expr], after: list[ast.expr], names: dict[str, int]) -> _RowFunction:
    """Returns a side of a comparison. An unknown name is a text (BF16) beside a variable of text or behind a column."""
    if isinstance(node, ast.Tuple | ast.List):
        items = [_side(item, before, after, names) for item in node.elts]
        return lambda row: tuple(item(row) for item in items)
    if isinstance(node, ast.Name | ast.Constant) and any(_is_status(other) for other in (*before, *after)):
        return _status(node)
    if isinstance(node, ast.Name) and node.id.lower() not in VARIABLES:
        beside = [VARIABLES.get(other.id.lower()) for other in (*before, *after) if isinstance(other, ast.Name)]
        is_behind_column = any(isinstance(other, ast.Name) and other.id.lower() not in VARIABLES for other in before)
        if is_behind_column or any(other is not None and other.is_text for other in beside):
            text = node.id
            return lambda row: text
    return _walk(node, names)


def _is_status(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.lower() == "status"


def _status(node: ast.Name | ast.Constant) -> _RowFunction:
    """Returns a side of a comparison with the variable `status`. Raises ExpressionError where it is no status."""
    text = node.id if isinstance(node, ast.Name) else str(node.value)
    if text.lower() not in STATUSES:
        raise ExpressionError(
            f"column {node.col_offset + 1}: {text!r} is no status{suggest(text, STATUSES)}: "
            f"the statuses are {', '.join(STATUSES)}"
        )
    return lambda row: text


def _compared(op: ast.cmpop, left: _RowFunction, right: _RowFunction) -> _RowFunction:
    if isinstance(op, ast.In | ast.NotIn):

        def contains(row: Callable[[str], Value]) -> bool | None:
            return _contains(right(row), left(row))

        return contains if isinstance(op, ast.In) else _negated(contains)
    if isinstance(op, ast.Eq | ast.NotEq):
        wanted = isinstance(op, ast.Eq)

        def equal(row: Callable[[str], Value]) -> bool | None:
            a, b = left(row), right(row)
            return None if a is None or b is None else (_plain(a) == _plain(b)) is wanted

        return equal
    if type(op) not in _ORDER:
        raise ExpressionError("'is' is not understood: use == and !=")
    ordered = _ORDER[type(op)]

    def in_order(row: Callable[[str], Value]) -> bool | None:
        a, b = _plain(left(row)), _plain(right(row))
        return ordered(a, b) if isinstance(a, int | float) and isinstance(b, int | float) else None

    return in_order


def _contains(whole: Value, part: Value) -> bool | None:
    if whole is None or part is None:
        return None
    if isinstance(whole, tuple):
        return _plain(part) in tuple(map(_plain, whole))
    if _plain(part) == _plain(whole):
        # `M in (64)`: Python reads brackets around one value as that value.
        return True
    return isinstance(whole, str) and str(part).casefold() in whole.casefold()


def _plain(value: Value) -> Value:
    """Returns a value in a form to compare: `DT_BF16`, `bf16` and `bfloat16` are equal, and so are 5 and "5"."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if not isinstance(value, str):
        return value
    number = parse_real(value)
    if number is not None:
        return number
    dtype = known_dtype(value)
    return dtype.name.casefold() if dtype is not None else format_name(dtype_name(value.upper())).casefold()


def _calculated(calculate: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    try:
        return calculate(left, right)
    except (ZeroDivisionError, OverflowError):
        return None


def _item(of: Value, index: Value) -> Value:
    if not isinstance(of, tuple) or not isinstance(index, int):
        return None
    return of[index] if -len(of) <= index < len(of) else None


def _negated(value: _RowFunction) -> _RowFunction:
    def negated(row: Callable[[str], Value]) -> bool | None:
        result = value(row)
        return None if result is None else not result

    return negated


def _negative(value: _RowFunction) -> _RowFunction:
    return lambda row: _calculated(operator.sub, 0, value(row))


def _boolean_operation(values: list[_RowFunction], *, decisive: bool) -> _RowFunction:
    """Returns `or` of values, where True is decisive, or `and`, where False is."""

    def joined(row: Callable[[str], Value]) -> bool | None:
        is_open = False
        for value in values:
            result = value(row)
            if result is None:
                is_open = True
            elif bool(result) is decisive:
                return decisive
        return None if is_open else not decisive

    return joined
