"""Moves the rows of compositions out of a database that is to ship: their durations are not those of the kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from opatlas.errors import OpAtlasError
from opatlas.model.quality import is_composition, valid_duration
from opatlas.model.schema import PROFILING_AVERAGE, QUALITY, STAND_IN
from opatlas.store.cells import TableEdit
from opatlas.store.database import Database, Table
from opatlas.store.pruned import PRUNED_REASON, append_pruned


@dataclass
class DroppedRows:
    """The compositions of a database.

    Attributes:
        rows: the number of rows that were moved to `pruned/`, by kernel type.
        captured: the number of rows that stay, because they also have a captured duration, of the kernel itself.
    """

    rows: Counter[str] = field(default_factory=Counter)
    captured: int = 0


def drop_compositions(database: Database, problems: list[str]) -> DroppedRows:
    """Moves rows whose replayed duration is that of a composition to `pruned/`; an empty CSV is removed.

    Args:
        problems: receives a sentence for each file that cannot be read or written.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    dropped = DroppedRows()
    with database.lock():
        for kernel_type in database.kernel_types():
            try:
                _drop(database, kernel_type, dropped)
            except OpAtlasError as error:
                problems.append(str(error))
    return dropped


def _drop(database: Database, kernel_type: str, dropped: DroppedRows) -> None:
    table = database.read(kernel_type)
    rows = TableEdit(table.frame)
    found = [
        position
        for position, (quality, stand_in) in enumerate(zip(rows[QUALITY], rows[STAND_IN], strict=True))
        if is_composition(quality, stand_in)
    ]
    gone = [position for position in found if valid_duration(rows[PROFILING_AVERAGE][position]) is None]
    dropped.captured += len(found) - len(gone)
    if not gone:
        return
    moved = table.frame.iloc[gone]
    reasons = [rows[STAND_IN][position] or rows[QUALITY][position] for position in gone]
    append_pruned(database, kernel_type, moved.assign(**{PRUNED_REASON: reasons}))
    left = table.frame.drop(index=table.frame.index[gone])
    if left.empty:
        table.path.unlink()
    else:
        database.write(Table(kernel_type, table.path, left))
    dropped.rows[kernel_type] += len(gone)
