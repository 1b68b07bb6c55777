"""The fixtures that a replay sees.

The body of a replay runs where the device is, in the device process, which gives it its own `row`
and `replay` (opatlas/engine/runner.py). In pytest these fixtures see to it that the device is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opatlas.devices.device import DeviceDescription
from opatlas.isolation.executor import Executor
from opatlas.model.errors import DeviceGone

from .replay_session import SESSION


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """The device that rows are replayed on, open; the session ends where it cannot be opened."""
    session = request.config.stash[SESSION]
    try:
        executor = session.executor()
        executor.describe()
    except DeviceGone as error:
        session.context.end_without_device(str(error), pytest.ExitCode.USAGE_ERROR)
    yield executor
    executor.close()


@pytest.fixture(scope="session")
def replay(device: Executor) -> Executor:
    """Called by the body of a replay with the kernel, its arguments and its reference; see opatlas/engine/replay.py."""
    return device


@pytest.fixture(scope="session")
def npu(device: Executor) -> DeviceDescription:
    """The NPU that rows are replayed on, open, and what it says of itself; skips where it is another device."""
    description = device.describe()
    if description.kind != "npu":
        pytest.skip(f"needs an NPU, and rows are replayed on {description.name}")
    return description


@pytest.fixture(scope="session")
def custom_opp(device: Executor) -> None:
    """For replays of custom operators: skips them, with what to do, on an NPU where nothing can register these.

    Where something may, the row itself tries (opatlas/devices/npu_operators.py).
    Other devices need no custom operators.
    """
    if reason := device.describe().no_custom_operators:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def group(device: Executor) -> Executor:
    """The group of devices that a row needs (`@replays(..., group=...)`); its ranks get their own view of it.

    Which group that is, and that there are enough devices for it, is found out row by row (opatlas/isolation/groups/).
    """
    return device
