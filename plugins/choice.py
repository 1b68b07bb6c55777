"""The rows that a user chooses: by shard, update mode, named files and -k, and by --where.

--where is an expression over the cells of a row, `M <= 64 and dtype == BF16`. It is parsed, never `eval`uated. As in
SQL a comparison has three results: one with a value that a row lacks (M of an Add, the duration of a row that was
never measured) is neither true nor false.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression  # -k selects rows before they are collected, by pytest's own rules

from opatlas.data.comparable import Staleness
from opatlas.errors import CellError
from opatlas.row.columns import CACHE_STATE, INSTRUMENT, QUALITY, RUN_ID
from opatlas.row.quality import Floats, Quality
from opatlas.row.slots import Slot, dtype_name, format_name, known_dtype
from opatlas.row.status import Status, UpdateMode
from opatlas.row.table import Row, RowTable
from opatlas.text import parse_real, suggest
from opatlas.theory.patterns import ExpressionError, parse_tree


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` of a collection, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, row_digest: str) -> bool:
        """Returns whether a row belongs to this part, by the row alone."""
        return int(row_digest, 16) % self.count == self.index - 1


@dataclass(frozen=True)
class Choice:
    """The rows of a database that the options choose.

    Attributes:
        mode: the rows to run, by the durations that they have.
        ops: the kernel types to run; empty: all.
        shard: the part of the rows to run; None: all rows.
        retry_failed: run rows that were given up.
        where: a condition on the cells of a row; None: no condition.
        strict: rows that failed before fail again, instead of being xfail.
    """

    mode: UpdateMode = UpdateMode.ALL
    ops: frozenset[str] = frozenset()
    shard: Shard | None = None
    retry_failed: bool = False
    where: Where | None = None
    strict: bool = False

    def excludes(self, *, replayed: bool, captured: bool, staleness: Staleness | None) -> bool:
        """Returns whether the update mode leaves out a row.

        Args:
            replayed: the row has a replayed duration.
            captured: the row has a captured duration and no replayed one.
            staleness: of the replayed duration, in the mode STALE.
        """
        if self.mode is UpdateMode.MISSING_ONLY:
            return replayed or captured
        if self.mode is UpdateMode.STALE:
            return staleness is None or not staleness.is_stale
        return self.mode is UpdateMode.UNREPLAYED and replayed


def keyword_filter(expression: str) -> Callable[[str], bool]:
    """Returns the test of a text by -k. Raises pytest.UsageError for an expression that pytest refuses, too."""
    if not expression:
        return lambda text: True
    try:
        compiled = Expression.compile(expression)
    except Exception as error:  # SyntaxError; before pytest 9 an error of pytest's own
        said = getattr(error, "msg", None) or str(error)
        raise pytest.UsageError(f"-k {expression!r} is no expression ({said}): join names by and, or, not") from None

    def selected(text: str) -> bool:
        def contains(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in text.lower()

        return compiled.evaluate(contains)

    return selected


def named_paths(config: pytest.Config) -> list[Path]:
    """Returns the files and folders that a user named; none if a name is neither, such as that of a package."""
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return [path.resolve() for path in named] if all(path.exists() for path in named) else []


def requested_rows(config: pytest.Config, replays: Mapping[str, Any]) -> Callable[[str, str], bool]:
    """Returns whether the user requested a row, by kernel type and id, for rows that never become items of pytest.

    A row is requested if a named file replays its kernel type, and -k selects it, which does not see names of files.

    Args:
        replays: the replay functions by kernel type.
    """
    is_selected, paths = keyword_filter(config.option.keyword), named_paths(config)

    @cache
    def words_of(kernel_type: str) -> str | None:
        """Returns the words that -k searches for a kernel type; None where no named file holds its replay."""
        function = replays.get(kernel_type)
        if function is None:
            return None if any(path.is_file() for path in paths) else ""
        file = Path(inspect.getfile(function)).resolve()
        if paths and not any(path in (file, *file.parents) for path in paths):
            return None
        return str(function.__name__)

    def is_requested(kernel_type: str, case_id: str) -> bool:
        words = words_of(kernel_type)
        return words is not None and is_selected(f"{case_id} {words}")

    return is_requested


#: The values of `status`; the first value is that of a row that was never run.
STATUSES = ("none", *(status.value for status in Status))


#: The values of each row of a table; None where a row has none.
_Values = Callable[[RowTable], Sequence[object]]


def values_of(table: RowTable, names: Iterable[str]) -> Mapping[str, Sequence[object]]:
    """Returns the values of some names for all rows of a table; None where a row has none."""
    by_slug = slugs(table)
    found: dict[str, Sequence[object]] = {}
    for name in names:
        if name in VARIABLES:
            found[name] = VARIABLES[name](table)
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


def _size(name: str) -> _Values:
    """Returns a size by its name in `row_sizes`."""
    return lambda table: [None if size == "" else size for row in table for size in (row.sizes.get(name),)]


def _tensors(value: Callable[[Sequence[Slot], Sequence[Slot]], object]) -> _Values:
    """Returns a value of the inputs and outputs; rows with a malformed cell have no slots."""

    def of_row(row: Row) -> object:
        try:
            return value(*row.tensors)
        except CellError:
            return value((), ())

    return lambda table: list(map(of_row, table))


def _numbers(column: Callable[[RowTable], Floats]) -> _Values:
    return lambda table: [None if math.isnan(number) else number for number in column(table).tolist()]


def _cells(column: str, default: str | None = None) -> _Values:
    return lambda table: [cell.strip() or default for cell in table.cells(column)]


#: The variables by name. Any other name is the slug of a column of the CSV.
VARIABLES: Mapping[str, _Values] = {
    "type": lambda table: [table.kernel_type] * len(table),
    "dtype": _size("dtype"),
    "format": _size("format"),
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
    "status": lambda table: [STATUSES[0] if status is None else status.value for status in table.statuses],
    "quality": _cells(QUALITY),
    "cache": _cells(CACHE_STATE),
    "instrument": _cells(INSTRUMENT),
    "run": _cells(RUN_ID, "none"),
}
#: The values of variables that have no others.
_WORDS = {"status": STATUSES, "quality": tuple(quality.value for quality in Quality)}
#: The variables whose values are texts, which a user may write without quotes.
_TEXTS = frozenset(("type", "dtype", "format", "status", "quality", "cache", "instrument", "run"))


#: A number, a text, a shape, a list of these, or a truth value; None: the row lacks it.
Value = Any
#: Computes a part of an expression from the values of a row's names.
_Part = Callable[[Mapping[str, Value]], Value]

_LONGEST = 500
_ORDER: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPARING = (*_ORDER, ast.Eq, ast.NotEq, ast.In, ast.NotIn)


@dataclass(frozen=True)
class Where:
    """A parsed expression.

    Attributes:
        text: as the user wrote it.
        names: its variables in lower case, with the column (from 1) of their first use.
    """

    text: str
    names: Mapping[str, int]
    _value: _Part = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def selected(self, table: RowTable) -> list[bool]:
        """Returns whether the expression is true of each row of a table."""
        values = values_of(table, self.names)
        return [
            self._value({name: values[name][position] for name in values}) is True for position in range(len(table))
        ]

    @property
    def is_of_outcome(self) -> bool:
        """Whether the expression is about what sessions leave alone, which changes from one to the next."""
        return self.names.keys() <= {*_WORDS, "noise", "samples"}

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
        value = _part(parse_tree(text, _LONGEST), names)
    except ExpressionError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError(f"{text!r}: the expression is nested too deeply") from None
    return Where(text.strip(), names, value)


def _part(node: ast.expr, names: dict[str, int]) -> _Part:
    """Returns a function that computes a part of an expression, and notes its names. Raises ExpressionError."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float, str):
            return lambda row: value
        case ast.Name(id=name):
            lower = name.lower()
            names.setdefault(lower, node.col_offset + 1)
            return lambda row: row[lower]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            parts = [_part(item, names) for item in items]
            return lambda row: tuple(part(row) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _of(lambda value: None if value is None else not value, _part(operand, names))
        case ast.BoolOp(op=op, values=values):
            parts, decisive = [_part(each, names) for each in values], isinstance(op, ast.Or)
            return lambda row: _joined((part(row) for part in parts), decisive=decisive)
        case ast.Compare(ops=ops) if all(isinstance(op, _COMPARING) for op in ops):
            _take_texts(node)
            parts = [_part(each, names) for each in (node.left, *node.comparators)]
            pairs = [_of(partial(_compared, op), *sides) for op, *sides in zip(ops, parts, parts[1:], strict=False)]
            return lambda row: _joined((pair(row) for pair in pairs), decisive=False)
    raise ExpressionError(
        f"column {node.col_offset + 1}: {ast.unparse(node)!r} is not understood: use variables, numbers, texts, "
        f"== != < <= > >=, in, and, or, not"
    )


def _of(function: Callable[..., Value], *parts: _Part) -> _Part:
    return lambda row: function(*(part(row) for part in parts))


def _take_texts(node: ast.Compare) -> None:
    """Makes texts of unknown names (BF16) beside a variable of text, and behind a column. Raises ExpressionError."""
    sides = [node.left, *node.comparators]
    names = [side.id.lower() if isinstance(side, ast.Name) else "" for side in sides]
    taken = []
    for place, side in enumerate(sides):
        before = names[max(place - 1, 0) : place]
        beside = [*before, *names[place + 1 : place + 2]]
        is_text = any(name in _TEXTS for name in beside)
        is_text = is_text or any(name and name not in VARIABLES for name in before)
        taken.append(_as_text(side, is_text=is_text, variable=next((name for name in beside if name in _WORDS), "")))
    node.left, *node.comparators = taken


def _as_text(node: ast.expr, *, is_text: bool, variable: str) -> ast.expr:
    if isinstance(node, ast.Tuple | ast.List):
        node.elts = [_as_text(item, is_text=is_text, variable=variable) for item in node.elts]
    elif variable and isinstance(node, ast.Name | ast.Constant):
        text = node.id if isinstance(node, ast.Name) else str(node.value)
        if text.lower() not in (words := _WORDS[variable]):
            place = f"column {node.col_offset + 1}: {text!r}"
            raise ExpressionError(f"{place} is no {variable}{suggest(text, words)}: give one of {', '.join(words)}")
        return ast.Constant(text)
    elif is_text and isinstance(node, ast.Name) and node.id.lower() not in VARIABLES:
        return ast.Constant(node.id)
    return node


def _compared(op: ast.cmpop, left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(op, ast.In | ast.NotIn):
        is_in = _contains(right, left)
        return is_in is isinstance(op, ast.In)
    a, b = _plain(left), _plain(right)
    if isinstance(op, ast.Eq | ast.NotEq):
        return (a == b) is isinstance(op, ast.Eq)
    return _ORDER[type(op)](a, b) if isinstance(a, int | float) and isinstance(b, int | float) else None


def _contains(whole: Value, part: Value) -> bool:
    if isinstance(whole, tuple):
        return _plain(part) in tuple(map(_plain, whole))
    if _plain(part) == _plain(whole):
        # `M in (64)`: Python reads brackets around one value as that value.
        return True
    return isinstance(whole, str) and str(part).casefold() in whole.casefold()


def _plain(value: Value) -> Value:
    """Returns a value in a form to compare: `DT_BF16`, `bf16` and `bfloat16` are equal, and so are 5 and "5"."""
    if not isinstance(value, str):
        return value
    number = parse_real(value)
    if number is not None:
        return number
    dtype = known_dtype(value)
    return dtype.name.casefold() if dtype is not None else format_name(dtype_name(value.upper())).casefold()


def _joined(values: Iterable[Value], *, decisive: bool) -> bool | None:
    """Returns `or` of values, where True is decisive, or `and`, where False is."""
    found = list(values)
    if any(value is not None and bool(value) is decisive for value in found):
        return decisive
    return None if None in found else not decisive
