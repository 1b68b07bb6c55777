"""The replay of a case of a suite: times torch's operator or the function of a library, and checks its results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import monotonic
from typing import Any

import torch

from opatlas.outer.judging.compare import interface_problem
from opatlas.outer.suites.candidate import SuiteCandidate
from opatlas.outer.suites.case import SuiteRow, check_case
from opatlas.outer.suites.operators import Call, computed_by
from opatlas.outer.suites.overload import overload_of
from opatlas.row.errors import ChangedInput, Unsupported, WrongResult
from opatlas.row.location import public_version
from opatlas.row.record import Execution
from opatlas.row.status import Status
from opatlas.run.call_watch import InputWatch
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.implementations.contract import KernelSource, Prepared
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.kernel_call import KernelCall, load_kernel
from opatlas.run.registry import ReplaySpec
from opatlas.run.sampling import Sampling

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
        self.outcome = self._sampling.outcome(
            samples, checked, execution=execution, calls=call.count, assumed=notes, operators=[]
        )

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
            _, problem = interface_problem(call.results(), own, self._row.device)
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
