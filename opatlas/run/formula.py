"""Defines the kinds of formulas in float64, by the inputs that an element of the result needs.

A large result is checked at a sample of its elements, so a formula must be computable for just these:

- `pointwise`: an element of the result needs the elements at the same place, after broadcasting.
- `per_row`: a row (the last axis, or several) needs the same row of some inputs.
- `per_element`: the formula takes the coordinates of the elements.
- `parts`: the formula draws the parts of the result that it computes.

`each` combines formulas for results that are sampled in different ways, `on_lists` applies a formula to lists of
tensors, and `first_rows` leaves out the unused rows at the end of a result.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opatlas.row.errors import WrongResult
from opatlas.run.result_check import Arguments, Comparison, Expected, Formula, Keywords, Results

_Compare = Callable[[Arguments, Keywords, Results, int], "list[Comparison]"]
#: The coordinates of elements: an index tensor for each axis.
At = tuple[torch.Tensor, ...]
#: Maximum number of checked elements of a result. 4096 elements find a formula that is wrong in one element of a
#: thousand with a probability of 98 %, and cost well under a millisecond.
SAMPLED_ELEMENTS = 4096
#: Fewer elements are sampled where an element needs many inputs (a sum over K): about this many inputs are read, which
#: takes some 10 ms, and at least _LEAST_ELEMENTS elements are checked.
READ_INPUTS = 1 << 20
_LEAST_ELEMENTS = 64
#: Minimum number of checked rows of any width: the first and the last row alone would miss mistakes in between.
_LEAST_ROWS = 8


@dataclass(frozen=True)
class _Made:
    """A formula: `name` and `compare` of `Formula`, and the function that it evaluates, if it is not made of others."""

    name: str
    compare: _Compare
    function: Callable[..., Any] | None = None

    def bind(self, **more: Any) -> Formula:
        """Returns this formula with more keyword arguments, which replace the kernel's arguments of the same name.

        A rank of a group computes with the data of other ranks, which its kernel does not get as arguments.
        """

        def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
            return self.compare(arguments, {**keywords, **more}, results, seed)

        return _Made(self.name, compare)


def pointwise(function: Callable[..., Any]) -> Formula:
    """Makes a formula from a function of tensors in float64, broadcast to the result and cut to the sample."""

    def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
        first = _first(results)
        small = first.numel() <= SAMPLED_ELEMENTS
        at = ... if small else _coordinates(first.shape, SAMPLED_ELEMENTS, seed, first.device)

        def at_sample(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return to_float64(value.expand(first.shape)[at])

        expected = function(*map(at_sample, arguments), **{k: at_sample(v) for k, v in keywords.items()})
        return [
            Comparison(result[at], value, exact=False) for result, value in _pair_results(function, results, expected)
        ]

    return _Made(function.__name__, compare, function)


def per_row(
    *rowwise: str, least: int = _LEAST_ROWS, steps: int = 1, axes: Callable[..., int] | None = None
) -> Callable[[Callable[..., Any]], Formula]:
    """Makes a formula from a function that gets the named tensors as (rows, last axis), cut to the sampled rows.

    The other tensors are whole. Real numbers are in float64. The function returns for each result a tensor that
    reshapes to (rows, rest). A keyword parameter `rows` gets the numbers of the rows.

    Args:
        least: minimum number of checked rows of any width.
        steps: see Comparison.
        axes: returns from the arguments how many axes at the end of the first named tensor make a row; default: one.
    """

    def decorate(function: Callable[..., Any]) -> Formula:
        signature = inspect.signature(function)
        missing = set(rowwise) - set(signature.parameters)
        if missing or not rowwise:
            raise TypeError(f"{function.__name__} has no parameter {sorted(missing)}")

        def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
            bound = signature.bind(*arguments, **keywords).arguments
            first, of_a_row = bound[rowwise[0]], axes(*arguments, **keywords) if axes is not None else 1
            count, width = first.shape[:-of_a_row].numel(), first.shape[-of_a_row:].numel()
            rows = sample(count, max(least, SAMPLED_ELEMENTS // max(width, 1)), seed, first.device)

            def cut(name: str, value: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                return to_float64(elements(_as_rows(value, count), (rows,)) if name in rowwise else value)

            numbers = {"rows": rows} if "rows" in signature.parameters else {}
            expected = function(**{name: cut(name, value) for name, value in bound.items()}, **numbers)
            return [
                Comparison(
                    elements(_as_rows(result, count), (rows,)),
                    _as_rows(value, len(rows)) if isinstance(value, torch.Tensor) else value,
                    exact=False,
                    steps=steps,
                )
                for result, value in _pair_results(function, results, expected)
            ]

        return _Made(function.__name__, compare, function)

    return decorate


def per_element(
    *,
    exact: bool = False,
    terms: Callable[..., int] | None = None,
    written: Callable[..., At] | None = None,
    steps: int | Callable[..., int] = 1,
) -> Callable[[Callable[..., Any]], Formula]:
    """Makes a formula from a function that gets an index tensor for each axis of the result, `at`, then the arguments.

    The tensors are whole and in their own dtypes. The function picks the needed inputs and converts them to float64.

    Args:
        exact: whether every element must equal its expected value, as for kernels that only move data.
        terms: returns from the arguments the number of inputs that an element needs; default: few.
        written: for a kernel that changes a small part of a large tensor, returns from the arguments the written
            places, which are sampled, too: an index tensor for each of the first axes, all of one length.
        steps: see Comparison; or a function that returns it from the arguments.
    """

    def decorate(function: Callable[..., Any]) -> Formula:
        def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
            wanted = SAMPLED_ELEMENTS
            if terms is not None:
                affordable = READ_INPUTS // max(terms(*arguments, **keywords), 1)
                wanted = min(wanted, max(affordable, _LEAST_ELEMENTS))
            first = _first(results)
            shape, device = first.shape, first.device
            at = _coordinates(shape, wanted, seed, device)
            if written is not None and shape.numel() > wanted:
                places = written(*arguments, **keywords)
                chosen, *rest = _coordinates((len(places[0]), *shape[len(places) :]), wanted, seed, device)
                at = tuple(map(torch.cat, zip(at, [*(place[chosen] for place in places), *rest], strict=True)))
            expected = function(at, *arguments, **keywords)
            rounded = steps if isinstance(steps, int) else steps(*arguments, **keywords)
            return [
                Comparison(elements(result, at), value, exact, rounded)
                for result, value in _pair_results(function, results, expected)
            ]

        return _Made(function.__name__, compare, function)

    return decorate


def each(*formulas: Formula) -> _Made:
    """Makes a formula from one formula for each result, in order; a call may have fewer results."""
    name = formulas[0].name

    def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
        if len(results) > len(formulas):
            raise WrongResult(f"{len(results)} results, where the formula {name} has {len(formulas)}")
        return [
            comparison
            for formula, result in zip(formulas, results, strict=False)
            if result is not None
            for comparison in formula.compare(arguments, keywords, [result], seed)
        ]

    return _Made(name, compare)


def on_lists(formula: Formula) -> Formula:
    """Makes a formula for a kernel on lists of tensors: `formula` gives result i from the i-th tensor of each list."""

    def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
        lists = [argument for argument in arguments if isinstance(argument, (list, tuple))]
        if any(len(own) != len(results) for own in lists):
            raise WrongResult(f"{len(results)} results of lists of {' and '.join(str(len(own)) for own in lists)}")
        return [
            comparison
            for i, result in enumerate(results)
            if result is not None
            for comparison in formula.compare(
                [own[i] if isinstance(own, (list, tuple)) else own for own in arguments], keywords, [result], seed
            )
        ]

    return _Made(formula.name, compare)


def first_rows(name: str, function: Callable[..., torch.Tensor], formula: Formula) -> Formula:
    """Makes a formula that checks the first rows of a result with `formula`; the other rows are unused.

    Args:
        name: parameter of `formula` for the tensor of `function`.
        function: returns from the arguments, which are passed by name, a tensor with a row for each used row.
    """

    def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
        keywords = {**keywords, name: function(**keywords)}
        count = len(keywords[name])
        if any(len(result) < count for result in results if result is not None):
            raise WrongResult(f"fewer than the {count} rows that the formula {formula.name} has")
        rows = [None if result is None else result[:count] for result in results]
        return formula.compare(arguments, keywords, rows, seed) if count else []

    return _Made(formula.name, compare)


def _first(results: Results) -> torch.Tensor:
    """Returns the first result, which every kernel computes."""
    first = results[0]
    assert first is not None
    return first


def to_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Converts real numbers to float64; integers and booleans stay as they are."""
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def elements(tensor: torch.Tensor, at: At) -> torch.Tensor:
    """Returns tensor[at]. FP8 is indexed as bytes: not every version of torch indexes FP8 on every device."""
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.view(torch.uint8)[at].view(tensor.dtype)
    return tensor[at]


