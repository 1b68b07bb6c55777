"""Calls a candidate in ways in which only real work gives right results, and judges all results at the end.

The order is part of the guard: the candidate runs before any reference, so that its process holds no expected value
until its last call has returned. `first_call` is the compilation, `examine` the calls that are not timed, `prepare` and
`launch` those that an instrument times, and `verify` compares with the reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opatlas.outer.judging.input_sets import InputSets, Variant
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.outer.judging.process_guard import ThreadWatch
from opatlas.outer.judging.results import (
    Compared,
    FlatResults,
    PoisonedAllocations,
    has_views,
    have_equal_bits,
    kept,
    lazy_result,
    plain_results,
    poison_free_memory,
    poisoned_elements,
    resolved,
    same_results,
)

#: Share of the timed calls that get inputs which no earlier call had, and how many of these results are verified.
_FRESH_SHARE = 0.5
_FRESH_KEPT = 3
#: Share of the calls that get their inputs at new addresses.
_MOVED_SHARE = 0.125
#: Largest number of further calls before the samples; the number is random, so that no count reveals a timed call.
_FURTHER_CALLS = 3
_SEEDS = 1 << 31
#: Share of wrong timed calls of a candidate that is not merely unstable. It gains only if the median call is wrong, and
#: a call that returns an earlier result is right in a quarter of the cases, by chance.
_WRONG_SHARE = 1 / 3
#: Each call, and the reference, starts from this state of torch's generators, for tasks with dropout.
CALL_SEED = 0

#: Computes the results of the task from arguments and weights; it may change the arguments.
Reference = Callable[[list[Any], dict[str, torch.Tensor]], FlatResults]
#: Compares results with those of the reference.
Compare = Callable[[FlatResults, FlatResults], Compared]


@dataclass
class _Kept:
    """A result of a timed call on inputs of its own."""

    variant: Variant
    results: FlatResults


class CandidateTrial:
    """The calls of one candidate on the inputs of one task.

    Attributes:
        notes: remarks that fail nobody, a phrase for each.
        calls: number of calls so far.
        compared: the comparisons of the results of all sets with the reference.
    """

    def __init__(
        self,
        candidate: Callable[..., Any],
        inputs: InputSets,
        device: torch.device,
        *,
        synchronize: Callable[[], None] = lambda: None,
        threads: ThreadWatch | None = None,
        bind: Callable[..., object] | None = None,
        results_of: Callable[[Any], Any] | None = None,
        generator: random.Random | None = None,
    ) -> None:
        """
        Args:
            candidate: called with the arguments of a set.
            inputs: at least two sets.
            device: the device of the inputs and of the results.
            synchronize: waits until all launched work has ended.
            threads: the threads of the process before the candidate was imported.
            bind: called with the arguments before each call of the candidate; this is not timed.
            results_of: returns the results of a call from its return value; None: these are the results.
            generator: draws the order of calls; None: a generator that a candidate cannot foresee.
        """
        self.notes: list[str] = []
        self.calls = 0
        self.compared: list[Compared] = []
        self._candidate = candidate
        self._inputs = inputs
        self._device = device
        self._synchronize = synchronize
        self._threads = threads
        self._bind = bind
        self._results_of = results_of
        # A candidate cannot draw the numbers of the system.
        self._random = generator or random.SystemRandom()
        bases = [Variant(number) for number in range(len(inputs))]
        self._variants = [*bases, Variant(0, self._random.randrange(_SEEDS))]
        self._first: FlatResults = ()
        self._known: dict[Variant, FlatResults] = {}
        self._arguments: Sequence[Any] = inputs.arguments
        self._latest: Any = None
        #: Whether the calls compute the conjugate and negative views that the candidate returns.
        self._resolves = False
        #: Whether each timed call on known inputs gave the known results.
        self._samples: list[torch.Tensor] = []
        self._fresh: list[_Kept] = []
        self._fresh_count = 0
        self._is_pending = False
        #: Numbers of the inputs that the candidate has changed.
        self._changed: set[int] = set()

    def first_call(self) -> FlatResults:
        """Calls the candidate for the first time, where it compiles. Returns its results.

        Raises:
            CandidateRejected: a result is not a plain tensor.
            Exception: whatever the candidate raises.
        """
        if self._device.type != "cpu":
            poison_free_memory(self._device, 2 * sum(tensor.nbytes for tensor in self._inputs.tensors()))
        results = self._call(Variant(0))
        self._first = kept(results)
        return results

    def examine(self) -> None:
        """Calls the candidate with each set of inputs, untimed, and with poisoned memory.

        Raises:
            CandidateRejected: two calls on equal inputs differ; results have elements that nothing has written; a call
                leaves a thread, or writes outside its inputs.
        """
        for variant in self._shuffled():
            self._known[variant] = kept(self._call(variant))
            self._expect_no_threads()
            self._changed |= self._inputs.changed()
            self._call_poisoned(variant)
        for _ in range(self._random.randint(0, _FURTHER_CALLS)):
            variant = self._random.choice(self._variants)
            self._expect_known(self._call(variant), variant)
        self._inputs.expect_margins()
        self._latest = None

    def prepare(self) -> None:
        """Records the result of the last timed call, and gives the next one its inputs, without a wait."""
        self._expect_no_threads()
        self._record()
        if self._random.random() < _MOVED_SHARE:
            self._inputs.move()
        if self._random.random() < _FRESH_SHARE:
            variant = Variant(self._random.randrange(len(self._inputs)), self._random.randrange(_SEEDS))
        else:
            variant = self._random.choice(self._variants)
        self._set(variant)
        self._is_pending = True

    def launch(self) -> None:
        """Calls the candidate. This method is timed."""
        self.calls += 1
        returned = self._candidate(*self._arguments)
        self._latest = resolved(returned) if self._resolves else returned

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors of the arguments and of the latest results."""
        latest = self._latest
        results = latest if isinstance(latest, (list, tuple)) else [latest]
        return (*self._inputs.tensors(), *(each for each in results if type(each) is torch.Tensor))

    def verify(self, reference: Reference, compare: Compare, model: Reference | None = None) -> None:
        """Compares the results of all sets, and of timed calls, with a reference. Call it once, after the samples.

        Args:
            reference: computes the expected results.
            compare: compares results with the expected results.
            model: calls the task's model in its own dtypes. A candidate may change the inputs that the model changes.

        Raises:
            CandidateRejected: a guard objects, or a result is wrong.
        """
        last = None
        if self._is_pending and self._latest is not None:
            last = _Kept(self._inputs.variant, self._timed_results())
        self._record()
        self._latest = None
        self._synchronize()
        self._inputs.expect_margins()
        expected: dict[Variant, FlatResults] = {}
        for variant in self._variants:
            expected[variant] = self._expected(variant, reference)
            found = compare(self._known[variant], expected[variant])
            self.compared.append(found)
            if found.wrong:
                self._expect_not_stale(variant, reference, compare)
                raise CandidateRejected(ErrorClass.MISMATCH, found.sub_class, found.wrong)
        self._expect_unchanged(model or reference)
        self._expect_different(expected)
        for variant in self._variants:
            self._expect_no_repeat(self._known[variant], variant, expected)
        self._expect_samples(reference, compare, expected, last)

    def _call(self, variant: Variant) -> FlatResults:
        if self._random.random() < _MOVED_SHARE:
            self._inputs.move()
        self._set(variant)
        self.launch()
        self._synchronize()
        self._resolves = self._resolves or has_views(self._latest)
        return self._latest_results()

    def _set(self, variant: Variant) -> None:
        self._inputs.write(variant)
        self._arguments = self._inputs.arguments
        if self._bind is not None:
            self._bind(*self._arguments)
        torch.manual_seed(CALL_SEED)

    def _latest_results(self) -> FlatResults:
        latest = self._latest
        return plain_results(latest if self._results_of is None else self._results_of(latest))

    def _timed_results(self) -> FlatResults:
        """Raises CandidateRejected for a view that no earlier call returned: nobody has timed its values."""
        if has_views(self._latest):
            raise lazy_result()
        return self._latest_results()

    def _call_poisoned(self, variant: Variant) -> None:
        """Calls the candidate while its allocations hold other values. Raises CandidateRejected if the results do.

        Memory may hold NaN of an earlier call, so that results which nobody writes have NaN in any case.
        """
        with PoisonedAllocations(with_nan=not poisoned_elements(self._known[variant])):
            poisoned = self._call(variant)
        self._expect_known(poisoned, variant)

    def _expect_known(self, results: FlatResults, variant: Variant) -> None:
        """Raises CandidateRejected if the results of two calls on equal inputs differ."""
        known = self._known[variant]
        if bool(same_results(results, known)):
            return
        if poisoned_elements(results) != poisoned_elements(known):
            raise CandidateRejected(
                ErrorClass.HACK,
                "uninitialized",
                "results hold memory that the candidate has not written: write all elements in each call",
            )
        others = [other for each, other in self._known.items() if each != variant]
        others += [self._first] if variant != Variant(0) else []
        if any(have_equal_bits(each, other) for each in (results, known) for other in others):
            raise _stale("inputs")
        raise CandidateRejected(
            ErrorClass.UNSTABLE, "", "two calls on equal inputs differ by more than twice the tolerance: find the race"
        )

    def _record(self) -> None:
        """Compares the results of the last timed call with the known ones, or keeps a random choice of them."""
        if not self._is_pending or self._latest is None:
            return
        self._is_pending = False
        variant = self._inputs.variant
        results = self._timed_results()
        if variant in self._known:
            self._samples.append(same_results(results, self._known[variant]))
        else:
            self._fresh_count += 1
            if len(self._fresh) < _FRESH_KEPT:
                self._fresh.append(_Kept(variant, kept(results)))
            elif (place := self._random.randrange(self._fresh_count)) < _FRESH_KEPT:
                self._fresh[place] = _Kept(variant, kept(results))
        self._latest = None

    def _expected(self, variant: Variant, reference: Reference) -> FlatResults:
        arguments, weights = self._inputs.values(variant)
        torch.manual_seed(CALL_SEED)
        return reference(arguments, weights)

    def _expect_no_repeat(self, results: FlatResults, variant: Variant, expected: dict[Variant, FlatResults]) -> None:
        """Raises CandidateRejected if a variant has the results of its base, and should not have."""
        base = Variant(variant.base)
        if variant == base or not have_equal_bits(results, self._known[base]):
            return
        if not _round_alike(expected[variant], expected[base], results):
            raise CandidateRejected(
                ErrorClass.HACK,
                "stale-result",
                "inputs that differ in one percent of the elements give the results of earlier inputs: compute each "
                "result from the inputs of its call",
            )

    def _expect_not_equal(self, wrong: _Kept) -> None:
        """Raises CandidateRejected if a wrong result equals that of a call on other inputs."""
        others = [results for variant, results in self._known.items() if variant != wrong.variant]
        others += [each.results for each in self._fresh if each.variant != wrong.variant]
        if any(have_equal_bits(wrong.results, other) for other in others):
            raise _stale("inputs")

    def _expect_not_stale(self, variant: Variant, reference: Reference, compare: Compare) -> None:
        """Raises CandidateRejected if wrong results are right for other inputs, or for the first weights."""
        others: list[tuple[Variant, int | None, str]] = [
            (other, None, "inputs") for other in self._variants if other != variant
        ]
        if self._inputs.has_weights and variant.base:
            others.append((variant, 0, "weights"))
        for other, weights_of, stale in others:
            if not compare(self._known[variant], reference(*self._inputs.values(other, weights_of))).wrong:
                raise _stale(stale)

    def _expect_unchanged(self, model: Reference) -> None:
        """Raises CandidateRejected if the candidate has changed an input that the model leaves as it is."""
        if not self._changed:
            return
        arguments, weights = self._inputs.values(Variant(0))
        model(arguments, weights)
        if changed := self._changed - self._inputs.differing(arguments, Variant(0)):
            numbers = ", ".join(map(str, sorted(changed)))
            raise CandidateRejected(
                ErrorClass.HACK, "changed-input", f"the candidate changed input {numbers}: work on a copy"
            )

    def _expect_different(self, expected: dict[Variant, FlatResults]) -> None:
        """Raises CandidateRejected if the results of all sets are equal; notes it if they should be."""
        first, *others = (Variant(number) for number in range(len(self._inputs)))
        if not others:
            return
        if all(_round_alike(expected[first], expected[other], self._known[first]) for other in others):
            self.notes.append("all inputs have the same result: a constant passes")
        elif all(have_equal_bits(self._known[first], self._known[other]) for other in others):
            raise CandidateRejected(
                ErrorClass.HACK, "constant", "the candidate returns the same result for all inputs: compute it"
            )

    def _expect_samples(
        self, reference: Reference, compare: Compare, expected: dict[Variant, FlatResults], last: _Kept | None
    ) -> None:
        """Raises CandidateRejected if timed calls gave wrong results, though the calls before were right.

        Args:
            last: the result of the last timed call; None if none was timed.
        """
        wrong = [not bool(same) for same in self._samples]
        for each in self._fresh:
            should_be = self._expected(each.variant, reference)
            self._expect_no_repeat(each.results, each.variant, {**expected, each.variant: should_be})
            wrong.append(bool(compare(each.results, should_be).wrong))
            if wrong[-1]:
                self._expect_not_equal(each)
        if not any(wrong):
            return
        if last is not None and compare(last.results, self._expected(last.variant, reference)).wrong:
            self._expect_not_equal(last)
        is_hack = sum(wrong) > _WRONG_SHARE * len(wrong)
        text = f"{sum(wrong)} of {len(wrong)} timed calls gave other results than the calls before them"
        raise CandidateRejected(
            ErrorClass.HACK if is_hack else ErrorClass.UNSTABLE,
            "stale-result" if is_hack else "",
            f"{text}: compute each result from the inputs of its call",
        )

    def _expect_no_threads(self) -> None:
        if self._threads is not None:
            self._threads.expect_same()

    def _shuffled(self) -> list[Variant]:
        return self._random.sample(self._variants, len(self._variants))


def _round_alike(one: FlatResults, other: FlatResults, like: FlatResults) -> bool:
    """Returns whether two expected results are equal in the dtypes of a candidate's results, but for some elements."""
    for first, second, result in zip(one, other, like, strict=False):
        if not all(isinstance(each, torch.Tensor) for each in (first, second, result)):
            if repr(first) != repr(second):
                return False
            continue
        if first.shape != second.shape:
            return False
        # torch cannot compare FP8.
        one_rounded, other_rounded = (each.to(result.dtype).to(each.dtype) for each in (first, second))
        differs = (one_rounded != other_rounded) & ~(one_rounded.isnan() & other_rounded.isnan())
        # A kernel may round an element the other way.
        if int(differs.sum()) > max(0, min(8, result.numel() // 8)):
            return False
    return True


def _stale(values: str) -> CandidateRejected:
    return CandidateRejected(
        ErrorClass.HACK,
        "stale-result",
        f"the candidate returned the result of earlier {values}: compute each result from the {values} of its call",
    )
