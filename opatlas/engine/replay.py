"""The `replay` that a replay function calls: runs the kernel, times it, checks its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch

from opatlas.devices.cpu import bounded_memory, host_available_bytes
from opatlas.devices.device import Device
from opatlas.engine.call_watch import InputWatch, count_operators, index_inputs, may_be_compiled
from opatlas.engine.check import Formula, check, is_checked_on_host
from opatlas.engine.group import ALONE, Group
from opatlas.engine.inputs.replay_row import ReplayRow
from opatlas.engine.job import RowOutcome
from opatlas.engine.registry import ReplaySpec
from opatlas.engine.sampling import Sampling
from opatlas.instruments.instrument import Instrument, MeasureSettings
from opatlas.model.errors import ChangedInput, InvalidRow, OutOfMemory, ReplayError
from opatlas.model.schema import OUTPUT_DTYPES, OUTPUT_SHAPES

#: A row needs its tensors, and about as much again for clones, the check and a kernel's workspace.
_MEMORY_FACTOR = 2.0
#: Asking the system what is left takes longer than a small row.
_ALWAYS_THERE_BYTES = 64 << 20
#: Asking the system what is left takes a millisecond, and a row of such small tensors takes no gigabytes besides.
_HARMLESS_BYTES = 1 << 20
#: Before the first sample the kernel is called so often, or for so long: the first call allocates
#: and loads code, and a kernel of seconds needs no second one.
_WARM_UP_CALLS = 3
_WARM_UP_S = 0.2
#: Functions of C, and operators of torch.
_WITHOUT_STATE = (BuiltinFunctionType, MethodDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class Replay:
    """Bound to one row. Calling it measures the kernel and leaves the result in `outcome`."""

    def __init__(
        self,
        row: ReplayRow,
        spec: ReplaySpec,
        device: Device,
        instrument: Instrument,
        settings: MeasureSettings,
        group: Group = ALONE,
    ) -> None:
        self.outcome: RowOutcome | None = None
        self._row = row
        self._spec = spec
        self._device = device
        self._group = group
        self._sampling = Sampling(row.kernel_type, row.cells, device, instrument, settings, group)

    def __call__(
        self,
        impl: Callable[..., Any],
        *arguments: Any,
        expected: Formula,
        mutates: Sequence[int | str] = (),
        overwrites: Sequence[int | str] = (),
        output_slots: Sequence[int | None] | Mapping[int, int] | None = None,
        **keywords: Any,
    ) -> None:
        """Measures `impl(*arguments, **keywords)` and checks what it returns.

        Args:
            impl: the kernel in torch's own operators; on an NPU the replay's NPU call takes its place.
            arguments, keywords: what it is called with.
            expected: the reference, given the same arguments.
            mutates: positions or names of the arguments, tensors or lists of them, that the kernel changes:
                each call starts from the same values, and the reference sees those.
                Where it returns nothing, these arguments are its results.
            overwrites: positions or names of the arguments that the kernel only writes: their values do not
                count, and are not restored. They are the results of a kernel that returns nothing and mutates nothing.
            output_slots: the row's output slots that the results stand for, None for a result that
                the row does not list; results beyond them are not looked at. A mapping has the slots of the
                results that are looked at, by their place. Default: the first ones.

        Raises:
            InvalidRow: the results have other shapes or dtypes than the row says.
            ChangedInput: the kernel changes an argument that neither `mutates` nor `overwrites` names.
            ReplayError: there is no result to check.
            WrongResult: the check found wrong elements.
        """
        kernel = self._device.kernel(impl, self._spec.npu)
        inputs = index_inputs(arguments, keywords)
        pristine = {place: _clone(inputs[place]) for place in mutates}
        watch = InputWatch(inputs, declared={*mutates, *overwrites}, seed=self._row.seed)

        latest: Any = None
        calls = 0

        def call() -> None:
            nonlocal latest, calls
            calls += 1
            latest = kernel(*arguments, **keywords)

        def results() -> tuple[torch.Tensor, ...]:
            everything = result_tensors(latest, inputs, mutates or overwrites)
            if isinstance(output_slots, Mapping):
                return tuple(everything[place] for place in output_slots)
            return everything if output_slots is None else everything[: len(output_slots)]

        def restore() -> None:
            for place, value in pristine.items():
                for changed, original in zip(_flat(inputs[place]), _flat(value), strict=True):
                    changed.copy_(original)

        has_all_from_caller = not _may_hold_tensors(kernel)

        def touched() -> tuple[torch.Tensor, ...] | None:
            return (*_flat(list(inputs.values())), *_flat(latest)) if has_all_from_caller else None

        def once_more() -> None:
            restore()
            call()

        warm_until = monotonic() + _WARM_UP_S
        self._group.report_step("in its first call")
        operators: list[str] = []
        if kernel is impl and not may_be_compiled(impl):
            operators = count_operators(call, once_more)
        else:
            call()
        name = self._spec.npu if self._spec.npu and kernel is not impl else _name(kernel)
        if not result_tensors(latest, inputs, mutates or overwrites):
            raise ReplayError(
                f"{name} returned no tensor, so that nothing could be checked: let it return what it computes, "
                "or name what it changes in mutates or overwrites"
            )
        slots = list(output_slots.values()) if isinstance(output_slots, Mapping) else output_slots
        self._expect_outputs(name, results(), range(len(results())) if slots is None else slots)
        self._expect_unchanged(watch, name)

        self._sampling.warm_up(once_more, most_calls=_WARM_UP_CALLS - 1, until=warm_until)
        samples = self._sampling.take(call, restore if pristine else None, touched)
        self._expect_unchanged(watch, name)
        originals = [pristine.get(i, value) for i, value in enumerate(arguments)]
        named = {name: pristine.get(name, value) for name, value in keywords.items()}
        checked = check(expected, originals, named, results(), self._row.seed)
        self.outcome = self._sampling.outcome(
            samples,
            checked,
            calls=calls,
            assumed=self._row.assumptions,
            operators=operators,
        )

    def expect_memory(self) -> None:
        """Refuses a row that the device cannot hold, or the host that checks it, before anything is allocated.

        Raises:
            OutOfMemory: it needs more than is available.
        """
        tensors = self._row.bytes()
        needed = tensors * _MEMORY_FACTOR
        if needed <= _ALWAYS_THERE_BYTES:
            return
        self._sampling.expect_memory(needed)
        if is_checked_on_host(self._device.torch_device) and tensors > (available := host_available_bytes()):
            needs, left = (f"{size / 2**30:.1f} GiB" for size in (tensors, available))
            raise OutOfMemory(f"its check needs about {needs} of the host's memory, {left} are available")

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than the device has left."""
        return nullcontext() if self._row.bytes() <= _HARMLESS_BYTES else bounded_memory(self._device)

    def _expect_unchanged(self, watch: InputWatch, kernel: str) -> None:
        """Raises ChangedInput on every rank where the kernel, of that name, has changed an input on any."""
        self._device.synchronize()
        changed = watch.changed()
        ranks = [i for i, (found,) in enumerate(self._group.gather([float(bool(changed))])) if found]
        if changed:
            place, what = changed[0]
            raise ChangedInput(
                f"{kernel} changed {what}, which its replay does not say: later calls would start from other values; "
                f"give mutates=[{place!r}] to replay(...) if the kernel is to change it, "
                f"overwrites=[{place!r}] if the kernel does not read it",
                place=place,
            )
        if ranks:
            raise ReplayError(f"{kernel} changed an input on rank {ranks[0]}, which its replay does not say")

    def _expect_outputs(self, name: str, results: Sequence[torch.Tensor], slots: Sequence[int | None]) -> None:
        """The row must describe what the kernel, of that name, returns; indices may be of any integer type."""

        def refused(column: str, slot: int, found: object) -> InvalidRow:
            return self._row.refuse(
                column,
                f"output {slot} of {self._row.kernel_type} is {found} from {name} for these inputs",
                "correct the cell that is wrong, inputs or outputs, or, if the row is right, that function",
            )

        for result, slot in zip(results, slots, strict=True):
            if slot is None:
                continue
            shape, dtype = self._row.output_shape(slot), self._row.output_dtype(slot)
            if tuple(result.shape) != shape:
                raise refused(OUTPUT_SHAPES, slot, tuple(result.shape))
            if result.dtype != dtype and not (_is_integer(result.dtype) and _is_integer(dtype)):
                raise refused(OUTPUT_DTYPES, slot, result.dtype)


