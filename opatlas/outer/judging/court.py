"""Makes the inputs of each call of a candidate, and compares its results, where the candidate never ran.

The candidate's process gets inputs, and gives bytes back: it holds neither the seeds, nor the reference, nor what is
compared. Each call has inputs that no earlier call had. Times are read here as well: from the moment at which inputs
become known until the results have been read.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import clock_gettime_ns, perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from opatlas.outer.judging import memory as shared
from opatlas.outer.judging.judgement import CandidateRejected, CourtVerdict, ErrorClass, ReferenceFailed
from opatlas.outer.judging.results import (
    Compared,
    FlatResults,
    have_equal_bits,
    interface_problem,
    is_narrower,
    same_bits,
    same_results,
)
from opatlas.text import exception_line

SEEDS = 1 << 30
#: Share of the elements that a change of inputs concerns which are the same for all seeds.
_SHARE = 0.01
#: The same of inputs near others: few enough that a fingerprint of some elements hardly ever sees them.
_NEAR_SHARE = 0.002
#: Elements of a result of a timed call that are compared: a share of 1e-3 that is wrong is missed in exp(-4) of calls.
_ELEMENTS = 4096
#: Share of wrong timed calls of a candidate that is not merely unstable.
_WRONG_SHARE = 1 / 3
#: A candidate may return wider dtypes, which take up to four times the room of the reference's.
_ROOM_FACTOR = 4


class Referee(ABC):
    """Inputs and reference of a row.

    Attributes:
        notes, assumptions: phrases about the reference.
        varies_all: whether inputs that do not follow from the seed are changed by the referee.
        checks_dtypes: whether the dtypes of the results must be the reference's; else they must not be narrower.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.assumptions: list[str] = []
        self.checks_dtypes = True
        self.varies_all = False

    @abstractmethod
    def make(self, seed: int, number: int) -> list[Any]:
        """Returns the arguments of call `number`, the same for equal seeds. Raises ReferenceFailed."""

    @abstractmethod
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Returns the parameters of the reference by name."""

    @abstractmethod
    def native(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        """Returns the results in the row's dtypes; it may change the arguments. Raises ReferenceFailed."""

    @abstractmethod
    def expected(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        """Returns the results that are compared. Raises ReferenceFailed."""

    @abstractmethod
    def compare(self, results: FlatResults, expected: FlatResults) -> Compared:
        """Compares results of the reference's shapes."""


class _Moment(NamedTuple):
    """A moment, in nanoseconds.

    Attributes:
        clock: the time; 0: not yet.
        ran: the time that the threads of the candidate's process have had a processor.
        waited: the time that its main thread and the court's have waited for one.
    """

    clock: int = 0
    ran: int = 0
    waited: int = 0

    @classmethod
    def now(cls, pid: int) -> _Moment:
        """Returns this moment, with what Linux says of the process (proc(5), sched-stats); else nobody has waited."""
        clock, ran, waited = perf_counter_ns(), 0, 0
        with suppress(OSError, IndexError):
            ran = clock_gettime_ns(~pid << 3 | _CPU_TIME)
            waited = sum(int(Path(f"/proc/{each}/schedstat").read_bytes().split()[1]) for each in {pid, os.getpid()})
        return cls(clock, ran, waited)


_NEVER = _Moment()
#: In the number of a clock: the time that all threads of a process had (CPUCLOCK_SCHED of Linux).
_CPU_TIME = 2


@dataclass
class _Call:
    """A call.

    Attributes:
        results: those that were read; of a timed call the elements at `places`, where there are many.
        forms: what was returned.
        changed: places of the inputs that differ after the call.
    """

    purpose: shared.Purpose
    seed: int
    number: int
    has_weights: bool
    near: int = 0
    known: _Moment = _NEVER
    end: _Moment = _NEVER
    claimed_us: float | None = None
    results: list[Any] = field(default_factory=list)
    places: list[torch.Tensor | None] = field(default_factory=list)
    forms: tuple[shared.Leaf, ...] = ()
    changed: frozenset[int] = frozenset()

    @property
    def bracket_us(self) -> float:
        """The microseconds from its inputs to its results."""
        return (self.end.clock - self.known.clock) / 1e3

    @property
    def waited_us(self) -> float:
        """The microseconds of these in which no thread of the candidate ran, but one or the court waited to run."""
        clock, ran, waited = (end - known for end, known in zip(self.end, self.known, strict=True))
        return max(0, min(waited, clock - ran)) / 1e3


class Court:
    """The calls of a candidate on one row, and the verdict on them.

    Attributes:
        memory: has the inputs of a call, and from `results_start` on its results, and the inputs after it.
        found: the verdict, after `end`.
    """

    def __init__(
        self, referee: Referee, weights_seed: int = 0, path: Path | None = None, pid: int | None = None
    ) -> None:
        """Makes the first inputs and results, which say how much memory is needed. Raises ReferenceFailed.

        Args:
            referee: of the row.
            weights_seed: the seed of its weights, which a candidate may use, too.
            path: the file of the memory; None: the candidate runs in this process, where nobody is judged.
            pid: the candidate's process; None: this one.
        """
        self._referee = referee
        self._pid = pid or os.getpid()
        self.weights_seed = weights_seed
        self.found: CourtVerdict | None = None
        self._random = random.SystemRandom()
        self._first_seed = self._random.randrange(SEEDS)
        self._first: list[Any] | None = None
        self._calls: list[_Call] = []
        self._compared: list[Compared] = []
        self._notes: list[str] = []
        arguments, _ = self._values(_Call(shared.Purpose.REHEARSAL, self._first_seed, 0, False))
        self.results_start = shared.room(tree_flatten(arguments)[0]) + shared.room(referee.weights().values())
        torch.manual_seed(shared.CALL_SEED)
        self._native = referee.native(arguments, {})
        self._least = _least_dtypes(self._native, tree_flatten(arguments)[0], referee.checks_dtypes)
        # The inputs come back after a call that is not timed.
        size = 2 * self.results_start + _ROOM_FACTOR * shared.room(self._native)
        self.memory = shared.SharedMemory(size, path, is_new=True)

    def _values(self, call: _Call) -> tuple[list[Any], dict[str, torch.Tensor]]:
        """Returns arguments and weights of a call; the same each time."""
        arguments = self._referee.make(call.seed, call.number)
        leaves, structure = tree_flatten(arguments)
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and not shared.is_dense(leaf):
                raise ReferenceFailed(f"an input has the layout {leaf.layout}: candidates get strided tensors only")
        first = self._first
        if first is None:
            self._first = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        elif call.number and not self._referee.varies_all:
            for place, (leaf, other) in enumerate(zip(leaves, first, strict=False)):
                # A task may return the same tensor, whatever the seed.
                if shared.may_vary(leaf) and isinstance(other, torch.Tensor) and same_bits(leaf, other):
                    leaves[place] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
                    shared.vary(leaves[place], call.seed + place, _SHARE)
        for place, leaf in enumerate(leaves if call.near else ()):
            if shared.may_vary(leaf):
                shared.vary(leaf, call.near + place, 1.0 if self._referee.varies_all else _NEAR_SHARE)
        weights = {}
        for place, (name, weight) in enumerate(self._referee.weights().items() if call.has_weights else ()):
            weights[name] = weight.detach().clone()
            if call.number and shared.may_vary(weight):
                shared.vary(weights[name], call.seed ^ place, _SHARE)
        return tree_unflatten(leaves, structure), weights

    def ask(self, purpose: shared.Purpose, has_weights: bool) -> shared.Inputs:
        """Writes the inputs of a call into the memory, and weights if the candidate has those of the reference."""
        number = len(self._calls)
        call = _Call(purpose, self._random.randrange(SEEDS) if number else self._first_seed, number, has_weights)
        if purpose in (shared.Purpose.AGAIN, shared.Purpose.NEAR):
            before = self._calls[-1]
            near = self._random.randrange(1, SEEDS) if purpose is shared.Purpose.NEAR else before.near
            call = replace(call, seed=before.seed, number=before.number, near=near)
        arguments, weights = self._values(call)
        leaves = tree_flatten(arguments)[0]
        self._calls.append(call)
        call.known = _Moment.now(self._pid)
        found = self.memory.write([*leaves, *weights.values()])
        forms = dict(zip(weights, found[len(leaves) :], strict=True))
        results = self._native if purpose is shared.Purpose.REHEARSAL else ()
        named = {name: form for name, form in forms.items() if isinstance(form, shared.TensorForm)}
        return shared.Inputs(tuple(found[: len(leaves)]), named, tuple(map(shared.leaf_of, results)))

    def returned(
        self, results: Sequence[shared.Leaf], inputs: Sequence[shared.Leaf] | None, claimed_us: float | None
    ) -> None:
        """Reads the results of the call, and notes its end."""
        call = self._calls[-1]
        call.claimed_us = claimed_us
        call.forms = tuple(results)
        shapes = {tuple(each.shape) for each in self._native if isinstance(each, torch.Tensor)}
        for leaf in results:
            value, places = leaf.object if isinstance(leaf, shared.Plain) else None, None
            # Another form is refused at the end, and may claim any size.
            if isinstance(leaf, shared.TensorForm) and leaf.offset >= 0 and leaf.shape in shapes:
                value = self.memory.read(leaf)
                if call.purpose in (shared.Purpose.TIMED, shared.Purpose.REHEARSAL) and value.numel() > _ELEMENTS:
                    generator = torch.Generator().manual_seed(self._random.randrange(SEEDS))
                    places = torch.randint(value.numel(), (_ELEMENTS,), generator=generator)
                    value = value.reshape(-1)[places]
                value = value.clone()
            call.results.append(value)
            call.places.append(places)
        call.end = _Moment.now(self._pid)
        if inputs is not None and call.purpose is shared.Purpose.WHOLE:
            after = [self.memory.read(leaf) if isinstance(leaf, shared.TensorForm) else None for leaf in inputs]
            call.changed = self._changes(call, after)
        if call.purpose is shared.Purpose.REHEARSAL:
            call.results.clear()

    def _changes(self, call: _Call, after: Sequence[Any]) -> frozenset[int]:
        """Returns the places of the inputs of a call that differ after it."""
        before = tree_flatten(self._values(call)[0])[0]
        return frozenset(
            place
            for place, (own, other) in enumerate(zip(before, after, strict=False))
            if isinstance(own, torch.Tensor) and other is not None and not same_bits(own.cpu(), other.cpu())
        )

    def end(self) -> None:
        """Compares the results of all calls with the reference: no call follows."""
        error_class, sub_class, text, failure = ErrorClass.PASS, "", "", ""
        try:
            self._judge(
                [call for call in self._calls if call.purpose is not shared.Purpose.REHEARSAL and call.end.clock]
            )
        except CandidateRejected as error:
            error_class, sub_class, text = error.error_class, error.sub_class, str(error)
        except ReferenceFailed as error:
            failure = str(error)
        except (ValueError, RuntimeError, TypeError) as error:
            # Forms are what the candidate's process says.
            failure = f"the results cannot be compared: {exception_line(error)}"
        timed = [call for call in self._calls if call.purpose is shared.Purpose.TIMED and call.end.clock]
        rehearsed = [
            call.bracket_us - call.waited_us
            for call in self._calls
            if call.purpose is shared.Purpose.REHEARSAL
            and call.end.clock
            and timed
            and call.has_weights is timed[0].has_weights
        ]
        is_finite = self._compared and all(math.isfinite(each.error) for each in self._compared)
        self.found = CourtVerdict(
            str(error_class),
            sub_class,
            text,
            max(each.error for each in self._compared) if is_finite else None,
            max(each.difference for each in self._compared) if self._compared else None,
            sum(each.numel() for each in self._native if isinstance(each, torch.Tensor)),
            len(self._compared),
            tuple(dict.fromkeys((*self._referee.notes, *self._notes))),
            tuple(dict.fromkeys(self._referee.assumptions)),
            failure,
            tuple(call.bracket_us for call in timed),
            tuple(call.waited_us for call in timed),
            tuple(call.claimed_us for call in timed),
            min(rehearsed, default=0.0),
        )

    def _expected(self, call: _Call) -> FlatResults:
        """Returns the results that a call should have."""
        arguments, weights = self._values(call)
        torch.manual_seed(shared.CALL_SEED)
        return self._referee.expected(arguments, weights)

    def _expect_interface(self, call: _Call) -> None:
        """Raises CandidateRejected if the results have another form than the reference's."""
        wanted, is_prescribed = list(map(shared.leaf_of, self._native)), self._referee.checks_dtypes
        sub_class, problem = interface_problem(call.forms, wanted, checks_dtypes=is_prescribed)
        for number, (leaf, least) in enumerate(zip(call.forms, self._least, strict=False) if not problem else ()):
            if not isinstance(leaf, shared.TensorForm):
                continue
            if is_narrower(leaf.torch_dtype, least) or leaf.torch_dtype.is_complex is not least.is_complex:
                sub_class, problem = "dtype", f"result {number} is {leaf.dtype}, which holds other numbers than {least}"
        if problem:
            raise CandidateRejected(ErrorClass.INTERFACE, sub_class, problem)

    def _compare(self, call: _Call, expected: FlatResults) -> Compared:
        """Compares the results of a call, with the expected elements in place of those that were not read."""
        whole: list[Any] = []
        for value, places, wanted, least in zip(call.results, call.places, expected, self._least, strict=True):
            if isinstance(value, torch.Tensor) and isinstance(wanted, torch.Tensor):
                value = value.to(wanted.device)
                if places is not None:
                    filled = wanted.detach().to(value.dtype, copy=True).reshape(-1)
                    filled[places.to(wanted.device)] = value
                    value = filled.reshape(wanted.shape)
                # The tolerance is that of the task's dtype, also where a result is wider.
                value = value.to(least) if least.is_floating_point is value.is_floating_point() else value
            whole.append(value)
        return self._referee.compare(tuple(whole), expected)

    def _changes_of_reference(self, call: _Call) -> frozenset[int]:
        """Returns the places of the inputs that the reference changes itself."""
        arguments, weights = self._values(call)
        torch.manual_seed(shared.CALL_SEED)
        self._referee.native(arguments, weights)
        return self._changes(call, tree_flatten(arguments)[0])

    def _judge(self, calls: Sequence[_Call]) -> None:
        """Compares all calls, the ones that are not timed first. Raises CandidateRejected and ReferenceFailed."""
        whole = [call for call in calls if call.purpose is not shared.Purpose.TIMED]
        timed = [call for call in calls if call.purpose is shared.Purpose.TIMED]
        expected: dict[int, FlatResults] = {}
        for call in calls:
            self._expect_interface(call)
        for before, call in itertools.pairwise(whole):
            if call.purpose is shared.Purpose.AGAIN:
                self._expect_equal(before, call, whole)
        for place, call in enumerate(whole):
            # Bits of a call that was right need no further reference in float64.
            repeats = call.purpose is shared.Purpose.AGAIN and have_equal_bits(call.results, whole[place - 1].results)
            expected[place] = expected[place - 1] if repeats else self._expected(call)
            found = self._compared[-1] if repeats else self._compare(call, expected[place])
            self._compared.append(found)
            if found.wrong:
                self._expect_not_stale([call], whole)
                raise CandidateRejected(ErrorClass.MISMATCH, found.sub_class, found.wrong)
        self._expect_different(whole, expected)
        if whole and whole[0].changed and (changed := whole[0].changed - self._changes_of_reference(whole[0])):
            numbers = ", ".join(map(str, sorted(changed)))
            raise CandidateRejected(
                ErrorClass.HACK, "changed-input", f"the candidate changed input {numbers}: work on a copy"
            )
        wrong, first_wrong = [], ""
        for call in timed:
            found = self._compare(call, self._expected(call))
            self._compared.append(found)
            wrong += [call] if found.wrong else []
            first_wrong = first_wrong or found.wrong
        if wrong:
            text = f"{len(wrong)} of {len(timed)} timed calls gave wrong results, the calls before them did not"
            is_hack = len(wrong) > _WRONG_SHARE * len(timed)
            raise CandidateRejected(
                ErrorClass.HACK if is_hack else ErrorClass.UNSTABLE,
                "stale-result" if is_hack else "",
                f"{text}: compute each result from the inputs of its call ({first_wrong})",
            )

    def _expect_equal(self, before: _Call, call: _Call, whole: Sequence[_Call]) -> None:
        """Raises CandidateRejected if the results of two calls on equal inputs differ."""
        one, other = tuple(before.results), tuple(call.results)
        if same_results(other, one):
            return
        if shared.poisoned_elements(other) != shared.poisoned_elements(one):
            text = "results hold memory that the candidate has not written: write all elements in each call"
            raise CandidateRejected(ErrorClass.HACK, "uninitialized", text)
        self._expect_not_stale([before, call], whole)
        text = "two calls on equal inputs differ by more than twice the tolerance: find the race"
        raise CandidateRejected(ErrorClass.UNSTABLE, "", text)

    def _expect_not_stale(self, wrong: Sequence[_Call], whole: Sequence[_Call]) -> None:
        """Raises CandidateRejected if results that are not right are the right ones of other inputs, to the bit."""
        others = [
            other
            for other in whole
            if (other.seed, other.near) != (wrong[0].seed, wrong[0].near)
            and any(have_equal_bits(tuple(one.results), tuple(other.results)) for one in wrong)
        ]
        if any(not self._compare(other, self._expected(other)).wrong for other in others):
            text = "the candidate returned the result of other inputs: compute each result from the inputs of its call"
            raise CandidateRejected(ErrorClass.HACK, "stale-result", text)

    def _expect_different(self, whole: Sequence[_Call], expected: Mapping[int, FlatResults]) -> None:
        """Raises CandidateRejected if the results of all inputs are equal; notes it if they should be."""
        places = [place for place, call in enumerate(whole) if call.seed != whole[0].seed]
        if not places:
            return
        results = [tuple(call.results) for call in whole]
        if all(_round_alike(expected[0], expected[place], results[0]) for place in places):
            self._notes.append("all inputs have the same result: a constant passes")
        elif all(have_equal_bits(results[0], results[place]) for place in places):
            text = "the candidate returns the same result for all inputs: compute it"
            raise CandidateRejected(ErrorClass.HACK, "constant", text)


def _least_dtypes(native: FlatResults, inputs: Sequence[Any], is_prescribed: bool) -> list[Any]:
    """Returns the dtypes that results must not be narrower than: numpy may compute in more than those of the inputs."""
    dtypes = [each.dtype for each in inputs if isinstance(each, torch.Tensor) and each.is_floating_point()]
    widest = min(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)
    found: list[Any] = []
    for result in native:
        dtype = result.dtype if isinstance(result, torch.Tensor) else None
        is_wider = dtype is not None and dtype.is_floating_point and widest is not None and is_narrower(widest, dtype)
        found.append(widest if is_wider and not is_prescribed else dtype)
    return found


def _round_alike(one: FlatResults, other: FlatResults, like: FlatResults) -> bool:
    """Returns whether two expected results are equal in the dtypes of a candidate's results, but for some elements."""
    for first, second, result in zip(one, other, like, strict=False):
        if isinstance(result, torch.Tensor):
            # torch cannot compare FP8.
            one_rounded, other_rounded = (each.to(result.dtype).to(each.dtype) for each in (first, second))
            differs = (one_rounded != other_rounded) & ~(one_rounded.isnan() & other_rounded.isnan())
            # A kernel may round an element the other way.
            if int(differs.sum()) > min(8, result.numel() // 8):
                return False
        elif repr(first) != repr(second):
            return False
    return True
