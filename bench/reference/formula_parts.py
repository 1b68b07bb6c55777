"""The fourth kind of formula (bench/reference/formula.py): it chooses itself which parts of its results it computes.

For kernels where a part of one result, such as the attention of one token and head, costs much and
gives parts of others too, at other places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.reference.expectations import Comparison, Expected
from bench.reference.formula import READ_INPUTS, SAMPLED_ELEMENTS, Formula, paired, sample

#: However much a part costs, so many are checked: with fewer, most sequences of a batch would not be.
_LEAST_PARTS = 16

Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Part:
    """What a result must hold at some places.

    Attributes:
        where: an index of the result: tensors and slices, as torch takes them.
        values: what `result[where]` must be.
    """

    where: tuple[Any, ...]
    values: Expected


@dataclass(frozen=True)
class Draw:
    """Chooses parts: all of them, or a seeded sample that holds the first and the last."""

    seed: int

    def __call__(self, count: int, *, elements: int, terms: int) -> list[int]:
        """Numbers below `count`.

        Args:
            elements: how many elements of a result a part is.
            terms: how many inputs a part needs.
        """
        affordable = max(READ_INPUTS // max(terms, 1), _LEAST_PARTS)
        wanted = min(max(SAMPLED_ELEMENTS // max(elements, 1), _LEAST_PARTS), affordable)
        numbers: list[int] = sample(count, wanted, self.seed, torch.device("cpu")).tolist()
        return numbers


def parts(view: Callable[..., Results] | None = None) -> Callable[[Callable[..., Any]], Formula]:
    """`function(draw, ...)` gets a `Draw`, then the arguments, and returns a `Part` for each result.

    It gets the tensors as they are and goes to float64 after it has picked what it needs.

    Args:
        view: turns the results into what the formula speaks of, as many tensors: for kernels that
            may say one thing in several ways.
    """

    def decorate(function: Callable[..., Any]) -> Formula:
        return _Parts(function.__name__, function, view)

    return decorate


@dataclass(frozen=True)
class _Parts:
    name: str
    function: Callable[..., Any]
    view: Callable[..., Results] | None

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        expected = self.function(Draw(seed), *arguments, **keywords)
        viewed = self.view(*results) if self.view else results
        return [
            Comparison(result[part.where], part.values, exact=False) for result, part in paired(self, viewed, expected)
        ]
