"""The case of a suite on a device: makes the call of a row, times the kernel, and checks its results.

The reference is torch's operator in float64. Where torch's own result in the row's dtypes is no better than that of
the kernel, as at the steps of a division that is rounded, torch's result is the reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import torch

from opatlas.devices.cpu import bounded_memory
from opatlas.devices.device import Device
from opatlas.engine.call_watch import InputWatch
from opatlas.engine.group import Group
from opatlas.engine.job import Job, RowOutcome
from opatlas.engine.kernel_call import KernelCall, load_kernel
from opatlas.engine.registry import ReplaySpec
from opatlas.engine.result_check import Checked, Comparison, Picks, Results, check
from opatlas.engine.sampling import Sampling
from opatlas.implementations.contract import KernelSource, Prepared
from opatlas.instruments.instrument import Instrument, MeasureSettings
from opatlas.model.errors import ChangedInput, InvalidRow, Unsupported, WrongResult
from opatlas.model.location import public_version
from opatlas.model.record import Execution
from opatlas.model.schema import (
    ARGUMENTS,
    FUNCTIONAL,
    OUTPUT_SLOTS,
    SAMPLE,
    SAMPLE_TORCH,
    Status,
)
from opatlas.model.signature import signature
from opatlas.model.slots import Slot, dtype_of_torch, parse_slots
from opatlas.suites.arguments import read_arguments
from opatlas.suites.listing import OPINFO, text_digest
from opatlas.suites.operators import (
    Call,
    NoText,
    computed_by,
    derive,
    find_overload,
    is_no_operator,
    text_of,
    text_of_tensor,
    with_device,
)
from opatlas.suites.opinfo import recorded, variant_call
from opatlas.suites.overload import overload_of
from opatlas.suites.trace_call import make_call

#: Calls of the warm-up, and its longest time in seconds.
_WARM_UP_CALLS, _WARM_UP_S = 3, 0.2
#: A small row runs without a bound of memory: setting the bound takes a millisecond.
_HARMLESS_BYTES = 1 << 20
_MEMORY_FACTOR = 4.0
_ALWAYS_THERE_BYTES = 64 << 20
#: Operators whose second result, or only one, is an index along an axis: where numbers are equal any index is right.
_WITH_INDICES = frozenset(
    ("argmax", "argmin", "cummax", "cummin", "kthvalue", "max", "median", "min", "mode", "nanmedian", "sort", "topk")
)
_WITH_DIFFERENT_INDICES = frozenset(("sort", "topk"))


class SuiteRow:
    """The row of a suite on a device.

    Attributes:
        kernel_type, cells: the row.
        overload: torch's operator.
        call: the operator with its arguments on the device.
        seed: a number that depends on the row only.
        device: the device.
        outputs: the slots of the results; empty where these depend on values.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str], device: torch.device) -> None:
        """Raises InvalidRow for a row that is no sample of this torch, and Unsupported without such an operator."""
        self.kernel_type = kernel_type
        self.cells = cells
        name = overload_of(kernel_type)
        found = find_overload(name)
        if found is None:
            raise Unsupported(f"torch {torch.__version__} has no operator {name}")
        if reason := is_no_operator(found):
            raise Unsupported(f"{name} cannot be checked ({reason})")
        self.overload = found
        text = f"{kernel_type}|{signature(kernel_type, cells)}"
        self.seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
        shapes, dtypes, formats = (cells.get(column, "") for column in OUTPUT_SLOTS)
        self.outputs: tuple[Slot, ...] = parse_slots(shapes, dtypes, formats, OUTPUT_SLOTS)
        self.bytes = sum(each.bytes for each in read_arguments(cells.get(ARGUMENTS, "")).tensors())
        self.device = device
        self.call: Call

    def make_call(self) -> None:
        """Makes the call. Raises InvalidRow if this torch has another sample by the name, or none."""
        cells, sample = self.cells, self.cells.get(SAMPLE, "")
        if not sample.startswith(f"{OPINFO}/"):
            self.call = make_call(self.overload, read_arguments(cells[ARGUMENTS]), self.device, self.seed)
            return
        try:
            _, opinfo, dtype, number, digest = sample.split("/")
            call = recorded(opinfo, dtype, int(number))
        except (ValueError, LookupError, RuntimeError) as error:
            raise self._other_sample(f"{type(error).__name__}: {error}") from None
        if call is None:
            raise self._other_sample("its function calls several operators")
        if cells.get(FUNCTIONAL):
            call = variant_call(self.overload, call, call.cloned().results())
        if call.overload is not self.overload or text_digest(str(text_of(call))) != digest:
            raise self._other_sample(f"the arguments are {text_of(call)}")
        self.call = with_device(call, self.device)

    def _other_sample(self, why: str) -> InvalidRow:
        listed = self.cells.get(SAMPLE_TORCH, "")
        return InvalidRow(
            f"'{SAMPLE}' = {self.cells.get(SAMPLE, '')!r}: torch {torch.__version__} has no such sample ({why}); torch "
            f"{listed} listed the row: name another --database-path, or remove the row's file"
        )


