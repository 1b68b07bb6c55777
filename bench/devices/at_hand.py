"""Which devices this machine offers, found without importing torch."""

from __future__ import annotations

from bench.job import DeviceSpec
from database.errors import OpAtlasError
from database.layout import cpu_device_name, kind_of


def devices_at_hand(name: str | None) -> list[DeviceSpec]:
    """The devices to replay on; all cores of a CPU are one.

    Args:
        name: a device as its database folder is named, or "cpu"; None: the device at hand.

    Raises:
        OpAtlasError: a device that replays do not run on.
    """
    if name is None or name == "cpu":
        return [DeviceSpec("cpu")]
    kind = kind_of(name)
    if kind != "cpu":
        raise OpAtlasError(
            f"--device {name} is {'an NPU' if kind == 'npu' else 'a GPU'}, and this version replays on the CPU only: "
            f"leave --device out to replay here, and name its database with --database-path"
        )
    if name != cpu_device_name():
        raise OpAtlasError(f"--device {name} is not this machine's CPU ({cpu_device_name()}): leave --device out")
    return [DeviceSpec("cpu")]
