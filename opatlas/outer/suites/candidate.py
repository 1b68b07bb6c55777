"""Judges the kernel of a user's file for a case of a suite, with the guards of candidates for tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from opatlas.outer.judging.compare import Compared, compare_results, interface_problem
from opatlas.outer.judging.failures import Phase
from opatlas.outer.judging.input_sets import InputSets, Variant, vary
from opatlas.outer.judging.judged_replay import SETS, JudgedReplay, ReferenceFailed, examine
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass, Judgement, Level
from opatlas.outer.judging.process_guard import ProcessGuard
from opatlas.outer.judging.results import FlatResults
from opatlas.outer.judging.trial import CandidateTrial
from opatlas.outer.suites.case import SuiteRow, check_case
from opatlas.outer.suites.operators import Call, derive
from opatlas.row.errors import WrongResult
from opatlas.row.status import Status
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.implementations.contract import Prepared
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.text import exception_line

#: Memory of a case relative to its arguments: three sets, float64, results and what the kernel needs.
_MEMORY_FACTOR = 12.0
_ALWAYS_THERE_BYTES = 64 << 20


class _Expected(tuple[torch.Tensor, ...]):
    """Torch's results for some arguments.

    Attributes:
        call: the call, with the values of the arguments before it.
    """

    call: Call


@dataclass
class _BoundKernel:
    """A kernel with the arguments of its next call: what is timed is one call without arguments.

    Attributes:
        kernel: called with the arguments; may return `Prepared`.
        operator: a call of the operator, whose schema says what is written.
        conversions: what a set-up converts.
    """

    kernel: Callable[..., Any]
    operator: Call
    conversions: Sequence[str] = ()
    _call: Call | None = field(default=None, init=False)
    _prepared: Prepared | None = field(default=None, init=False)
    _invoke: Callable[[], Any] = field(default=lambda: None, init=False)
    _has_set_up: bool = field(default=False, init=False)

    def bind(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Takes the arguments of the next call, and makes the set-up of a kernel that has one."""
        self._call = Call(self.operator.overload, tuple(positional), keywords)
        self._invoke = partial(self.kernel, *positional, **keywords)
        if self._has_set_up:
            self._take(self._invoke())

    def launch(self, *_: Any) -> Any:
        """Calls the kernel; the first call of one with a set-up makes the set-up, too."""
        returned = self._invoke()
        if type(returned) is Prepared:
            self._take(returned)
            returned = self._invoke()
        return returned

    def results(self, returned: Any) -> list[Any]:
        """Returns the results of a call: what the operator returns, and the arguments that it writes into."""
        assert self._call is not None
        if self._prepared is not None and self._prepared.results is not None:
            returned = self._prepared.results(returned)
        if self.operator.written():
            return list(self._call.computed(returned))
        return [returned] if returned is not None else []

    def _take(self, prepared: Prepared) -> None:
        self._has_set_up, self._prepared, self._invoke = True, prepared, prepared.call
        self.conversions = tuple(prepared.converted)


class SuiteCandidate(JudgedReplay):
    """Judges the kernel of a case when it is called, and leaves the result in `outcome`."""

    def __init__(
        self,
        row: SuiteRow,
        job: Job,
        device: Device,
        instrument: Instrument,
        settings: MeasureSettings,
        group: Group,
    ) -> None:
        super().__init__(job, device, instrument, settings, group)
        self._row = row

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the sets of arguments, the results and the reference."""
        if (needed := self._row.bytes * _MEMORY_FACTOR) > _ALWAYS_THERE_BYTES:
            self._sampling.expect_memory(needed)

    def _prepare(self) -> None:
        self._row.make_call()

    def _judge(self) -> RowOutcome:
        device = self._device.torch_device
        guard = _guard(self._file, device)
        guard.notes.clear()
        self._step(Phase.IMPORT)
        kernel = _BoundKernel(self._kernel(), self._row.call)
        examine(guard, "its import")
        # Such a number counts from the beginning of the storage.
        counts_storage = any(each.name == "storage_offset" for each in self._row.overload._schema.arguments)
        inputs = InputSets(self._arguments, range(SETS), scales=True, margins=not counts_storage)
        trial = CandidateTrial(
            kernel.launch,
            inputs,
            device,
            synchronize=self._device.synchronize,
            threads=guard.threads,
            bind=kernel.bind,
            results_of=kernel.results,
        )
        first = self._first_call(trial, guard)
        if not any(isinstance(each, torch.Tensor) and each.numel() for each in first):
            self._step(Phase.CHECK)
            self._compare(first, self._reference(inputs.values(Variant(0))[0], {}))
            judgement = Judgement(ErrorClass.PASS, level=Level.CORRECT, within_1e3=True)
            reason = "the results have no elements: there is nothing to time"
            return RowOutcome(Status.CHECKED, reason, judged=judgement.judged)
        samples = self._take(trial, guard, self._reference, self._compare, self._own_results)
        own = Call(self._row.overload, *inputs.values(Variant(0))[0])
        self._expect_possible(samples, inputs, lambda: own)
        return self._measured(samples, trial, guard, kernel.conversions)

    def _kernel(self) -> Callable[..., Any]:
        """Imports the kernel. Of a variant without a kernel of its own, the result calls the functional kernel."""
        source, overload = self._job.source, self._row.overload
        kernel = self._load(overload)
        return derive(overload, kernel) if source is not None and source.is_functional else kernel

    def _arguments(self, number: int) -> list[Any]:
        """Returns the arguments of a set: the case's, then others that are multiples of them."""

        def changed(value: Any) -> Any:
            if number and isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                vary(value, self._seed + number)
            return value

        call = self._row.call.cloned().mapped(changed)
        return [call.positional, dict(call.keywords)]

    def _own_results(self, arguments: list[Any], _: Mapping[str, torch.Tensor]) -> FlatResults:
        """Returns the results of torch's operator, which writes into the arguments. Raises ReferenceFailed."""
        positional, keywords = arguments
        try:
            return tuple(Call(self._row.overload, positional, keywords).results())
        except Exception as error:
            raise ReferenceFailed(f"torch refuses a multiple of the arguments: {exception_line(error)}") from error

    def _reference(self, arguments: list[Any], weights: Mapping[str, torch.Tensor]) -> FlatResults:
        call = Call(self._row.overload, *arguments).cloned()
        expected = _Expected(self._own_results(arguments, weights))
        expected.call = call
        return expected

    def _compare(self, results: FlatResults, expected: FlatResults) -> Compared:
        """Raises CandidateRejected if the results have another form than torch's, or are wrong."""
        assert isinstance(expected, _Expected)
        sub_class, problem = interface_problem(results, expected, self._device.torch_device)
        if problem:
            raise CandidateRejected(ErrorClass.INTERFACE, sub_class, problem)
        call = expected.call
        found = compare_results(results, expected)
        try:
            checked, notes = check_case(call, results, self._row.seed)
        except WrongResult as error:
            self._compared.append(found)
            raise CandidateRejected(ErrorClass.MISMATCH, found.sub_class or "other", str(error)) from None
        self._assumptions = list(notes) or self._assumptions
        compared = Compared(checked.error or 0.0, found.difference, checked.elements)
        self._compared.append(compared)
        return compared


@lru_cache(maxsize=1)
def _guard(path: str, device: torch.device) -> ProcessGuard:
    """Returns the guard of this process for the kernels of a file, made before the file is imported."""
    return ProcessGuard(device, [Path(path)])
