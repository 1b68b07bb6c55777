"""The pace of replays: how long the rows of a database take, before they are run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opatlas import formats
from opatlas.data.manifest import Manifest
from opatlas.row.kind import Kind, kinds

#: A run of a smaller share of the rows of the largest run does not show the pace.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Pace:
    """The time of a row in a replay, with its start and its check.

    Attributes:
        seconds_a_row: seconds for each row.
        run_id: the run in which the pace was measured; "" for an assumed pace.
    """

    seconds_a_row: float = Kind.assumed_s_a_row
    run_id: str = ""

    def time_of(self, rows: int) -> str:
        """Returns the time of some rows and the source of the pace: `16 min 40 s, at 2 rows/s (as in run X)`."""
        where = f"as in run {self.run_id}" if self.run_id else "assumed: this database has no replay yet"
        seconds = self.seconds_a_row
        pace = f"{seconds:.3g} s a row" if seconds >= 1 else f"{1 / seconds:.3g} rows/s"
        return f"{formats.seconds(rows * seconds)}, at {pace} ({where})"


def replay_pace(manifests: Iterable[Manifest], kind: str = "") -> Pace:
    """Returns the pace of the newest run that replayed rows to its end.

    Runs of far fewer rows than the largest run do not count: most of their time is start and end.

    Args:
        kind: the kind of device, for a pace where no run has one.
    """
    found = []
    for manifest in sorted(manifests, key=lambda each: (each.started_at, each.run_id), reverse=True):
        rows = sum(count for status, count in manifest.statuses.items() if status not in ("added", "not run"))
        if rows and manifest.finished_at is not None and manifest.finished_at > manifest.started_at:
            found.append((rows, Pace((manifest.finished_at - manifest.started_at) / rows, manifest.run_id)))
    assumed = Pace(kinds()[kind].assumed_s_a_row) if kind in kinds() else Pace()
    least = _LEAST_SHARE * max((rows for rows, _ in found), default=0)
    return next((pace for rows, pace in found if rows >= least), assumed)
