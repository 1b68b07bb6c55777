"""How a replay tells that its row was not measured. Each error becomes a status of the row."""

from __future__ import annotations

from opatlas.errors import OpAtlasError
from opatlas.model.schema import Status


class ReplayError(OpAtlasError):
    """A row that was not measured, with the status it gets."""

    status = Status.FAILED


class InvalidRow(ReplayError):
    """No call can be built from the row: its slots contradict each other, or one is missing."""

    status = Status.INVALID


class WrongResult(ReplayError):
    """The kernel's result is not what the reference says."""


class ChangedInput(ReplayError):
    """The kernel changes an input that its replay does not name.

    Attributes:
        place: the position of the argument, or its name.
    """

    def __init__(self, message: str, *, place: int | str) -> None:
        super().__init__(message)
        self.place = place


class Unsupported(ReplayError):
    """This device has no such operator, or not for these dtypes."""

    status = Status.UNSUPPORTED


class MissingPrecondition(ReplayError):
    """Something that the row needs is not set up on this machine; the message says what to do."""

    status = Status.SKIPPED


class OutOfMemory(ReplayError):
    """The row does not fit into the device's memory."""

    status = Status.OOM


class DeviceUnhealthy(OpAtlasError):
    """The device is there, and does not compute what it should."""


class DeviceGone(OpAtlasError):
    """The device is not there, or not there any more: no row can run on it."""


class GroupTimeout(DeviceGone):
    """A group did not come together in time: to wait for it again would take as long.

    Attributes:
        nodes: no rank of it could start, because other nodes did not come.
    """

    def __init__(self, message: str, *, nodes: bool) -> None:
        super().__init__(message)
        self.nodes = nodes
