"""The replay of a case of a suite: times torch's operator or the function of a library, or judges a user's kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

import torch

from opatlas.outer.judging.court import Referee
from opatlas.outer.judging.judged_replay import JudgedReplay
from opatlas.outer.judging.judgement import ReferenceFailed
from opatlas.outer.judging.memory import leaf_of, vary
from opatlas.outer.judging.results import Compared, FlatResults, compare_results, interface_problem
from opatlas.outer.judging.trial import Constructed, LiveInputs
from opatlas.outer.suites.case import SuiteRow, check_case
from opatlas.outer.suites.operators import Call, computed_by, derive
from opatlas.outer.suites.texts import overload_of
from opatlas.row.errors import ChangedInput, Unsupported, WrongResult
from opatlas.row.location import public_version
from opatlas.row.record import Execution
from opatlas.row.status import Status
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.implementation import KernelSource, Prepared, load_kernel
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.kernel_call import InputWatch, KernelCall
from opatlas.run.registry import ReplaySpec
from opatlas.run.sampling import Sampling
from opatlas.text import exception_line

#: Calls of the warm-up, and its longest time in seconds.
_WARM_UP_CALLS, _WARM_UP_S = 3, 0.2
#: A small row runs without a bound of memory: setting the bound takes a millisecond.
_HARMLESS_BYTES = 1 << 20
_MEMORY_FACTOR = 4.0
_ALWAYS_THERE_BYTES = 64 << 20


def bind_case(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[SuiteRow, SuiteReplay | SuiteCandidate]:
    """Makes `row` and `replay` of a case. Raises InvalidRow and Unsupported."""
    row = SuiteRow(job.kernel_type, job.cells, device.torch_device)
    if job.source is None or job.source.module:
        return row, SuiteReplay(row, device, instrument, settings, group, job.source)
    return row, SuiteCandidate(row, job, device, instrument, settings, group)


class SuiteReplay:
    """Times and checks torch's operator, or the function of a library. A call sets `outcome`."""

    def __init__(
        self,
        row: SuiteRow,
        device: Device,
        instrument: Instrument,
        settings: MeasureSettings,
        group: Group,
        source: KernelSource | None,
    ) -> None:
        """`source` is the function of a library that is timed; None: torch's operator."""
        self.outcome: RowOutcome | None = None
        self._row = row
        self._device = device
        self._source = source
        self._sampling = Sampling(row.kernel_type, row.cells, device, instrument, settings, group)

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the arguments, the results and the reference."""
        if (needed := self._row.bytes * _MEMORY_FACTOR) > _ALWAYS_THERE_BYTES:
            self._sampling.expect_memory(needed)

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than the device has left."""
        is_harmless = self._source is None and self._row.bytes <= _HARMLESS_BYTES
        return nullcontext() if is_harmless else self._device.bounded_memory()

    def __call__(self) -> None:
        """Runs the case.

        Raises:
            WrongResult: a result is wrong, or has another shape, dtype or device than torch's.
            ChangedInput: the kernel changes an argument that the operator does not change.
            Unsupported: torch has no such operator on this device, or the kernel refuses the call.
        """
        row, until = self._row, monotonic() + _WARM_UP_S
        row.make_call()
        written = row.call.written()
        call = KernelCall(self._kernel(), row.call.positional, row.call.keywords, mutates=written)
        watch = InputWatch(call.inputs, declared=set(written), seed=row.seed)
        try:
            call.start()
        except NotImplementedError as error:
            if self._source is None:
                raise Unsupported(f"torch has no {overload_of(row.kernel_type)} for this call ({error})") from None
            raise
        if call.prepared is not None:
            watch.allow(call.prepared.changes)
            call.first_prepared()
        self._expect_interface(call)
        self._expect_unchanged(watch)
        if not any(result is not None and result.numel() for result in call.results()):
            check_case(_call_of(row.overload, call), call.kept_results(), row.seed)
            self.outcome = RowOutcome(Status.CHECKED, "the results have no elements: there is nothing to time")
            return
        self._sampling.warm_up(call.repeat, most_calls=_WARM_UP_CALLS - 1, until=until)
        samples = self._sampling.take(call.launch, call.restore if call.changes_tensors else None)
        self._expect_unchanged(watch)
        computed = call.kept_results()
        checked, notes = check_case(_call_of(row.overload, call), computed, row.seed)
        execution = Execution(
            self._source.implementation if self._source else f"torch {public_version(torch.__version__)}",
            conversions=tuple(call.prepared.converted) if call.prepared else (),
            set_up_s=call.set_up_s if self._source else None,
        )
        self.outcome = self._sampling.outcome(samples, checked, execution=execution, assumed=notes, operators=[])

    def _kernel(self) -> Callable[..., Any]:
        """Returns what is timed; of an operator that writes into arguments, the call returns these."""
        kernel: Callable[..., Any] = self._row.overload
        if self._source is not None:
            kernel = load_kernel(self._source, self._row.overload)
        if not self._row.call.written():
            return kernel
        computed = self._row.call.computed

        def writing(*arguments: Any, **keywords: Any) -> Any:
            returned = kernel(*arguments, **keywords)
            if isinstance(returned, Prepared):
                return replace(returned, call=lambda: computed(computed_by(returned)), results=None)
            return computed(returned)

        return writing

    def _expect_interface(self, call: KernelCall) -> None:
        """Raises WrongResult if the results of a library have another form than torch's."""
        if self._source is not None:
            own = _call_of(self._row.overload, call).cloned().results()
            _, problem = interface_problem(list(map(leaf_of, call.results())), list(map(leaf_of, own)))
            if problem:
                raise WrongResult(problem)

    def _expect_unchanged(self, watch: InputWatch) -> None:
        self._device.synchronize()
        for place, what in watch.changed()[:1]:
            raise ChangedInput(f"the kernel changed {what}, and torch's operator does not", place=place)


