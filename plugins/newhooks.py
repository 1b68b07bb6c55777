"""The hooks that OpAtlas adds to pytest's, for a conftest.py or another plugin to implement."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from opatlas.devices.device import DeviceSpec


@pytest.hookspec(firstresult=True)
def pytest_opatlas_devices(config: pytest.Config) -> Sequence[DeviceSpec] | None:
    """Returns the devices that rows are replayed on, one process each; None leaves the choice to OpAtlas.

    The `opener` of a spec opens a device of your own (opatlas/devices/device.py has the Protocol). Where
    `config.option.device` is not None, it must be the kind or the name of each spec. pytest calls the hook before and
    after it is configured, in every process of a session, and the result must be the same each time. Do not import
    torch here.
    """
