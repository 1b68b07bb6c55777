"""Decides whether the duration of a row is that of a composition of torch operators.

A kernel type is one kernel on an NPU. Elsewhere torch may run several operators in its place.
"""

from __future__ import annotations

from functools import cache

from opatlas.row.communication import is_communication
from opatlas.run.devices.device import device_kinds

#: The note of rows for which `composition_of` returns None.
UNKNOWN_COMPOSITION = "the rows do not say whether a composition of operators ran"


def composition_of(kernel_type: str, instrument: str, device_kernels: str) -> bool | None:
    """Returns whether a replay without Quality and Stand-In is of a composition; None if the row does not say.

    Rows of another tool, and of some databases that ship, have neither. A row of torch without both on a GPU or CPU
    says so only if one device kernel ran, or if the kernel type is that of an operator of torch.

    Args:
        instrument, device_kernels: the cells of Instrument and MicroBench Device Kernels.
    """
    instrument = instrument.strip()
    is_native = any(kind.is_native and instrument in kind.instruments for kind in device_kinds().values())
    if not instrument or is_native or is_communication(kernel_type):
        return False
    if device_kernels.strip() == "1" or _is_operator_of_torch(kernel_type):
        return False
    return None


@cache
def _is_operator_of_torch(kernel_type: str) -> bool:
    """Whether torch's own operator launches the kernel on an NPU, and not one of torch_npu or of a serving engine."""
    # Few rows need the registry, which takes longer to import than a query to answer.
    from opatlas.run.kernel_facts import replays_of_bench, runs_on_cpu
    from opatlas.run.registry import replay_spec

    spec = replay_spec(replays_of_bench().get(kernel_type))
    return spec is not None and spec.npu is not None and runs_on_cpu(spec.npu)
