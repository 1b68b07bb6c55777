"""The device of simulated.py, as a device process opens it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import simulated

from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.devices.device_lock import DeviceLock
from opatlas.run.instruments.instrument import MeasureSettings


class SimulatedDevice(CpuDevice):
    """A CPU as one of several devices. Rows of different devices run at the same time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        super().__init__(spec, settings)
        # The nodes of a cluster of Ray have devices of their own, although they are on one machine.
        node = os.environ.get("RAY_RAYLET_PID", "")
        self.lock = DeviceLock(simulated.FOLDER / f"lock-{simulated.own_id()}{node}")

    def describe(self) -> DeviceDescription:
        return DeviceDescription("Simulated", {"id": simulated.own_id()})

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            simulated.expect_well()
            time.sleep(float(os.environ.get("SIMULATED_SECONDS", "0")))
            return impl(*arguments, **keywords)

        return call

    def probe(self) -> None:
        simulated.expect_well()
        super().probe()
