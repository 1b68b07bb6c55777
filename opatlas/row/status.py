"""The status of a row: the result of its last run, and what follows from it; which rows a session runs."""

from __future__ import annotations

from opatlas.text import Word


class Status(Word):
    """The result of the last run of a row; an empty cell means that the row never ran."""

    MEASURED = "measured"
    CHECKED = "checked"  # correct, and without a duration, since no kernel runs
    FAILED = "failed"  # raised an error, or returned a wrong result
    INVALID = "invalid"  # no call can be built from the row
    CRASHED = "crashed"  # the device process died
    TIMEOUT = "timeout"
    OOM = "oom"
    DEVICE_ERROR = "device-error"  # the device itself reported an error
    UNSUPPORTED = "unsupported"  # the device does not have the operator
    SKIPPED = "skipped"  # a stated precondition is missing

    @property
    def expected_to_fail(self) -> bool:
        """Whether the next session marks the row as xfail."""
        return self in _EXPECTED_TO_FAIL

    @property
    def crash(self) -> bool:
        """Whether the device process died, or was killed."""
        return self in (Status.CRASHED, Status.TIMEOUT)


_EXPECTED_TO_FAIL = frozenset(
    {Status.FAILED, Status.INVALID, Status.CRASHED, Status.TIMEOUT, Status.OOM, Status.DEVICE_ERROR}
)


class UpdateMode(Word):
    """Which rows a session runs, and whether it appends rows.

    ALL: every row. MISSING_ONLY: rows without any duration. UNREPLAYED: rows without a replayed duration. STALE: rows
    whose replayed duration was measured with other code, another driver or other versions than the present ones.
    """

    ALL = "all"
    MISSING_ONLY = "missing-only"
    UNREPLAYED = "unreplayed"
    STALE = "stale"

    @property
    def adds_rows(self) -> bool:
        """Whether measured records without a row are appended."""
        return self is UpdateMode.ALL
