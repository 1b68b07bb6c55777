"""The version of a device's driver, found without opening the device and without torch."""

from __future__ import annotations

from pathlib import Path

from bench.devices import npu_smi, nvidia_smi

#: Of the loaded kernel module. A container sees it too.
_NVIDIA_MODULE = Path("/sys/module/nvidia/version")


def driver_version(kind: str) -> str | None:
    """The version as manifests have it; "" where nobody tells, None for a kind of device that has no driver."""
    if kind == "cuda":
        return _of_module(_NVIDIA_MODULE) or nvidia_smi.driver_version()
    return npu_smi.driver_version() if kind == "npu" else None


def _of_module(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):  # no such module, or a system that hides it
        return ""