def bind_case(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[SuiteRow, SuiteReplay]:
    """Makes `row` and `replay` of a case. Raises InvalidRow and Unsupported."""
    row = SuiteRow(job.kernel_type, job.cells, device.torch_device)
    return row, SuiteReplay(row, device, instrument, settings, group, job.source)


class SuiteReplay:
    """Times and checks one case. A call sets `outcome`."""

    def __init__(
        self,
        row: SuiteRow,
        device: Device,
        instrument: Instrument,
        settings: MeasureSettings,
        group: Group,
        source: KernelSource | None,
    ) -> None:
        """`source` is the kernel that is timed; None: torch's operator."""
        self.outcome: RowOutcome | None = None
        self._row = row
        self._device = device
        self._source = source
        self._sampling = Sampling(
            row.kernel_type, row.cells, device, instrument, settings, group, is_library=source is not None
        )

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the arguments, the results and the reference."""
        if (needed := self._row.bytes * _MEMORY_FACTOR) > _ALWAYS_THERE_BYTES:
            self._sampling.expect_memory(needed)

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than the device has left."""
        is_harmless = self._source is None and self._row.bytes <= _HARMLESS_BYTES
        return nullcontext() if is_harmless else bounded_memory(self._device)

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
            self._check(call, call.kept_results())
            self.outcome = RowOutcome(Status.CHECKED, "the results have no elements: there is nothing to time")
            return
        self._sampling.warm_up(call.repeat, most_calls=_WARM_UP_CALLS - 1, until=until)
        samples = self._sampling.take(call.launch, call.restore if call.changes_tensors else None)
        self._expect_unchanged(watch)
        computed = call.kept_results()
        checked, notes = self._check(call, computed)
        execution = Execution(
            self._source.implementation if self._source else f"torch {public_version(torch.__version__)}",
            conversions=tuple(call.prepared.converted) if call.prepared else (),
            set_up_s=call.set_up_s if self._source else None,
        )
        self.outcome = self._sampling.outcome(
            samples, checked, execution=execution, calls=call.count, assumed=notes, operators=[]
        )

    def _kernel(self) -> Callable[..., Any]:
        """Returns what is timed. Of a variant without a kernel of its own, it calls the functional kernel."""
        overload = self._row.overload
        if self._source is None:
            kernel: Callable[..., Any] = overload
        else:
            kernel = load_kernel(self._source, overload)
            if self._source.is_functional:
                kernel = derive(overload, kernel)
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
        """Raises WrongResult if the results differ from torch's in number, type, dtype, shape or device."""
        wanted = [(each.shape, each.dtype) for each in self._row.outputs]
        if not self._interface_problem(call.results(), wanted):
            return
        # The row has the results of another device, where torch may return other dtypes.
        arguments, keywords = call.originals()
        own = Call(self._row.overload, tuple(arguments), keywords).cloned().results()
        if problem := self._interface_problem(call.results(), [_slot_of(each) for each in own]):
            raise WrongResult(problem)

    def _interface_problem(self, results: Results, wanted: Sequence[tuple[tuple[int, ...], str]]) -> str:
        """Returns how results differ from torch's; "" if they do not.

        Args:
            results: the results.
            wanted: shapes and dtypes of torch's results; empty: unknown.
        """
        name = self._source.function if self._source else overload_of(self._row.kernel_type)
        if wanted and len(results) != len(wanted):
            return f"{name} returned {len(results)} tensors, and torch returns {len(wanted)}"
        for number, result in enumerate(results):
            if result is None or type(result) not in (torch.Tensor, torch.nn.Parameter):
                return f"result {number} of {name} is a {type(result).__name__}, and torch's is a tensor"
            if result.device.type != self._row.device.type:
                return f"result {number} of {name} is on {result.device}, not on {self._row.device}"
            try:
                shape, dtype = _slot_of(result)
            except NoText as error:
                return f"result {number} of {name} is no plain tensor ({error})"
            if wanted and shape != wanted[number][0]:
                return f"result {number} of {name} has the shape {shape}, not {wanted[number][0]}"
            if wanted and dtype != wanted[number][1]:
                return f"result {number} of {name} is {dtype}, and torch's is {wanted[number][1]}"
        return ""

    def _expect_unchanged(self, watch: InputWatch) -> None:
        self._device.synchronize()
        for place, what in watch.changed()[:1]:
            raise ChangedInput(f"the kernel changed {what}, and torch's operator does not", place=place)

    def _check(self, call: KernelCall, results: Results) -> tuple[Checked, tuple[str, ...]]:
        """Returns the comparison with the reference, and what is to be known of it. Raises WrongResult."""
        arguments, keywords = call.originals()
        seed, overload = self._row.seed, self._row.overload
        precise, own = TorchFormula(overload, is_precise=True), TorchFormula(overload, is_precise=False)
        wrong: WrongResult | None = None
        try:
            return check(precise, arguments, keywords, results, seed), ()
        except WrongResult as error:
            wrong = error
        except (RuntimeError, TypeError, ValueError):
            # torch has no such operator in float64.
            pass
        if wrong is not None:
            reference = Call(overload, tuple(arguments), keywords).cloned().results()
            try:
                check(precise, arguments, keywords, reference, seed)
            except WrongResult:
                pass
            else:
                raise wrong
        return check(own, arguments, keywords, results, seed), ("checked with torch's result in the row's dtypes",)


@dataclass(frozen=True)
class TorchFormula:
    """Torch's operator as a formula.

    Attributes:
        overload: the operator.
        is_precise: whether real numbers are in float64, and complex numbers in complex128.
    """

    overload: torch._ops.OpOverload
    is_precise: bool

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"of torch's {self.overload}{' in float64' if self.is_precise else ''}"

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Results, seed: int
    ) -> list[Comparison]:
        """Returns all elements of the results with the expected ones. Raises WrongResult for other shapes."""
        call = Call(self.overload, tuple(arguments), keywords)
        device = next((each.device for each in results if each is not None), torch.device("cpu"))
        call = with_device(call, device).cloned()
        expected = (call.mapped(_precise) if self.is_precise else call).results()
        if len(expected) != len(results):
            raise WrongResult(f"there are {len(results)} results, and torch has {len(expected)}")
        comparisons = []
        for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            assert result is not None
            if result.shape != wanted.shape:
                raise WrongResult(
                    f"result {number} has the shape {tuple(result.shape)}, and torch's has {tuple(wanted.shape)}"
                )
            is_index = number == len(expected) - 1
            indices = self._index_comparison(call, result, wanted) if is_index else None
            comparisons.append(indices or _comparison(result, wanted))
        return comparisons

    def _index_comparison(self, call: Call, result: torch.Tensor, wanted: torch.Tensor) -> Comparison | None:
        """Returns the comparison of the last result if it has indices along an axis; else None."""
        operator, bound = call.overload._schema.name.partition("::")[2], call.bound()
        source = bound.get("self")
        if operator not in _WITH_INDICES or result.dtype is not torch.int64 or not isinstance(source, torch.Tensor):
            return None
        has_index = len(call.overload._schema.returns) == 2 or operator in ("argmax", "argmin")
        if not has_index or bound.get("stable") or not source.numel():
            return None
        axis = bound.get("dim", None if operator in ("argmax", "argmin") else -1)
        if axis is None or not source.dim():
            rows, found, right = source.reshape(1, -1), result.reshape(1, -1), wanted.reshape(1, -1)
        else:
            keeps = result.dim() == source.dim()
            found, right = (each if keeps else each.unsqueeze(axis) for each in (result, wanted))
            rows, found, right = (each.movedim(axis, -1) for each in (source, found, right))
            rows, found, right = (each.reshape(-1, each.shape[-1]) for each in (rows, found, right))
        picks = Picks(rows, rows.gather(-1, right), distinct=operator in _WITH_DIFFERENT_INDICES)
        return Comparison(found, picks, exact=True, nan_is_right=True)


def _slot_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """Returns shape and dtype as a row has them. Raises NoText."""
    text = text_of_tensor(tensor)
    return text.shape, dtype_of_torch(text.dtype)


def _comparison(result: torch.Tensor, wanted: torch.Tensor) -> Comparison:
    if result.is_complex():
        result, wanted = torch.view_as_real(result.resolve_conj()), torch.view_as_real(wanted.resolve_conj())
    return Comparison(result, wanted, exact=not result.is_floating_point(), nan_is_right=True)


def _precise(value: Any) -> Any:
    """Returns real numbers in float64 and complex numbers in complex128; dtypes likewise; other arguments unchanged."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else torch.complex128 if value.is_complex else value
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    dtype = torch.complex128 if value.is_complex() else torch.float64
    memory = torch.as_strided(value, (text_of_tensor(value).extent,), (1,)).to(dtype)
    return torch.as_strided(memory, value.shape, value.stride(), 0)
