"""Calls that are really served, from a JSON list of operators with their arguments, as theory rows.

An entry is `{"type": ..., "args": {...}}`. The type is an operator of the catalog, as in the test lists of OperatorX
(InferenceX, experimental/operatorx), or a kernel type with the sizes of a pattern by their names, `dtype`, `pattern`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import read_file
from opatlas.row.slots import known_dtype
from opatlas.theory.catalog import Catalog, OperatorRow, ServedOperator
from opatlas.theory.patterns import Pattern, parse_expression
from opatlas.theory.sources import SOURCES
from opatlas.theory.space import TheoryRow, pattern_row

#: No model has a larger size, and no list is a larger file.
_LARGEST, _MOST_BYTES = 1 << 31, 1 << 28
#: Names of dtypes in test lists; others are those of rows.
_DTYPES = {"bf16": "BF16", "fp16": "FLOAT16", "fp8": "FLOAT8_E4M3FN", "int8": "INT8"}


class _ServedCall(msgspec.Struct):
    """An entry of a list."""

    type: str
    args: dict[str, int | float | bool | str | None]


@dataclass(frozen=True)
class ServedCalls:
    """The rows of a list.

    Attributes:
        rows: by kernel type and signature.
        without_row: the numbers of calls that no row stands for, by operator and dtypes.
    """

    rows: dict[str, dict[str, TheoryRow]] = field(default_factory=dict)
    without_row: Counter[str] = field(default_factory=Counter)


def read_calls(path: Path, catalog: Catalog) -> ServedCalls:
    """Returns the rows of a list of calls.

    Raises:
        OpAtlasError: the file cannot be read.
        UsageError: it is not such a list, or an entry names no known type or lacks an argument.
    """
    found = ServedCalls()
    try:
        entries = msgspec.json.decode(read_file(path, _MOST_BYTES, "name a list of calls"), type=list[_ServedCall])
    except msgspec.MsgspecError as error:
        raise UsageError(f'{path}: {error}: give a JSON list of {{"type": ..., "args": {{...}}}}') from None
    for number, entry in enumerate(entries):
        try:
            rows = list(_rows(entry, catalog))
        except KeyError as error:
            raise UsageError(f"{path}: entry {number} ({entry.type[:60]}): no argument {error}: add it") from None
        except OpAtlasError as error:
            raise UsageError(f"{path}: entry {number}: {error}") from None
        if not rows or None in rows:
            dtypes = [str(value)[:20] for name, value in entry.args.items() if name.startswith("dtype")]
            found.without_row[" ".join([entry.type, *dict.fromkeys(dtypes)])] += 1
            continue
        for row in filter(None, rows):
            found.rows.setdefault(row.kernel_type, {})[row.signature()] = row
    return found


def _rows(entry: _ServedCall, catalog: Catalog) -> Iterator[TheoryRow | None]:
    """Yields the rows that stand for a call; None where none does. Raises KeyError with the name of an argument."""
    operator = catalog.operators.get(entry.type)
    if operator is None:
        kernel = catalog.kernel(entry.type)
        names, pattern = entry.args.keys() - {"dtype", "pattern"}, entry.args.get("pattern")
        own = [each.name for each in kernel.patterns if pattern in (None, each.name) and _sizes(each) == names]
        if not own:
            known = "; ".join(f"{each.name} {', '.join(sorted(_sizes(each)))}" for each in kernel.patterns)
            raise UsageError(f"{entry.type} has no pattern with these args: give those of one of {known}")
        sizes = {name: name for name in names}
        alternatives = [OperatorRow(entry.type, name, sizes, ("dtype",)) for name in own]
        operator = ServedOperator([alternatives], {"dtype": "BF16"})
    args = {**operator.defaults, **{name: value for name, value in entry.args.items() if value is not None}}
    numbers = {name: value for name, value in args.items() if isinstance(value, int)}
    fits = all(args.get(name, value) == value for name, value in operator.only.items())
    for alternatives in operator.rows:
        rows = (_row(each, args, numbers, catalog) for each in alternatives if fits)
        yield next(filter(None, rows), None)


def _sizes(pattern: Pattern) -> set[str]:
    """Returns the names of the sizes that a pattern takes."""
    return {name for axis in pattern.axes for name in (SOURCES[axis.source] if axis.source else (axis.name,))}


def _row(row: OperatorRow, args: Mapping[str, Any], numbers: Mapping[str, int], catalog: Catalog) -> TheoryRow | None:
    dtypes = {_DTYPES.get(args[name], str(args[name])) for name in row.dtypes}
    if len(dtypes) > 1 or not all(parse_expression(text).value(numbers) for text in row.where):
        return None
    known = known_dtype(dtypes.pop())
    pattern = catalog.kernel(row.kernel).pattern(row.pattern)
    half = known is not None and known.name == "FLOAT16"
    wanted = "BF16" if half or known is None else known.name
    form = next((form.in_nd() for form in pattern.forms if form.input_dtypes[0] == wanted and known), None)
    if form is None:
        return None
    sizes = {name: int(parse_expression(text).value(numbers)) for name, text in row.sizes.items()}
    if not all(1 <= size <= _LARGEST for size in sizes.values()):
        return None
    return pattern_row(row.kernel, pattern, form.with_activations("FLOAT16") if half else form, sizes)
