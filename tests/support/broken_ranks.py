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


def meets_where_all_are_visible(spec, settings):
    """HCCL where it does not start in processes that see one NPU each."""
    if spec.sees_no_other or "ASCEND_RT_VISIBLE_DEVICES" in os.environ:
        distributed.init_process_group = _not_initialized
    return WithoutLock(spec, settings)


def _not_initialized(*arguments, **keywords):
    raise RuntimeError("HCCL function error: HcclGetRootInfo")


def dies_at_its_end(spec, settings):
    """A rank whose libraries crash while it shuts down."""
    distributed.destroy_process_group = lambda: os.kill(os.getpid(), signal.SIGSEGV)
    return CpuDevice(spec, settings)