def _call_of(overload: torch._ops.OpOverload, call: KernelCall) -> Call:
    """Returns the call of an operator with the arguments of a kernel, as they were before its call."""
    arguments, keywords = call.originals()
    return Call(overload, tuple(arguments), keywords)


#: Memory of a judged case relative to its arguments: three sets, float64, results and what the kernel needs.
_JUDGED_MEMORY_FACTOR = 12.0


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
        positional, keywords = arguments
        try:
            return tuple(Call(self._row.overload, positional, keywords).results())
        except Exception as error:
            raise ReferenceFailed(f"torch refuses a multiple of the arguments: {exception_line(error)}") from error

    def expected(self, arguments: list[Any], weights: Mapping[str, torch.Tensor]) -> FlatResults:
        call = Call(self._row.overload, *arguments).cloned()
        found = _Expected(self.native(arguments, weights))
        found.call = call
        return found

    def compare(self, results: FlatResults, expected: FlatResults) -> Compared:
        assert isinstance(expected, _Expected)
        found = compare_results(results, expected)
        try:
            checked, notes = check_case(expected.call, results, self._row.seed)
        except WrongResult as error:
            return replace(found, wrong=str(error), sub_class=found.sub_class or "other")
        self.assumptions += notes
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
        operator: a call of the operator, whose schema says what is written.
        on_converted: gets what a set-up converts.
    """

    kernel: Callable[..., Any]
    operator: Call
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
        if self.operator.written():
            return list(self._call.computed(returned))
        return [returned] if returned is not None else []

    def _take(self, prepared: Prepared) -> None:
        self._has_set_up, self._prepared, self._invoke = True, prepared, prepared.call
        self.on_converted(tuple(prepared.converted))


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
        if (needed := self._row.bytes * _JUDGED_MEMORY_FACTOR) > _ALWAYS_THERE_BYTES:
            self._sampling.expect_memory(needed)

    def _prepare(self) -> None:
        self._row.make_call()

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
        kernel = self._load(overload)
        return derive(overload, kernel) if source is not None and source.is_functional else kernel

    def _construct(self, function: Callable[..., Any], inputs: LiveInputs, weights_seed: int) -> Constructed:
        kernel = _BoundKernel(function, self._row.call, self._converted)
        return Constructed(kernel.launch, bind=kernel.bind)

    def _converted(self, conversions: Sequence[str]) -> None:
        self._conversions = conversions

    def _own_call(self, arguments: list[Any], weights_seed: int) -> Callable[[], object] | None:
        return Call(self._row.overload, *arguments)
