"""Openers of devices: of such whose second rank's is not there, or does not open, and of others that groups need."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from bench.devices.cpu import CpuDevice
from database.errors import OpAtlasError


def _second() -> bool:
    return os.environ["RANK"] == "1"


def second_is_missing(spec, settings):
    if _second():
        raise OpAtlasError("no second device")
    return CpuDevice(spec, settings)


def second_dies(spec, settings):
    if _second():
        os.kill(os.getpid(), signal.SIGKILL)
    return CpuDevice(spec, settings)


def second_hangs(spec, settings):
    if _second():
        time.sleep(1000)
    return CpuDevice(spec, settings)


class WithoutLock(CpuDevice):
    def locked(self, when_waiting, when_taken, limit_s=None):
        return contextlib.nullcontext()


without_lock = WithoutLock
