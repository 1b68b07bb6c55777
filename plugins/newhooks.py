"""The hooks that OpAtlas adds to pytest's, for a conftest.py or another plugin to implement."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from opatlas.devices.device import DeviceSpec


@pytest.hookspec(firstresult=True)
def pytest_opatlas_devices(config: pytest.Config) -> Sequence[DeviceSpec] | None:
    """The devices that rows are replayed on, one process each.

    Return specs whose `opener` opens a device of your own (bench/devices has the Protocol), or None
    to leave the choice to OpAtlas. What `config.option.device` names, where it is not None, has to be the
    kind or the name of each spec. It is called before and after pytest is configured, in every process
    of a session, and must give the same devices each time. Do not import torch here.
    """