def _name(function: Callable[..., Any]) -> str:
    """Where a reader finds a function that returns what it should not."""
    if isinstance(function, FunctionType):
        return f"{function.__module__}.{function.__qualname__}"
    # What is built in says of itself that it lies in modules that nobody imports.
    return f"torch's {getattr(function, '__name__', type(function).__name__)}"


def _may_hold_tensors(kernel: Callable[..., Any]) -> bool:
    """Whether a kernel may read tensors that are none of its arguments: those of a closure, a module, a partial."""
    if isinstance(kernel, FunctionType):
        return kernel.__closure__ is not None
    return not isinstance(kernel, _WITHOUT_STATE) or isinstance(getattr(kernel, "__self__", None), torch.Tensor)


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def result_tensors(
    returned: Any, inputs: Mapping[int | str, Any], mutates: Sequence[int | str]
) -> tuple[torch.Tensor, ...]:
    """The results of a call: the tensors that it returned, or those that it changed if it returned none."""
    return _flat([inputs[place] for place in mutates] if returned is None else returned)


def _flat(value: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a tensor, or of lists and mappings of them, in order; what is no tensor is left out."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return tuple(tensor for item in value for tensor in _flat(item))
    return (value,) if isinstance(value, torch.Tensor) else ()


def _clone(value: Any) -> Any:
    return [tensor.clone() for tensor in value] if isinstance(value, (list, tuple)) else value.clone()