def _as_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Reshapes to (count, rest); `count` is 1 or more."""
    return tensor.reshape(count, -1) if tensor.numel() else tensor.reshape(count, 0)


def _coordinates(shape: Sequence[int], wanted: int, seed: int, device: torch.device) -> At:
    """Returns an index tensor for each axis of a result. (torch.unravel_index does the same, ten times slower.)"""
    rest = sample(math.prod(shape), wanted, seed, device)
    axes: list[torch.Tensor] = []
    for size in reversed(shape[1:]):
        axes.append(rest % size)
        rest = rest // size
    return (rest, *reversed(axes)) if shape else ()


def sample(population: int, wanted: int, seed: int, device: torch.device) -> torch.Tensor:
    """Returns 0 ... population - 1, or `wanted` of these numbers: one from each of as many equal stretches.

    The sample hits any sequence, group or tile that is as long as two stretches, and contains the first and the last
    number.
    """
    if population <= wanted:
        return torch.arange(population, device=device)
    # Drawn on the host, because some devices have no float64, and float32 does not distinguish all places.
    drawn = torch.rand(wanted, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    places = ((drawn + torch.arange(wanted)) * (population / wanted)).to(torch.int64)
    places[0], places[-1] = 0, population - 1
    return places.to(device)


def _pair_results(function: Callable[..., Any], results: Results, expected: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yields each result that the kernel computes, with its expected value.

    Raises:
        WrongResult: the formula has another number of results.
    """
    values = expected if isinstance(expected, tuple) else (expected,)
    if len(values) != len(results):
        raise WrongResult(f"{len(results)} results, where the formula {function.__name__} has {len(values)}")
    return ((result, value) for result, value in zip(results, values, strict=True) if result is not None)


