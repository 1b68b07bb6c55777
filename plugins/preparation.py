"""What is done to a database before a plan of it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opatlas.instruments.msprof.pending import journal_left_behind
from opatlas.store.csv_files import Database
from opatlas.store.edited_rows import EditedRows, clear_edited
from opatlas.store.op_mapping import Provided, provide_mapping
from opatlas.store.write_back import Recovered, recover


@dataclass(frozen=True)
class Prepared:
    """What was found, and seen to.

    Attributes:
        problems: what killed sessions left behind and cannot be read yet.
        recovered: what they left behind and was merged.
        starter_rows: rows of the starter database that was made, 0 if there was one.
        edited: rows that held the duration or the status of another shape.
        mapping: the op_mapping.yaml that the database got.
    """

    problems: Sequence[str] = ()
    recovered: Sequence[Recovered] = ()
    starter_rows: int = 0
    edited: EditedRows = field(default_factory=EditedRows)
    mapping: Provided | None = None


def prepare_database(
    database: Database, *, run_id: str, starter: Callable[[Database], int] | None, is_npu: bool = False
) -> Prepared:
    """Merges what killed sessions left behind, and clears durations that rows have of other shapes.

    Args:
        database: which the caller has for itself.
        run_id: of this session, whose own journal is left alone.
        starter: fills a database that has no CSV, and tells with how many rows; None: it stays empty.
        is_npu: whether its rows are of an NPU, where its place does not tell.

    Raises:
        OpAtlasError: a database that cannot be written.
    """
    problems = journal_left_behind(database) if database.profiles_dir.is_dir() else []
    recovered: Sequence[Recovered] = ()
    if database.journal_dir.is_dir():
        recovered = recover(database, own_run=run_id)
        expect_writable(database)
    starter_rows = starter(database) if starter is not None and not database.kernel_types() else 0
    edited = clear_edited(database, run_id)
    with database.lock():
        mapping = provide_mapping(database.path, is_npu=is_npu)
    return Prepared([*problems, *edited.problems], recovered, starter_rows, edited, mapping)


def expect_writable(database: Database) -> None:
    """Better found out now than after hours of measuring. Raises OpAtlasError."""
    with database.lock():
        pass
