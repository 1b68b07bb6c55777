"""Defines the errors of a row, each with the status that the row gets, and the errors of a device."""

from __future__ import annotations

from opatlas.errors import OpAtlasError
from opatlas.row.status import Status


class ReplayError(OpAtlasError):
    """The row was not measured.

    Attributes:
        status: the status of the row.
    """

    status = Status.FAILED


class InvalidRow(ReplayError):
    """The row describes no valid call: a slot is missing, or slots contradict each other."""

    status = Status.INVALID


class WrongResult(ReplayError):
    """The kernel's result differs from the formula."""


class ChangedInput(ReplayError):
    """The kernel changes an input that its replay does not declare.

    Attributes:
        place: position or name of the argument.
    """

    def __init__(self, message: str, *, place: int | str) -> None:
        super().__init__(message)
        self.place = place


class NoKernelLaunched(ReplayError):
    """A timed call has launched no kernel on the device."""


class Unsupported(ReplayError):
    """The device does not have the operator, or not for these dtypes."""

    status = Status.UNSUPPORTED


class MissingPrecondition(ReplayError):
    """The row needs something that is not set up on this machine; the message has the remedy."""

    status = Status.SKIPPED


class OutOfMemory(ReplayError):
    """The row needs more memory than is available."""

    status = Status.OOM


class DeviceUnhealthy(OpAtlasError):
    """The device exists, but fails or computes wrong results."""


class DeviceGone(OpAtlasError):
    """The device is missing, or stopped working: no row can run on it."""


class GroupTimeout(DeviceGone):
    """The ranks of a group did not all start in time; a second attempt would take as long.

    Attributes:
        nodes: whether no rank could start, because other nodes did not join.
    """

    def __init__(self, message: str, *, nodes: bool) -> None:
        super().__init__(message)
        self.nodes = nodes
