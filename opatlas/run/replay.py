"""`replay`, which a replay function calls: runs and times the kernel, and checks the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from types import FunctionType
from typing import Any

import torch

from opatlas.row.columns import OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.row.errors import ChangedInput, InvalidRow, OutOfMemory, ReplayError, Unsupported
from opatlas.row.location import public_version
from opatlas.row.record import Execution
from opatlas.row.slots import known_dtype
from opatlas.run.devices.cpu import host_available_bytes
from opatlas.run.devices.device import Device
from opatlas.run.devices.fatal_errors import fatal_device_error
from opatlas.run.group import ALONE, Group
from opatlas.run.implementation import KernelSource, load_kernel
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.instruments.instrument import MSPROF, Instrument, MeasureSettings
from opatlas.run.job import Against, error_text
from opatlas.run.kernel_call import InputWatch, KernelCall, count_operators, may_be_compiled
from opatlas.run.registry import ReplaySpec, RowReplay, select_arguments
from opatlas.run.result_check import Formula, Results, check, is_checked_on_host
from opatlas.run.sampling import Sampling
from opatlas.text import exception_line

#: Memory of a row relative to its tensors. Clones, the check and a kernel's workspace need about as much again.
_MEMORY_FACTOR = 2.0
#: The memory is not checked for smaller rows, because the query takes longer than the row.
_ALWAYS_THERE_BYTES = 64 << 20
#: Rows with smaller tensors run without a bound of memory: setting the bound takes a millisecond.
_HARMLESS_BYTES = 1 << 20
#: The warm-up ends after this many calls, or after this time. The first call allocates memory and loads code; a kernel
#: that takes seconds needs no second call.
_WARM_UP_CALLS = 3
_WARM_UP_S = 0.2


#: The row's output slot of each result; see `Replay`.
OutputSlots = Sequence[int | None] | Mapping[int | str, int] | None


@dataclass(frozen=True)
class _Kernel:
    """What is called for a row.

    Attributes:
        function: what is called.
        name: of the function, for messages.
        implementation: name and version of what is timed: for the default torch's, or the NPU's calls ("A or B").
        counts: the operators of torch that it calls are counted.
    """

    function: Callable[..., Any]
    name: str
    implementation: str
    counts: bool

    @property
    def ran(self) -> str:
        """The implementation, of several calls of an NPU the one that was made."""
        made = f".{getattr(self.function, '__qualname__', '')}"
        calls = [each for each in self.implementation.split(" or ") if f".{each}".endswith(made)]
        return calls[0] if calls else self.implementation


class RecordedCall:
    """Keeps what a replay function calls `replay` with."""

    def __call__(
        self,
        impl: Callable[..., Any],
        *arguments: Any,
        expected: Formula,
        mutates: Sequence[int | str] = (),
        overwrites: Sequence[int | str] = (),
        output_slots: OutputSlots = None,
        **keywords: Any,
    ) -> None:
        """Takes the kernel `impl(*arguments, **keywords)` of a row.

        Args:
            impl: the kernel in operators of torch; on an NPU the call that `@replays` names is used instead.
            arguments, keywords: arguments of the kernel.
            expected: the formula, which receives the same arguments.
            mutates: positions or names of arguments (tensors or lists of tensors) that the kernel changes. Each
                call, and the formula, start from the same values. If the kernel returns None, these tensors are the
                results.
            overwrites: positions or names of arguments that the kernel only writes; their values are not restored. If
                the kernel returns None and mutates nothing, these tensors are the results.
            output_slots: the row's output slot of each result in order, None for a result that the row does not list;
                further results are ignored. A mapping gives the slots of selected results by position, and of changed
                arguments by name. Default: the first slots.

        Raises:
            ReplayError: `expected` is no formula.
        """
        if not hasattr(expected, "compare"):
            problem = f"expected={expected!r} is no formula: mark it with @pointwise, @per_row or @per_element"
            raise ReplayError(problem)
        self.impl, self.arguments, self.keywords = impl, list(arguments), keywords
        self.expected, self.changed = expected, {"mutates": mutates, "overwrites": overwrites}
        self.output_slots = output_slots

    def results_of(self, returned: Results, inputs: Mapping[int | str, Any]) -> Results:
        """Returns the results that the row lists: of those that a kernel returned, and of the arguments it changed."""
        slots = self.output_slots
        if isinstance(slots, Mapping):
            return tuple(inputs[place] if isinstance(place, str) else returned[place] for place in slots)
        return returned if slots is None else returned[: len(slots)]

    def expect_parameters(self, name: str, kernel: Callable[..., Any]) -> None:
        """Raises ReplayError if a kernel of an implementation, of this name, cannot be called in place of `impl`."""
        signature = _signature(kernel)
        if signature is None:
            return
        try:
            signature.bind(*self.arguments, **self.keywords)
        except TypeError as error:
            parameters, count = _signature(self.impl), len(self.arguments)
            names = list(parameters.parameters) if parameters is not None else []
            passed = ", ".join([*(names + ["..."] * count)[:count], *(f"{each}=" for each in self.keywords)])
            raise ReplayError(f"{name} takes {signature}, and the replay passes ({passed}): {error}") from None


def recorded_call(function: Callable[..., Any], row: ReplayRow) -> RecordedCall:
    """Returns the call that a replay function makes for a row. Raises ReplayError."""
    recorded = RecordedCall()
    function(**select_arguments(function, row=row, replay=recorded, group=ALONE))
    return recorded


class Replay(RowReplay):
    """Replays one row. A call measures the kernel and sets `outcome`."""

    def __init__(
        self,
        row: ReplayRow,
        spec: ReplaySpec,
        device: Device,
        instrument: Instrument,
        settings: MeasureSettings,
        group: Group = ALONE,
        source: KernelSource | None = None,
        against: Against | None = None,
    ) -> None:
        """
        Args:
            source: what is timed in place of torch, or on an NPU of the call that `@replays` names.
            against: the baseline with which it takes turns; None: it is timed alone.

        Raises:
            InvalidRow: a cell cannot be read.
        """
        super().__init__(device)
        self._row = row
        #: Parses the cells of all slots.
        self._bytes = row.bytes()
        self._spec = spec
        self._group = group
        self._source = source
        # A profiler has the samples later.
        self._against = against if instrument.name != MSPROF and settings.measures else None
        self._sampling = Sampling(device, instrument, settings, group)

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """Measures the kernel that `RecordedCall` takes from these arguments, and checks the results.

        Raises:
            InvalidRow: the results have other shapes or dtypes than the row.
            Unsupported: the row has a fused cast that is not replayed.
            ChangedInput: the kernel changes an argument that neither `mutates` nor `overwrites` names.
            ReplayError: there is no result to check.
            WrongResult: the check found wrong elements.
        """
        passed = RecordedCall()
        passed(*arguments, **keywords)
        kernel, against = self._kernel(self._source, passed.impl), self._against
        baseline = kernel if against is None else self._kernel(against.source, passed.impl)
        if self._source:
            passed.expect_parameters(kernel.name, kernel.function)

        def call_of(function: Callable[..., Any], source: KernelSource | None) -> KernelCall:
            may_lack = source is not None
            return KernelCall(function, passed.arguments, passed.keywords, **passed.changed, may_lack_results=may_lack)

        # All are made before a call changes a tensor.
        call, rivals = call_of(kernel.function, self._source), list[KernelCall]()
        for _ in range(against.calls - 1 if against else 0):
            rivals.append(call_of(_as_deep(baseline.function, kernel.function), against.source if against else None))
        declared = {place for places in passed.changed.values() for place in places}
        watch = InputWatch(call.inputs, declared=declared, seed=self._row.seed)
        self._measure(kernel, baseline, call, rivals, watch, passed)

    def _measure(
        self,
        kernel: _Kernel,
        baseline: _Kernel,
        call: KernelCall,
        rivals: Sequence[KernelCall],
        watch: InputWatch,
        passed: RecordedCall,
    ) -> None:
        """Measures and checks the call of the kernel, in turn with those of the baseline."""
        output_slots, results = passed.output_slots, partial(passed.results_of, inputs=call.inputs)
        warm_until = monotonic() + _WARM_UP_S
        operators = self._first_call(kernel, call, watch)
        slots = list(output_slots.values()) if isinstance(output_slots, Mapping) else output_slots
        self._expect_no_cast(kernel.name, call.results())
        missing = self._missing_outputs(kernel.name, call.results(), results, slots)
        self._expect_unchanged(watch, kernel.name, by_value=False)

        self._sampling.warm_up(call.repeat, most_calls=_WARM_UP_CALLS - 1, until=warm_until)
        rounds, why_alone = None, self._first_calls(rivals)
        if rivals and not why_alone:
            samples, rounds = self._sampling.take_turns((call, *rivals))
            # The baseline may have written the tensors that are the results.
            call.repeat()
        else:
            samples = self._sampling.take(call.launch, call.restore if call.changes_tensors else None)
        self._expect_unchanged(watch, kernel.name)
        computed = results(call.kept_results())
        originals, by_name = call.originals()
        checked = check(passed.expected, originals, by_name, computed, self._row.seed)
        self.outcome = self._sampling.outcome(
            samples,
            checked,
            execution=Execution(
                kernel.ran,
                outputs_missing=missing,
                conversions=tuple(call.prepared.converted) if call.prepared else (),
                set_up_s=call.set_up_s if self._source else None,
            ),
            assumed=self._row.assumptions,
            noted=(why_alone,) if why_alone else (),
            operators=operators,
            against=baseline.ran if rounds else "",
            rounds=rounds,
        )

    def _first_call(self, kernel: _Kernel, call: KernelCall, watch: InputWatch) -> list[str]:
        """Makes the set-up and the first call; returns the operators of torch that a call makes, where they count."""
        self._group.report_step("in its first call")

        def operators_of(make: Callable[[], None], again: Callable[[], None]) -> list[str]:
            if kernel.counts:
                return count_operators(make, again)
            make()
            return []

        operators = operators_of(call.start, call.restart)
        if call.prepared is not None:
            self._expect_unchanged(watch, f"the set-up of {kernel.name}")
            watch.allow(call.prepared.changes)
            operators = operators_of(call.launch if kernel.counts else call.first_prepared, call.repeat)
        return operators

    def _first_calls(self, rivals: Sequence[KernelCall]) -> str:
        """Makes the first calls of the baseline; returns why the kernel is measured alone, on all ranks, or ""."""
        why = ""
        for each in rivals:
            try:
                each.restart()
            except Exception as error:
                if fatal_device_error(error_text(error)):
                    raise
                why = f"not compared in turn: the baseline failed ({exception_line(error)})"
            if any(failed for (failed,) in self._group.gather([float(bool(why))])):
                return why or "not compared in turn: the baseline failed on another rank"
            self._sampling.warm_up(each.repeat, most_calls=_WARM_UP_CALLS - 1, until=monotonic() + _WARM_UP_S)
        return ""

    def _kernel(self, source: KernelSource | None, impl: Callable[..., Any]) -> _Kernel:
        """Returns what an implementation times in place of `impl`."""
        function = load_kernel(source, impl) if source else self._device.kernel(impl, self._spec.npu)
        is_default = function is impl
        # Without a call on an NPU the function is the kernel, and replaces none.
        is_counted = self._sampling.settings.measures and self._spec.npu is not None
        counts = is_counted and is_default and not may_be_compiled(impl)
        if source:
            # Without one its module has a name that only this process knows.
            name = _name(function) if source.module else f"{source.function} of {Path(source.path).name}"
            return _Kernel(function, name, source.implementation, counts)
        npu = "" if is_default else self._spec.npu or ""
        implementation = f"torch {public_version(torch.__version__)}" if is_default else npu
        return _Kernel(function, npu or _name(function), implementation, counts)

    def _expect_no_cast(self, name: str, found: Results) -> None:
        """Raises Unsupported if the row's kernel includes a Cast of its only result, as graph mode fuses it.

        A kernel of an implementation has to return the results that the row describes.
        """
        row = self._row
        if self._source or len(found) != 1 or found[0] is None or len(row.output_slots) != 1:
            return
        computed, dtype = found[0].dtype, row.output_dtype()
        if computed == dtype or (_is_integer(computed) and _is_integer(dtype)) or found[0].shape != row.output_shape():
            return
        if any(each.is_floating_point and each.itemsize == 1 for each in (computed, dtype)):
            # FP8 is quantized, and no Cast makes it.
            return
        real = {slot.dtype for slot in row.input_slots if (known := known_dtype(slot.dtype)) and known.is_float}
        # Nothing casts a kernel's result to the dtype that all its inputs have: the call is wrong.
        if not computed.is_floating_point or real != {row.output_slots[0].dtype}:
            raise Unsupported(f"output 0 is {computed} from {name}, {dtype} in the row: a fused Cast is not replayed")

    def _missing_outputs(
        self, name: str, found: Results, results: Callable[[Results], Results], slots: Sequence[int | None] | None
    ) -> tuple[int, ...]:
        """Returns the slots of the row whose results the kernel does not compute.

        The caller keeps no reference to the results of the first call: they would take memory while samples are taken.

        Args:
            name: name of the kernel.
            found: the results of the first call.
            results: selects the results that are checked.
            slots: the output slots of these results; None: their order.

        Raises:
            ReplayError: there is no result to check.
            InvalidRow: a result differs from the row in shape or dtype.
        """
        if not found or found[0] is None:
            raise ReplayError(f"{name} returned no tensor to check: return it, or name it in mutates or overwrites")
        slots = range(len(found)) if slots is None else slots
        computed = results(found)
        self._expect_outputs(name, computed, slots)
        return tuple(slot for slot, result in zip(slots, computed, strict=True) if result is None and slot is not None)

    def expect_memory(self) -> None:
        """Refuses a row that does not fit into the memory of the device, or of the host that checks it.

        Raises:
            OutOfMemory: the row needs more than is available.
        """
        tensors = self._bytes
        needed = tensors * _MEMORY_FACTOR
        if needed <= _ALWAYS_THERE_BYTES:
            return
        self._sampling.expect_memory(needed)
        if is_checked_on_host(self._device.torch_device) and tensors > (available := host_available_bytes()):
            needs, left = (f"{size / 2**30:.1f} GiB" for size in (tensors, available))
            raise OutOfMemory(f"the check of the row needs about {needs} of the host's memory, {left} are available")

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than the device has left."""
        is_harmless = self._source is None and self._bytes <= _HARMLESS_BYTES
        return nullcontext() if is_harmless else self._device.bounded_memory()

    def _expect_unchanged(self, watch: InputWatch, kernel: str, *, by_value: bool = True) -> None:
        """Raises an error on every rank if the kernel has changed an undeclared input on any rank.

        Args:
            watch: the inputs.
            kernel: name of the kernel.
            by_value: whether changes that torch does not count are found too, which compares memory.

        Raises:
            ChangedInput: this rank's input was changed.
            ReplayError: another rank's input was changed.
        """
        if by_value:
            self._device.synchronize()
        changed = watch.changed(by_value=by_value)
        ranks = [i for i, (found,) in enumerate(self._group.gather([float(bool(changed))])) if found]
        if changed:
            place, tensor = changed[0]
            remedy = (
                "return Prepared(call, changes=[...]) with that tensor if the call is to change it"
                if self._source
                else f"give replay(...) mutates=[{place!r}] if the kernel is to change it, "
                f"overwrites=[{place!r}] if the kernel does not read it"
            )
            raise ChangedInput(
                f"{kernel} changed {tensor}, which {'it' if self._source else 'the replay'} does not declare; later "
                f"calls would start from other values: {remedy}",
                place=place,
            )
        if ranks:
            raise ReplayError(f"{kernel} changed an input on rank {ranks[0]}, which the replay does not declare")

    def _expect_outputs(self, name: str, results: Results, slots: Sequence[int | None]) -> None:
        """Raises InvalidRow if the results of the kernel differ from the row in shape or dtype.

        Integer dtypes are not compared with each other.
        """

        def refused(column: str, slot: int, found: object) -> InvalidRow:
            if self._source:
                problem, remedy = f"{name} returns {found} as output {slot}", "correct the kernel, or else the row"
            else:
                problem = f"output {slot} of {self._row.kernel_type} is {found} from {name} for these inputs"
                remedy = "correct the wrong cell (inputs or outputs), or, if the row is right, the function"
            return self._row.refuse(column, problem, remedy)

        for result, slot in zip(results, slots, strict=True):
            if slot is None or result is None:
                continue
            shape, dtype = self._row.output_shape(slot), self._row.output_dtype(slot)
            if tuple(result.shape) != shape:
                raise refused(OUTPUT_SHAPES, slot, tuple(result.shape))
            if result.dtype != dtype and not (_is_integer(result.dtype) and _is_integer(dtype)):
                raise refused(OUTPUT_DTYPES, slot, result.dtype)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the signature of a function without its annotations; None if it has none, as built-in ones."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return found.replace(parameters=plain, return_annotation=inspect.Signature.empty)


def _name(function: Callable[..., Any]) -> str:
    """Returns the qualified name of a function, for messages."""
    if isinstance(function, FunctionType):
        return f"{function.__module__}.{function.__qualname__}"
    # The module names of built-in functions are internal to torch.
    return f"torch's {getattr(function, '__name__', type(function).__name__)}"


def _as_deep(baseline: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the baseline behind a frame of Python, if the kernel is a function of Python.

    A frame costs microseconds after a flush of the caches. A kernel that calls the very function of the baseline is as
    fast as that.
    """
    if not isinstance(kernel, FunctionType):
        return baseline

    def call(*arguments: Any, **keywords: Any) -> Any:
        return baseline(*arguments, **keywords)

    return call


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool
