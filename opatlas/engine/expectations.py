"""What elements of a result must be, where a tensor of numbers does not say it: indices with ties, rounded numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from opatlas.model.errors import WrongResult


@dataclass(frozen=True)
class Picks:
    """Expected of a result that holds indices, where ties allow several answers.

    Attributes:
        source: the tensor indexed, (rows, n).
        values: what `source` must hold at the indices, (rows, k).
        distinct: whether the indices of a row must all differ (a sort's do).
    """

    source: torch.Tensor
    values: torch.Tensor
    distinct: bool = False

    def picked(self, indices: torch.Tensor, what: str, reference: str) -> torch.Tensor:
        """What stands at a result's indices. Raises WrongResult for indices that cannot be."""
        indices = indices.to(torch.int64)
        _expect_within(indices, 0, self.source.shape[-1], what, reference)
        if self.distinct:
            _expect_distinct(indices, what, reference)
        return self.source.gather(-1, indices)


@dataclass(frozen=True)
class Largest:
    """Expected of a result that holds the indices of a row's largest numbers, in any order, each once.

    -1 stands for none, where a row has fewer numbers than are asked for.

    Attributes:
        source: as in Picks; minus infinity where a row has no number.
        values: in descending order, minus infinity where a row has no more.
        slack: by how much of itself and of the root mean square a number may be off whose index is
            taken for one of `values`: the kernel's numbers are not in float64.
    """

    source: torch.Tensor
    values: torch.Tensor
    slack: float = 1e-2

    def picked(self, indices: torch.Tensor, what: str, reference: str) -> torch.Tensor:
        """What stands at a result's indices, in descending order. Raises WrongResult for indices that cannot be."""
        indices = indices.to(torch.int64)
        _expect_within(indices, -1, self.source.shape[-1], what, reference)
        _expect_distinct(indices, what, reference)
        found = self.source.gather(-1, indices.clamp(min=0))
        if bool(((found == -torch.inf) & (indices >= 0)).any()):
            raise WrongResult(f"{what} holds an index at which the reference {reference} has no number")
        return found.masked_fill(indices < 0, -torch.inf).sort(dim=-1, descending=True).values


@dataclass(frozen=True)
class Rounded:
    """Expected of a quantized result: the numbers before they were rounded to whole ones.

    A whole number is right where it is the nearest one. Where `values` lie midway between two,
    float32 may decide for either.

    Attributes:
        values: within the range of the result's dtype, float64.
        slack: how far a kernel's own arithmetic may move a value.
        packed: the result holds eight numbers of four bits in each int32, the first in the lowest bits.
    """

    values: torch.Tensor
    slack: float = 1e-2
    packed: bool = False

    def whole(self, result: torch.Tensor) -> torch.Tensor:
        """The whole numbers of a result, (..., 8 n) of a packed (..., n)."""
        if not self.packed:
            return result
        shifts = torch.arange(0, 32, 4, device=result.device, dtype=torch.int32)
        return (((result.unsqueeze(-1) >> shifts) & 15 ^ 8) - 8).flatten(-2)


#: What a formula may say of a result's elements.
Expected = torch.Tensor | Picks | Largest | Rounded


@dataclass(frozen=True)
class Comparison:
    """Elements of one result and what they should be, both of the same shape.

    Attributes:
        steps: how many operations a kernel may go through, each on what the one before rounded to the
            result's dtype.
    """

    actual: torch.Tensor
    expected: Expected
    exact: bool
    steps: int = 1


def _expect_within(indices: torch.Tensor, least: int, size: int, what: str, reference: str) -> None:
    if bool(((indices < least) | (indices >= size)).any()):
        raise WrongResult(f"{what} holds an index outside 0 ... {size - 1}; the reference {reference} has none")


def _expect_distinct(indices: torch.Tensor, what: str, reference: str) -> None:
    """Among those that are none, which are negative, equal ones are right."""
    ordered = indices.sort(dim=-1).values
    if bool(((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)).any()):
        raise WrongResult(f"{what} holds an index twice; the reference {reference} has each once")
