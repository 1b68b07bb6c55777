"""The fixtures that a replay may name.

The body of a replay runs in the device process, with the `row` and `replay` of opatlas/run/runner.py. In pytest's
process these fixtures open the device, and skip a replay that cannot run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opatlas.row.errors import DeviceGone
from opatlas.run.devices.device import DeviceDescription, kind_named

from .session import SESSION

if TYPE_CHECKING:
    from .row_runner import RowRunner


@pytest.fixture(scope="session")
def msprof(request: pytest.FixtureRequest) -> Path | None:
    """The folder for the profiles of the sessions of msprof in which rows run; None for another instrument."""
    return request.config.stash[SESSION].context.msprof


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest, msprof: Path | None) -> Iterator[RowRunner]:
    """What runs the rows of the session, with its device open. Ends the session if the device cannot be opened."""
    session = request.config.stash[SESSION]
    try:
        rows = session.runner
        rows.describe()
    except DeviceGone as error:
        session.context.end_without_device(str(error))
    yield rows
    rows.release()


@pytest.fixture
def row(request: pytest.FixtureRequest) -> None:
    """Fails a test without `@replays`; a test with `@replays` gets its rows in place of this fixture."""
    pytest.fail(f"{request.node.name} has no rows: name the kernel types with @replays(...)", pytrace=False)


@pytest.fixture(scope="session")
def replay(device: RowRunner) -> RowRunner:
    """The same as `device`. In the device process a replay calls its `replay` with kernel, arguments and formula."""
    return device


@pytest.fixture(scope="session")
def npu(device: RowRunner) -> DeviceDescription | None:
    """The NPU that rows are replayed on, set up; None on another device, where rows time a stand-in."""
    description = device.describe()
    return description if kind_named(description.kind).is_native else None


@pytest.fixture(scope="session")
def custom_opp(npu: DeviceDescription | None) -> None:
    """Skips replays of custom operators on an NPU that cannot register them, with the remedy as reason.

    Where the operators may be there, the row itself tries (opatlas/run/devices/npu_operators.py). Other devices need no
    custom operators.
    """
    if npu is not None and npu.no_custom_operators:
        pytest.skip(npu.no_custom_operators)


@pytest.fixture(scope="session")
def group(device: RowRunner) -> RowRunner:
    """The same as `device`. In the device process a replay with `@replays(..., group=...)` gets its rank's view.

    Each row says which group it needs, and is skipped where there are too few devices (opatlas/run/group_pool.py).
    """
    return device