#: Minimum number of checked parts of any cost: fewer parts would leave out most sequences of a batch.
_LEAST_PARTS = 16


@dataclass(frozen=True)
class Part:
    """The expected values of some places of a result.

    Attributes:
        where: an index of the result, of tensors and slices as in torch.
        values: the expected `result[where]`.
        steps: see Comparison.
    """

    where: tuple[Any, ...]
    values: Expected
    steps: int = 1


@dataclass(frozen=True)
class Draw:
    """Chooses all parts, or a seeded sample that contains the first and the last part."""

    seed: int

    def __call__(self, count: int, *, elements: int, terms: int) -> list[int]:
        """Returns numbers below `count`.

        Args:
            elements: number of elements of a part.
            terms: number of inputs that a part needs.
        """
        affordable = max(READ_INPUTS // max(terms, 1), _LEAST_PARTS)
        wanted = min(max(SAMPLED_ELEMENTS // max(elements, 1), _LEAST_PARTS), affordable)
        return sample(count, wanted, self.seed, torch.device("cpu")).tolist()


def parts(view: Callable[..., tuple[torch.Tensor, ...]] | None = None) -> Callable[[Callable[..., Any]], Formula]:
    """Makes a formula from a function that gets a `Draw`, then the arguments, and returns a `Part` for each result.

    The tensors are whole and in their own dtypes. The function picks the needed inputs and converts them to float64.

    Args:
        view: converts the results to as many tensors, which the formula describes; for kernels that may return one
            answer in several forms.
    """

    def decorate(function: Callable[..., Any]) -> Formula:
        def compare(arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
            expected = function(Draw(seed), *arguments, **keywords)
            viewed = view(*results) if view else results
            return [
                Comparison(result[part.where], part.values, exact=False, steps=part.steps)
                for result, part in _pair_results(function, viewed, expected)
            ]

        return _Made(function.__name__, compare, function)

    return decorate
