"""The fixtures that a replay sees.

The body of a replay runs where the device is, in the device process, which gives it its own `row`
and `replay` (bench/runner.py). In pytest these fixtures see to it that the device is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.errors import DeviceGone
from bench.executor import Executor


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """The device that rows are replayed on, open; the session ends where it cannot be opened."""
    session: Any = request.config.pluginmanager.get_plugin("opatlas-session")
    try:
        executor: Executor = session.executor()
        executor.describe()
    except DeviceGone as error:
        session.end_without_device(str(error), pytest.ExitCode.USAGE_ERROR)
    yield executor
    executor.close()


@pytest.fixture(scope="session")
def replay(device: Executor) -> Executor:
    """Called by the body of a replay with the kernel, its arguments and its reference; see bench/replay.py."""
    return device
