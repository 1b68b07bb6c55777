"""References: a formula in float64, and which inputs an element of its result needs.

A large result is checked on a sample of its elements, so a formula must be computable for just
those. Three kinds cover the kernels:

- `pointwise`: an element of the result comes from the elements at the same place, after broadcasting.
- `per_row`: a row (the last axis, or several) comes from the same row of some inputs.
- `per_element`: the formula itself takes the coordinates of the elements that are asked for.

`each` puts several together, for a kernel whose results are not sampled alike; `on_lists` goes through lists, and
`first_rows` leaves out the room behind what counts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from opatlas.engine.check import Comparison, Expected, Formula
from opatlas.model.errors import WrongResult

#: Elements of one result that are checked when it has more. At 4096 a formula that is wrong in
#: one element of a thousand is seen with 98 % odds, and the check costs well under a millisecond.
SAMPLED_ELEMENTS = 4096
#: Where an element needs many inputs (a sum over K), fewer are sampled: about this many inputs are
#: read in all, which takes some 10 ms, but at least so many elements are checked.
READ_INPUTS = 1 << 20
_LEAST_ELEMENTS = 64
#: However wide a row is, so many are checked: the first and the last alone would miss what is wrong between them.
_LEAST_ROWS = 8


def pointwise(function: Callable[..., Any]) -> Formula:
    """`function` gets its tensors broadcast to the result and cut to the elements asked for, in float64."""
    return _Pointwise(function.__name__, function)


def per_row(
    *rowwise: str, least: int = _LEAST_ROWS, steps: int = 1, axes: Callable[..., int] | None = None
) -> Callable[[Callable[..., Any]], Formula]:
    """`function` gets the named tensors as (rows, last axis), cut to the rows asked for.

    The other tensors come whole; all real numbers in float64. It returns, for each result, a
    tensor that reshapes to (rows, rest). A keyword parameter `rows` gets the numbers of the rows.

    Args:
        least: so many rows are checked of a large result, however wide they are.
        steps: see Comparison.
        axes: given the same arguments, how many axes at the end of the first named tensor make a row. Default: one.
    """

    def decorate(function: Callable[..., Any]) -> Formula:
        missing = set(rowwise) - set(inspect.signature(function).parameters)
        if missing or not rowwise:
            raise TypeError(f"{function.__name__} has no parameter {sorted(missing)}")
        return _PerRow(function.__name__, function, rowwise, least, steps, axes)

    return decorate


def per_element(
    *,
    exact: bool = False,
    terms: Callable[..., int] | None = None,
    written: Callable[..., tuple[torch.Tensor, ...]] | None = None,
    steps: int = 1,
) -> Callable[[Callable[..., Any]], Formula]:
    """`function(at, ...)` gets, as `at`, one index tensor per axis of the result, then the arguments.

    It gets the tensors as they are (they may be large) and goes to float64 after it has picked
    what it needs.

    Args:
        exact: the result must be equal to the letter: kernels that only move data.
        terms: given the same arguments, how many inputs an element needs, where that is many.
        written: given the same arguments, where a kernel writes that changes little of a large
            tensor: an index tensor for each of its first axes, all of one length. These places are
            sampled besides the whole, which alone would hardly ever hit one.
        steps: see Comparison.
    """

    def decorate(function: Callable[..., Any]) -> Formula:
        return _PerElement(function.__name__, function, exact, terms, written, steps)

    return decorate


def each(*formulas: Formula) -> _Each:
    """A formula for each result, in order; a call may have fewer results."""
    return _Each(formulas[0].name, formulas)


def on_lists(formula: Formula) -> Formula:
    """For a kernel on lists of tensors: result i comes from the i-th tensor of each list, by `formula`."""
    return _OnLists(formula.name, (formula,))


def first_rows(name: str, function: Callable[..., torch.Tensor], formula: Formula) -> Formula:
    """For a result with room for more rows than count: `formula`, of as many of them as `function` has.

    Args:
        function: given the arguments by name, a tensor with a row for each.
        name: under which `formula` gets the tensor.
    """
    return _FirstRows(formula.name, name, (function,), (formula,))


@dataclass(frozen=True)
class _Pointwise:
    name: str
    function: Callable[..., Any]

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        small = results[0].numel() <= SAMPLED_ELEMENTS
        at = ... if small else _coordinates(results[0].shape, SAMPLED_ELEMENTS, seed, results[0].device)

        def at_sample(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return to_float64(value.expand(results[0].shape)[at])

        expected = self.function(*map(at_sample, arguments), **{k: at_sample(v) for k, v in keywords.items()})
        return [Comparison(result[at], value, exact=False) for result, value in paired(self, results, expected)]


@dataclass(frozen=True)
class _PerRow:
    name: str
    function: Callable[..., Any]
    rowwise: tuple[str, ...]
    least: int
    steps: int
    axes: Callable[..., int] | None

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        bound = _signature(self.function).bind(*arguments, **keywords).arguments
        first = bound[self.rowwise[0]]
        axes = self.axes(*arguments, **keywords) if self.axes is not None else 1
        count, width = first.shape[:-axes].numel(), first.shape[-axes:].numel()
        rows = sample(count, max(self.least, SAMPLED_ELEMENTS // max(width, 1)), seed, first.device)

        def cut(name: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return to_float64(_as_rows(value, count)[rows] if name in self.rowwise else value)

        numbers = {"rows": rows} if "rows" in _signature(self.function).parameters else {}
        expected = self.function(**{name: cut(name, value) for name, value in bound.items()}, **numbers)
        return [
            Comparison(
                _as_rows(result, count)[rows],
                _as_rows(value, len(rows)) if isinstance(value, torch.Tensor) else value,
                exact=False,
                steps=self.steps,
            )
            for result, value in paired(self, results, expected)
        ]


@dataclass(frozen=True)
class _PerElement:
    name: str
    function: Callable[..., Any]
    exact: bool
    terms: Callable[..., int] | None
    written: Callable[..., tuple[torch.Tensor, ...]] | None
    steps: int

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        wanted = SAMPLED_ELEMENTS
        if self.terms is not None:
            affordable = READ_INPUTS // max(self.terms(*arguments, **keywords), 1)
            wanted = min(wanted, max(affordable, _LEAST_ELEMENTS))
        shape, device = results[0].shape, results[0].device
        at = _coordinates(shape, wanted, seed, device)
        if self.written is not None and shape.numel() > wanted:
            places = self.written(*arguments, **keywords)
            chosen, *rest = _coordinates((len(places[0]), *shape[len(places) :]), wanted, seed, device)
            at = tuple(map(torch.cat, zip(at, [*(place[chosen] for place in places), *rest], strict=True)))
        expected = self.function(at, *arguments, **keywords)
        return [
            Comparison(result[at], value, self.exact, self.steps) for result, value in paired(self, results, expected)
        ]


@dataclass(frozen=True)
class _Each:
    name: str
    formulas: tuple[Formula, ...]

    def bind(self, **keywords: Any) -> Formula:
        """This formula with arguments besides, or instead of, those that the kernel was called with by name.

        A rank of a group computes with what the others send it; its reference is given that.
        """
        return _Bound(self.name, (self,), keywords)

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        if len(results) > len(self.formulas):
            raise WrongResult(f"{len(results)} results, where the reference {self.name} has {len(self.formulas)}")
        return [
            comparison
            for formula, result in zip(self.formulas, results, strict=False)
            for comparison in formula.compare(arguments, keywords, [result], seed)
        ]


@dataclass(frozen=True)
class _Bound:
    name: str
    formulas: tuple[Formula]
    keywords: dict[str, Any]

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        return self.formulas[0].compare(arguments, {**keywords, **self.keywords}, results, seed)


@dataclass(frozen=True)
class _FirstRows:
    name: str
    argument: str
    functions: tuple[Callable[..., torch.Tensor]]
    formulas: tuple[Formula]

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        keywords = {**keywords, self.argument: self.functions[0](**keywords)}
        count = len(keywords[self.argument])
        if any(len(result) < count for result in results):
            raise WrongResult(f"fewer than the {count} rows that the reference {self.name} has")
        rows = [result[:count] for result in results]
        return self.formulas[0].compare(arguments, keywords, rows, seed) if count else []


@dataclass(frozen=True)
class _OnLists:
    name: str
    formulas: tuple[Formula, ...]

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        lists = [argument for argument in arguments if isinstance(argument, (list, tuple))]
        if any(len(own) != len(results) for own in lists):
            raise WrongResult(f"{len(results)} results of lists of {' and '.join(str(len(own)) for own in lists)}")
        return [
            comparison
            for i, result in enumerate(results)
            for comparison in self.formulas[0].compare(
                [own[i] if isinstance(own, (list, tuple)) else own for own in arguments], keywords, [result], seed
            )
        ]


_signature = cache(inspect.signature)


def to_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Real numbers in float64; integers and booleans as they are."""
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _as_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """(count, rest), whatever the axes were; `count` is 1 or more."""
    return tensor.reshape(count, -1) if tensor.numel() else tensor.reshape(count, 0)


