"""Openers of devices: the second rank's is not there, or does not open; and others that groups need."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from torch import distributed

from opatlas.errors import OpAtlasError
from opatlas.run.devices.cpu import CpuDevice


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


def sees_all(spec, settings):
    assert not spec.sees_no_other
    assert "ASCEND_RT_VISIBLE_DEVICES" not in os.environ
    return WithoutLock(spec, settings)


def dies_at_its_end(spec, settings):
    """A rank whose libraries crash while it shuts down."""
    distributed.destroy_process_group = lambda: os.kill(os.getpid(), signal.SIGSEGV)
    return CpuDevice(spec, settings)
