"""What a run does to a kernel type: plain values, which travel between processes and need no other library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class SizesOfAxis:
    """How many of the sizes that an axis should have are in rows, counted in octaves (1, 2 to 3, 4 to 7, ...).

    Attributes:
        axis: the variable.
        wanted: octaves between the smallest and the largest size of the catalog's grid.
        shapes: how many shapes have this axis, with or without a row.
        fewest: octaves with a row, of the shape with a row that has the fewest.
        found: octaves with a row, of all shapes together.
        at_one_size: shapes with rows of one size only, where several are wanted, as "gate_up, tp 1: n 512, k 64: m 1".
        gap_from, gap_to: the neighbouring sizes with the largest ratio, of any shape that has a row. The ends of the
            grid are neighbours too.
    """

    axis: str
    wanted: int
    shapes: int
    fewest: int
    found: int
    gap_from: int
    gap_to: int
    at_one_size: Sequence[str] = ()


@dataclass
class ModelCoverage:
    """What a kernel type has of a model.

    Attributes:
        shapes: how many shapes the model gives it.
        missing: dtypes without a row, of each shape as "gate_up, tp 8: n 4608, k 7168".
        sizes: of the axes whose sizes a row tells.
    """

    kernel_type: str
    model: str
    shapes: int = 0
    missing: dict[str, list[str]] = field(default_factory=dict)
    sizes: list[SizesOfAxis] = field(default_factory=list)

    @property
    def present(self) -> int:
        return self.shapes - sum(map(len, self.missing.values()))


@dataclass(frozen=True)
class KernelResult:
    """What became of a kernel type.

    Attributes:
        added: rows that were added, or would be.
        there: rows of the run that the database had already.
        largest_bytes, total_bytes: of the tensors of the largest new row, and of all of them.
        refused: rows left out because the device's kernel was found to refuse them.
        over_budget: points of the grid left out because they need more memory than there is.
        smallest_bytes: of the tensors of the smallest of these; 0 where there are none.
        missing: what none of the models has, for each pattern that gives no row because of that.
        unknown_dtypes: dtypes of rows of the database that nothing was taken from.
        coverage: what the database has of each model; empty where that is not asked for.
    """

    kernel_type: str
    added: int = 0
    there: int = 0
    largest_bytes: int = 0
    total_bytes: int = 0
    refused: int = 0
    over_budget: int = 0
    smallest_bytes: int = 0
    missing: tuple[str, ...] = ()
    unknown_dtypes: tuple[str, ...] = ()
    coverage: tuple[ModelCoverage, ...] = ()

    def with_new(self, sizes: Sequence[int]) -> KernelResult:
        """The same with new rows whose tensors have these sizes, in bytes, and no others."""
        return replace(self, added=len(sizes), largest_bytes=max(sizes, default=0), total_bytes=sum(sizes))

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> KernelResult:
        """What `dataclasses.asdict` made of one."""
        coverage = [
            ModelCoverage(**{**model, "sizes": [SizesOfAxis(**sizes) for sizes in model["sizes"]]})
            for model in values["coverage"]
        ]
        return cls(**{**values, "coverage": tuple(coverage)})
