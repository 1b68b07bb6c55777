"""What a run does to a kernel type: plain values, which travel between processes and need no other library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Density:
    """How far apart the sizes of an axis are, where they are furthest apart.

    Attributes:
        axis: the variable.
        sizes: how many different ones the shape that has the fewest has.
        gap_from, gap_to: the neighbours with the largest difference, of any shape.
        ratio_from, ratio_to: those with the largest ratio.
    """

    axis: str
    sizes: int
    gap_from: int
    gap_to: int
    ratio_from: int
    ratio_to: int

    @property
    def gap(self) -> int:
        return self.gap_to - self.gap_from

    @property
    def ratio(self) -> float:
        return self.ratio_to / self.ratio_from


@dataclass
class ModelCoverage:
    """What a kernel type has of a model.

    Attributes:
        shapes: how many shapes the model gives it.
        missing: what is not in the database, as "gate_up, tp 8: n 4608, k 7168".
        densities: of the axes whose sizes a row tells; of the shapes that are there.
    """

    kernel_type: str
    model: str
    shapes: int = 0
    missing: list[str] = field(default_factory=list)
    densities: list[Density] = field(default_factory=list)

    @property
    def present(self) -> int:
        return self.shapes - len(self.missing)


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
            ModelCoverage(**{**model, "densities": [Density(**density) for density in model["densities"]]})
            for model in values["coverage"]
        ]
        return cls(**{**values, "coverage": tuple(coverage)})
