"""Texts of values: durations, shares, sizes."""

from __future__ import annotations


def number(value: float) -> str:
    """Returns a number with four digits, and all digits before the point: `75.61`, `22,965`."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.4g}"


def microseconds(us: float) -> str:
    """Returns a duration whose unit the header has: `75.61`, `22,965`."""
    return number(us)


def duration(us: float) -> str:
    """Returns a duration with its unit, where no header has it: `75.61 us`."""
    return f"{microseconds(us)} us"


def percent(share: float, digits: int = 1) -> str:
    """Returns a share as a percentage: `8.4 %`."""
    return f"{share * 100:,.{digits}f} %"


def noise(share: float | None) -> str:
    """Returns a standard deviation as a share of the mean: `±2.1 %`; "" if it is not known."""
    return "" if share is None else f"±{percent(share)}"


def change(share: float) -> str:
    """Returns a relative change: `+8.4 %`."""
    return f"{share * 100:+,.1f} %"


def ratio(factor: float) -> str:
    """Returns a factor: `1.32x`, `445x`, `0.012x`."""
    return f"{factor:,.0f}x" if factor >= 100 else f"{factor:.2f}x" if factor >= 0.1 else f"{factor:.2g}x"


def scaled(value: float, unit: str) -> str:
    """Returns a value with a decimal prefix before its unit: `12.4 GB`, `1.6 TB/s`, `312 TFLOP/s`."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{number(value / factor)} {prefix}{unit}"
    return f"{number(value)} {unit}"


def size(count: int) -> str:
    """Returns a number of bytes: `12.4 GB`."""
    return scaled(count, "B")


def seconds(count: float) -> str:
    """Returns `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(count)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
