"""Tells whether what is timed stands in for the kernel that a row names: several operators in place of one kernel.

A kernel type is one kernel of Ascend's. Elsewhere a composition of torch's operators may take its place, whose time is
no estimate of a fused kernel's. No torch is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence

#: In the place of operators that were not counted.
REST = "..."
#: So many names fit into a cell.
_MOST_NAMES = 4


def stand_in(operators: Sequence[str], device_kernels: int | None) -> str:
    """What stands in for a kernel: "" if one operator was called, or one device kernel launched.

    Args:
        operators: their names, in the order of the calls; none where the kernel bypasses torch.
        device_kernels: how many device kernels the call launched; None: not known.
    """
    if len(operators) <= 1:
        return ""
    names = list(dict.fromkeys(operators))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [REST]
    least = "at least " if operators[-1] == REST else ""
    text = f"composition of {least}{len(operators)} torch operators ({', '.join(names)})"
    return text if device_kernels is None else with_device_kernels(text, device_kernels)


def with_device_kernels(text: str, device_kernels: int) -> str:
    """Completes what `stand_in` gave, once the number of device kernels of the call is known."""
    return f"{text}, {device_kernels} device kernels" if text and device_kernels != 1 else ""
