"""The update mode of a session (--update-mode): which rows the plan takes, and whether the write-back appends rows."""

from __future__ import annotations

from enum import Enum


class UpdateMode(str, Enum):
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

    def __str__(self) -> str:
        return self.value
