"""Runs in the environment of torch_npu: makes the NPU calls of replays, on tensors without values.

    python npu_proof.py JOBS VERDICTS

JOBS is a JSON list of rows, each as [replay function, kernel type, cells]; for each a line of JSON is
added to VERDICTS as soon as it is known, so that a call that ends the process costs only its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import custom_schemas
import torch
import torch_npu
from torch.utils._python_dispatch import TorchDispatchMode

from opatlas.row.columns import EP_SIZE
from opatlas.row.errors import InvalidRow, Unsupported
from opatlas.run.devices.npu_operators import resolve_npu_call
from opatlas.run.group import Group
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.instruments.instrument import MeasureSettings, Samples
from opatlas.run.registry import ReplaySpec, replay_spec, select_arguments
from opatlas.run.replay import Replay
from opatlas.run.result_check import Comparison

META = torch.device("meta")
#: Of ours, for operators that torch_npu has none for. A tensor in another format has the same shape.
_META_KERNELS = dict.fromkeys(
    ("npu::npu_format_cast", "npu::npu_format_cast.Tensor"), lambda x, *_, **__: torch.empty_like(x)
)
_OF_TORCH = {"aten", "prim", "prims"}
#: A longer message is a table of kernels and back-ends.
_LONGEST_MESSAGE = 600


class Refused(Exception):
    """The NPU call did not take the arguments that the replay passes."""


class _Accepted(Exception):
    """An operator that needs values has taken its arguments: its schema is all there is to ask."""

    def __init__(self, operator: torch._ops.OpOverload) -> None:
        super().__init__(str(operator))
        self.operator = operator


class _UnknownResults(Exception):
    """The shapes of a kernel's results depend on values, so that there is nothing to compare."""


class Dispatched(TorchDispatchMode):
    """Sees the operators that a call comes down to, each of them after its schema took the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: set[str] = set()
        self.is_ours = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.namespaces.add(func.namespace)
        self.is_ours |= func.name() in _META_KERNELS
        if func.namespace in custom_schemas.SCHEMAS or not (func.namespace in _OF_TORCH or _has_meta_kernel(func)):
            raise _Accepted(func)
        try:
            return func(*args, **(kwargs or {}))
        except NotImplementedError:
            if func.namespace not in _OF_TORCH:
                raise
            # Its results' shapes depend on values.
            raise _Accepted(func) from None


def _has_meta_kernel(operator: torch._ops.OpOverload) -> bool:
    keys = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key) for key in keys)


class MetaDevice:
    """A device on which the NPU call runs as far as it can without an NPU.

    Attributes:
        proof: how the arguments of the last call were taken; see `opatlas.run.registry`. "" before the first.
    """

    torch_device = META
    name = "none"

    def __init__(self) -> None:
        self.proof = ""

    def instrument(self) -> MetaDevice:
        return self

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        if npu is None:
            return impl
        try:
            call = resolve_npu_call(npu)
        except Unsupported as error:
            raise Refused(str(error)) from None

        def prove(*arguments: Any, **keywords: Any) -> Any:
            with Dispatched() as dispatched:
                try:
                    result = call(*arguments, **keywords)
                except _Accepted as accepted:
                    operator = accepted.operator
                except Exception as error:
                    raise Refused(f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]) from error
                else:
                    if dispatched.is_ours:
                        self.proof = "schema"
                    else:
                        self.proof = "meta kernel" if dispatched.namespaces - _OF_TORCH else "torch"
                    return result
            custom = operator.namespace in custom_schemas.SCHEMAS
            self.proof = "custom schema" if custom else "schema"
            try:
                result = impl(*arguments, **keywords)
            except NotImplementedError:
                raise _UnknownResults from None
            _expect_as_many_results(result, operator)
            return result

        return prove

    def sample(self, call: Callable[[], object], before_each: Any, rule: Any) -> Samples:
        return Samples((1.0,))

    def synchronize(self) -> None:
        pass

    def flush_cache(self) -> None:
        pass


def _expect_as_many_results(result: Any, operator: torch._ops.OpOverload) -> None:
    """The shapes of `impl` stand in for those of the call, so both must return the same things."""
    returns = operator._schema.returns
    if len(returns) == 1 and isinstance(returns[0].type, torch.ListType):
        return
    count = 0 if result is None else len(result) if isinstance(result, (tuple, list)) else 1
    if count != len(returns):
        raise Refused(f"{operator} returns {len(returns)} values, and the timed call returns {count}")


class Unchecked:
    """A formula without values to compare."""

    name = "unchecked"

    def compare(self, *_: Any) -> list[Comparison]:
        return []


class Proof(Replay):
    """The `replay` of a row: calls the NPU call with the arguments of the replay, and compares shapes and dtypes."""

    def __init__(self, row: ReplayRow, spec: ReplaySpec, device: Any) -> None:
        super().__init__(row, spec, device, device, MeasureSettings(repeat_count=1, cache="warm"))

    def __call__(self, impl: Callable[..., Any], *arguments: Any, expected: Any, **keywords: Any) -> None:
        with suppress(_UnknownResults):
            super().__call__(impl, *arguments, expected=Unchecked(), **keywords)


def verdict(function_name: str, kernel_type: str, cells: dict[str, str]) -> dict[str, str]:
    """Returns the outcome of a row: "proof", "unsupported" or "invalid" (why), or "refused" (by which function)."""
    module, _, name = function_name.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    spec = replay_spec(function)
    device = MetaDevice()

    def run(spec: ReplaySpec) -> None:
        row = ReplayRow(kernel_type, cells, META)
        proof = Proof(row, spec, device)
        with torch.no_grad():
            function(**select_arguments(function, row=row, replay=proof, group=_group_of(cells)))

    try:
        run(spec)
    except Unsupported as error:
        return {"unsupported": str(error)}
    except InvalidRow as error:
        if not device.proof:
            return {"invalid": str(error)}
        try:
            # Is it the row that contradicts itself, or the call that returns something else?
            run(ReplaySpec(spec.kernel_types, npu=None))
        except (InvalidRow, Unsupported):
            return {"invalid": str(error)}
        return {"refused": f"other results than those of the row: {error}"}
    except Refused as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"refused": f"{type(error).__name__} in the replay itself: {error}"[:_LONGEST_MESSAGE]}
    return {"proof": device.proof or "none"}


def _group_of(cells: dict[str, str]) -> Group:
    """That of a row, as its first rank sees it, and without a name: there are no other ranks."""
    return Group(0, int(cells.get(EP_SIZE) or 1))


def _prepare() -> None:
    # Some meta kernels ask for the SoC, which is known once a device is open; the stand-in knows it already.
    torch_npu.op_plugin.meta._meta_registrations.get_soc_version = torch_npu._C._npu_get_soc_version
    for name, kernel in _META_KERNELS.items():
        torch.library.impl(name, "Meta")(kernel)
    custom_schemas.register()


def main(arguments: Sequence[str]) -> None:
    jobs, verdicts = map(Path, arguments)
    _prepare()
    with verdicts.open("a") as lines:
        for job in json.loads(jobs.read_text()):
            print(json.dumps(verdict(*job)), file=lines, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
