"""The replay of a case of a suite: judges and times torch's operator, the function of a library, or a user's kernel.

Each of them is timed in the same way, with other inputs in each call: on a CPU the first call after other work takes
longer than the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from opatlas.outer.judging.court import Referee
from opatlas.outer.judging.judged_replay import JudgedReplay
from opatlas.outer.judging.judgement import ReferenceFailed
from opatlas.outer.judging.memory import vary
from opatlas.outer.judging.results import Compared, FlatResults, compare_results
from opatlas.outer.judging.trial import Constructed, LiveInputs
from opatlas.outer.suites.case import CaseFormula, SuiteRow
from opatlas.outer.suites.operators import Call, derive
from opatlas.outer.suites.texts import overload_of
from opatlas.row.errors import Unsupported, WrongResult
from opatlas.run.devices.device import Device
from opatlas.run.devices.fatal_errors import fatal_device_error
from opatlas.run.group import Group
from opatlas.run.implementation import Prepared
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job
from opatlas.run.registry import ReplaySpec
from opatlas.run.result_check import check
from opatlas.text import exception_line


def bind_case(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[SuiteRow, SuiteCandidate]:
    """Makes `row` and `replay` of a case. Raises InvalidRow and Unsupported."""
    row = SuiteRow(job.kernel_type, job.cells, device.torch_device)
    return row, SuiteCandidate(row, job, device, instrument, settings, group)


_ALWAYS_THERE_BYTES = 64 << 20


class CaseReferee(Referee):
    """Torch's operator for the case of a suite, whose further arguments are multiples of the case's."""

    def __init__(self, row: SuiteRow) -> None:
        super().__init__()
        self.varies_all = True
        self._row = row

    def make(self, seed: int, number: int) -> list[Any]:
        def changed(value: Any) -> Any:
            if number and isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                # One factor for a tensor keeps a matrix positive definite, and boundaries in their order.
                vary(value, seed)
            return value

        call = self._row.call.cloned().mapped(changed)
        return [call.positional, dict(call.keywords)]

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {}

    def native(self, arguments: list[Any], weights: Mapping[str, torch.Tensor]) -> FlatResults:
        call = Call(self._row.overload, *arguments)
        try:
            return tuple(call.computed(call()))
        except Exception as error:
            raise ReferenceFailed(f"torch refuses a multiple of the arguments: {exception_line(error)}") from error

    def expected(self, arguments: list[Any], weights: Mapping[str, torch.Tensor]) -> FlatResults:
        call = Call(self._row.overload, *arguments).cloned()
        found = _Expected(self.native(arguments, weights))
        found.call = call
        return found

    def compare(self, results: FlatResults, expected: FlatResults) -> Compared:
        assert isinstance(expected, _Expected)
        found, call = compare_results(results, expected), expected.call
        formula = CaseFormula(call.overload, self.assumptions.append)
        try:
            checked = check(formula, call.positional, dict(call.keywords), results, self._row.seed)
        except WrongResult as error:
            return replace(found, wrong=str(error), sub_class=found.sub_class or "other")
        return Compared(checked.error or 0.0, found.difference)


class _Expected(tuple[torch.Tensor, ...]):
    """Torch's results for some arguments.

    Attributes:
        call: the call, with the values of the arguments before it.
    """

    call: Call


def referee(job: Job, device: torch.device, seed: int) -> CaseReferee:
    """Returns the referee of a case, for the process of the court. Raises the errors of the row."""
    row = SuiteRow(job.kernel_type, job.cells, device)
    row.make_call()
    return CaseReferee(row)


@dataclass
class _BoundKernel:
    """A kernel with the arguments of its next call: what is timed is one call without arguments.

    Attributes:
        kernel: called with the arguments; may return `Prepared`.
        operator: a call of the operator.
        writes: whether the operator writes into arguments, by its schema.
        on_converted: gets what a set-up converts.
    """

    kernel: Callable[..., Any]
    operator: Call
    writes: bool
    on_converted: Callable[[Sequence[str]], object]
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
        """Calls the kernel, and returns what the operator returns, and the arguments that it writes into.

        The first call of a kernel with a set-up makes the set-up, too.
        """
        returned = self._invoke()
        if type(returned) is Prepared:
            self._take(returned)
            returned = self._invoke()
        assert self._call is not None
        if self._prepared is not None and self._prepared.results is not None:
            returned = self._prepared.results(returned)
        if self.writes:
            return self._call.computed(returned)
        return returned if returned is not None else ()

    def _take(self, prepared: Prepared) -> None:
        self._has_set_up, self._prepared, self._invoke = True, prepared, prepared.call
        self.on_converted(tuple(prepared.converted))


class SuiteCandidate(JudgedReplay):
    """Judges the kernel of a case when it is called, and leaves the result in `outcome`."""

    _row: SuiteRow
    _trusts_reference = True

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the sets of arguments, the results and the reference."""
        if (needed := self._row.bytes() * self._memory_factor) > _ALWAYS_THERE_BYTES:
            self._sampling.expect_memory(needed)

    def _prepare(self) -> None:
        row = self._row
        row.make_call()
        try:
            row.call.cloned().results()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or fatal_device_error(str(error)):
                raise
            # Cases are recorded on other devices, which have other dtypes and sizes of an operator.
            raise Unsupported(f"torch refuses {overload_of(row.kernel_type)} here: {exception_line(error)}") from None

    def _referee(self, seed: int) -> Referee:
        return CaseReferee(self._row)

    def _arguments(self) -> list[Any]:
        return CaseReferee(self._row).make(0, 0)

    def _has_margins(self) -> bool:
        # Such a number counts from the beginning of the storage.
        return not any(each.name == "storage_offset" for each in self._row.overload._schema.arguments)

    def _import(self, weights_seed: int) -> Callable[..., Any]:
        """Imports the kernel. Of a variant without a kernel of its own, the result calls the functional kernel."""
        source, overload = self._job.source, self._row.overload
        if source is None:
            # A frame of Python, which each kernel has, costs microseconds after a flush of the caches.
            return lambda *arguments, **keywords: overload(*arguments, **keywords)
        kernel = self._load(overload)
        return derive(overload, kernel) if source.is_functional else kernel

    def _construct(self, function: Callable[..., Any], inputs: LiveInputs, weights_seed: int) -> Constructed:
        call = self._row.call
        kernel = _BoundKernel(function, call, bool(call.written()), partial(setattr, self, "_conversions"))
        return Constructed(kernel.launch, bind=kernel.bind)

    def _own_call(self, arguments: list[Any], weights_seed: int) -> Callable[[], object] | None:
        return Call(self._row.overload, *arguments)
