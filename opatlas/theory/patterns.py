"""A pattern: how the slots of a kernel's call follow from a few sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opatlas.model.slots import dtype_name, format_name, known_dtype
from opatlas.theory.expression import Expression

NZ = "FRACTAL_NZ"
#: A block of FRACTAL_NZ has so many rows, and so many bytes in each.
_NZ_ROWS = 16
_NZ_BYTES = 32


@dataclass(frozen=True)
class Axis:
    """A size that varies, or several that vary together.

    Attributes:
        name: the variable; of an axis with a source, whose variables have names of their own, a label.
        grid: sizes in order; empty where a source gives the values.
        between: sizes between those of the grid make sense too (numbers of tokens do).
        source: what models give (`opatlas.theory.sources.SOURCES`); "" where there is a grid.
        generic: for each variable of the source its sizes where no model is asked for.
    """

    name: str
    grid: tuple[int, ...] = ()
    between: bool = False
    source: str = ""
    generic: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Form:
    """Dtypes and formats of a call, slot by slot, by the profiler's names without prefixes; "" for an absent slot.

    Attributes:
        op_state, core: as in the rows of the profiler that the form is taken from; "" where it is not.
    """

    input_dtypes: tuple[str, ...]
    input_formats: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    output_formats: tuple[str, ...]
    op_state: str = ""
    core: str = ""

    def __str__(self) -> str:
        return f"{';'.join(self.input_dtypes)} -> {';'.join(self.output_dtypes)}"

    @classmethod
    def parse(cls, text: str, core: str = "") -> Form:
        """Reads `BF16;INT8 | ND;FRACTAL_NZ -> BF16`; without formats they are all ND.

        Raises:
            ValueError: there is no `->`, or another number of formats than of dtypes. The message is a clause.
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
                raise ValueError(f"{len(given)} formats stand beside {len(names)} dtypes")
            halves += [names, given or tuple("ND" if name else "" for name in names)]
        return cls(halves[0], halves[1], halves[2], halves[3], core=core)


@dataclass(frozen=True)
class Lengths:
    """A Runtime cell that lists the lengths of sequences.

    Attributes:
        count: how many sequences.
        each: the length of every one.
        sums: they add up along the list.
    """

    count: Expression
    each: Expression
    sums: bool = False

    def text(self, count: int, each: int) -> str:
        return ",".join(str(each * (i + 1) if self.sums else each) for i in range(count))


#: Dimensions of a slot; () for a number, None for an absent slot.
Template = tuple[Expression, ...] | None


@dataclass(frozen=True)
class Pattern:
    """The calls of a kernel.

    Attributes:
        let: further variables, in the order in which they are computed.
        where: what must hold for a call to be legal.
        inputs, outputs: slots.
        forms: what is taken where the database has no rows to take dtypes and formats from.
        cells: further columns of a row: the same text for all, a number, or lengths.
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
    """Rows and columns of a block of FRACTAL_NZ for elements of a dtype."""
    known = known_dtype(dtype)
    return _NZ_ROWS, _NZ_BYTES // (known.bytes if known else 2)
