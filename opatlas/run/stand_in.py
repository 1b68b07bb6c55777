"""Describes a composition of torch operators that is timed in place of a kernel. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

#: Means operators that could not be counted.
REST = "..."
#: Maximum number of operator names in a cell.
_MOST_NAMES = 4


def describe_stand_in(operators: Sequence[str], device_kernels: int | None) -> str:
    """Describes a composition of operators that is timed in place of a kernel; "" for one operator or device kernel.

    A kernel type is one kernel on Ascend. On other devices several operators of torch may replace the kernel; their
    time is not an estimate of a fused kernel's time.

    Args:
        operators: names of the called operators in their order; none if the kernel bypasses torch.
        device_kernels: number of device kernels of the call; None: unknown.
    """
    if len(operators) <= 1:
        return ""
    names = list(dict.fromkeys(operators))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [REST]
    least = "at least " if operators[-1] == REST else ""
    text = f"composition of {least}{len(operators)} torch operators ({', '.join(names)})"
    return text if device_kernels is None else add_device_kernels(text, device_kernels)


def add_device_kernels(text: str, device_kernels: int) -> str:
    """Adds the number of device kernels to a description by `describe_stand_in`."""
    return f"{text}, {device_kernels} device kernels" if text and device_kernels != 1 else ""