def _coordinates(shape: Sequence[int], wanted: int, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """One index tensor per axis of a result. (torch.unravel_index does the same, ten times slower.)"""
    rest = sample(math.prod(shape), wanted, seed, device)
    axes: list[torch.Tensor] = []
    for size in reversed(shape[1:]):
        axes.append(rest % size)
        rest = rest // size
    return (rest, *reversed(axes)) if shape else ()


def sample(population: int, wanted: int, seed: int, device: torch.device) -> torch.Tensor:
    """All of 0 ... population - 1, or `wanted` of them: one of each of as many equal stretches.

    So what is wrong in all of a sequence, a group or a tile is met wherever that lies, if it is no
    shorter than two stretches. The first and the last are always among them.
    """
    if population <= wanted:
        return torch.arange(population, device=device)
    # Drawn on the host: not every device has float64, and float32 cannot tell the places of a large result.
    drawn = torch.rand(wanted, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    places = ((drawn + torch.arange(wanted)) * (population / wanted)).to(torch.int64)
    places[0], places[-1] = 0, population - 1
    return places.to(device)


def paired(formula: Formula, results: Sequence[torch.Tensor], expected: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Each result with what it should be."""
    values = expected if isinstance(expected, tuple) else (expected,)
    if len(values) != len(results):
        raise WrongResult(f"{len(results)} results, where the reference {formula.name} has {len(values)}")
    return zip(results, values, strict=True)


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
