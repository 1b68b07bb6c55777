"""The pattern of a kernel's calls: how its slots follow from a few sizes, written as arithmetic.

Expressions such as `min(k, 512)`, `align(n, 16) // 2` and `m * n >= 262144` stand in a file that users edit.
They are parsed and interpreted here, never passed to `eval`. An expression may use whole numbers, variables,
+ - * // %, comparisons joined by `and`, and the functions min, max and align.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opatlas.row.slots import dtype_name, format_name, known_dtype

#: A whole number, or an array with one number for each row.
Ints = Any
_Value = Callable[[Mapping[str, Ints]], Ints]

#: Characters of an expression. Deeply nested expressions would exhaust the stack.
_LONGEST = 200
#: The largest number in an expression: above any dimension, and small enough for products within 64 bits.
_LARGEST = 1 << 40


def _quotient(value: Ints, divisor: Ints) -> Ints:
    """Returns `value // divisor`, and 0 where the divisor is 0: no tensor has this size."""
    if isinstance(value, int) and isinstance(divisor, int):
        return value // divisor if divisor else 0
    with np.errstate(divide="ignore"):
        return np.floor_divide(value, divisor)


def _remainder(value: Ints, divisor: Ints) -> Ints:
    """Returns `value % divisor`, and 0 where the divisor is 0."""
    if isinstance(value, int) and isinstance(divisor, int):
        return value % divisor if divisor else 0
    with np.errstate(divide="ignore"):
        return np.remainder(value, divisor)


_OPERATORS: dict[type[ast.AST], Callable[[Ints, Ints], Ints]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _quotient,
    ast.Mod: _remainder,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _align(value: Ints, multiple: Ints) -> Ints:
    return -_quotient(-value, multiple) * multiple


def _least(a: Ints, b: Ints) -> Ints:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def _most(a: Ints, b: Ints) -> Ints:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)


_FUNCTIONS: dict[str, Callable[[Ints, Ints], Ints]] = {"min": _least, "max": _most, "align": _align}


class ExpressionError(ValueError):
    """Text that is not an expression of the catalog. The message is a clause, such as "it is longer than ..."."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    Attributes:
        text: the expression as written.
        names: the variables that the expression uses.
        value: computes the expression from its variables. Numbers give a number, arrays an array; a comparison gives
            a truth value or an array of them.
    """

    text: str
    names: frozenset[str]
    value: _Value

    @property
    def variable(self) -> str:
        """The variable, if the expression is a single variable; otherwise ""."""
        return self.text if self.text in self.names else ""


def parse_expression(text: str | int) -> Expression:
    """Parses an expression.

    Raises:
        ExpressionError: the text is too long, nested too deep, or more than arithmetic.
    """
    text = str(text).strip()
    names: set[str] = set()
    value = _walk(parse_tree(text, _LONGEST), names)
    return Expression(text, frozenset(names), value)


def parse_tree(text: str, longest: int) -> ast.expr:
    """Returns the syntax tree of a Python expression, without evaluating it.

    Raises:
        ExpressionError: the text is longer than `longest` characters, or not an expression.
    """
    if len(text) > longest:
        raise ExpressionError(f"it is longer than {longest} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        column = f", column {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        raise ExpressionError(f"it is not an expression ({getattr(error, 'msg', error)}{column})") from None


def _walk(node: ast.expr, names: set[str]) -> _Value:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < _LARGEST:
        number = node.value
        return lambda env: number
    if isinstance(node, ast.Name):
        name = node.id
        names.add(name)
        return lambda env: env[name]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _walk(node.operand, names)
        return lambda env: -inner(env)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        divisor_names: set[str] = set()
        left, right = _walk(node.left, names), _walk(node.right, divisor_names)
        names |= divisor_names
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and not divisor_names and not right({}):
            raise ExpressionError(f"{ast.unparse(node)!r} divides by 0")
        return _binary(_OPERATORS[type(node.op)], left, right)
    if isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
        operands = [_walk(operand, names) for operand in (node.left, *node.comparators)]
        pairs = [
            _binary(_OPERATORS[type(op)], left, right)
            for op, left, right in zip(node.ops, operands, operands[1:], strict=False)
        ]
        return _all(pairs)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return _all([_walk(value, names) for value in node.values])
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and len(node.args) == 2
        and not node.keywords
    ):
        return _binary(_FUNCTIONS[node.func.id], _walk(node.args[0], names), _walk(node.args[1], names))
    raise ExpressionError(
        f"{ast.unparse(node)!r} is not arithmetic: use whole numbers, variables, + - * // %, comparisons, and, "
        f"min(a, b), max(a, b), align(a, multiple)"
    )


def _binary(function: Callable[[Ints, Ints], Ints], left: _Value, right: _Value) -> _Value:
    return lambda env: function(left(env), right(env))


def _all(values: list[_Value]) -> _Value:
    def value(env: Mapping[str, Ints]) -> Ints:
        result = values[0](env)
        for other in values[1:]:
            result = result & other(env)
        return result

    return value


NZ = "FRACTAL_NZ"
#: Rows of a FRACTAL_NZ block, and bytes of each row.
_NZ_ROWS = 16
_NZ_BYTES = 32


@dataclass(frozen=True)
class Axis:
    """A size that varies, or several sizes that vary together.

    Attributes:
        name: the variable; a label where the axis has a source, whose variables have names of their own.
        grid: the sizes in ascending order; empty where a source gives the sizes.
        between: whether sizes between those of the grid are useful too, as for numbers of tokens.
        source: the entry of `opatlas.theory.sources.SOURCES` that gives the sizes; "" if there is a grid.
        generic: sizes of each variable of the source that belong to no particular model.
    """

    name: str
    grid: tuple[int, ...] = ()
    between: bool = False
    source: str = ""
    generic: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Form:
    """The dtypes and formats of a call, slot by slot: the profiler's names without prefixes, "" for an absent slot.

    Attributes:
        op_state, core: the OP State and Accelerator Core of the captured rows that the form was found in; else "".
    """

    input_dtypes: tuple[str, ...]
    input_formats: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    output_formats: tuple[str, ...]
    op_state: str = ""
    core: str = ""

    def __str__(self) -> str:
        return f"{';'.join(self.input_dtypes)} -> {';'.join(self.output_dtypes)}"

    def in_nd(self) -> Form:
        """Returns the form with every slot in ND, the only format outside of NPUs."""
        inputs, outputs = (
            tuple("ND" if name else "" for name in formats) for formats in (self.input_formats, self.output_formats)
        )
        return replace(self, input_formats=inputs, output_formats=outputs)

    def with_activations(self, dtype: str) -> Form:
        """Returns the form with another dtype in place of BF16."""
        inputs, outputs = (
            tuple(dtype if name == "BF16" else name for name in names)
            for names in (self.input_dtypes, self.output_dtypes)
        )
        return replace(self, input_dtypes=inputs, output_dtypes=outputs)

    @classmethod
    def parse(cls, text: str, core: str = "") -> Form:
        """Parses `BF16;INT8 | ND;FRACTAL_NZ -> BF16`. All formats are ND where none are given.

        Raises:
            ValueError: `->` is missing, or the numbers of formats and dtypes differ. The message is a clause.
        """
        inputs, arrow, outputs = text.partition("->")
        if not arrow:
            raise ValueError("it has no '->' between inputs and outputs")
        halves = []
        for half in (inputs, outputs):
            dtypes, _, formats = (part.strip().upper() for part in half.partition("|"))
            names = tuple(dtype_name(word.strip()) for word in dtypes.split(";"))
            given = tuple(format_name(word.strip()) for word in formats.split(";")) if formats else ()
            if given and len(given) != len(names):
                raise ValueError(f"there are {len(given)} formats for {len(names)} dtypes")
            halves += [names, given or tuple("ND" if name else "" for name in names)]
        return cls(halves[0], halves[1], halves[2], halves[3], core=core)


@dataclass(frozen=True)
class Lengths:
    """A Runtime cell that lists the lengths of sequences.

    Attributes:
        count: the number of sequences.
        each: the length of each sequence.
        sums: whether the list holds cumulative sums instead of lengths.
    """

    count: Expression
    each: Expression
    sums: bool = False

    def text(self, count: int, each: int) -> str:
        """Returns the cell for `count` sequences of length `each`."""
        return ",".join(str(each * (i + 1) if self.sums else each) for i in range(count))


#: The dimensions of a slot: () for a scalar, None for an absent slot.
Template = tuple[Expression, ...] | None


@dataclass(frozen=True)
class Pattern:
    """The calls of a kernel.

    Attributes:
        let: further variables, in the order in which they are computed.
        where: conditions that a legal call meets.
        inputs, outputs: the dimensions of each slot.
        forms: dtypes and formats for databases without rows that have forms.
        cells: further columns of a row: a fixed text, a number, or lengths.
    """

    name: str
    axes: tuple[Axis, ...]
    inputs: tuple[Template, ...]
    outputs: tuple[Template, ...]
    forms: tuple[Form, ...]
    let: Mapping[str, Expression] = field(default_factory=dict)
    where: tuple[Expression, ...] = ()
    cells: Mapping[str, str | Expression | Lengths] = field(default_factory=dict)


def nz_block(dtype: str) -> tuple[int, int]:
    """Returns the number of rows and of columns of a FRACTAL_NZ block for elements of a dtype."""
    known = known_dtype(dtype)
    return _NZ_ROWS, _NZ_BYTES // (known.bytes if known else 2)
