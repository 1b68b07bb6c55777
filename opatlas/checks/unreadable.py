"""Each CSV can be read, and so can each manifest."""

from __future__ import annotations

from opatlas.checks.check import WHOLE_DATABASE, Check, CheckedDatabase, Finding


def _find(database: CheckedDatabase) -> list[Finding]:
    tables = [
        Finding(str(error.path), error.line, kernel_type, kernel_type, "", str(error))
        for kernel_type, error in database.unreadable.items()
    ]
    runs = str(database.database.runs_dir)
    return [*tables, *(Finding(runs, None, "", WHOLE_DATABASE, "", problem) for problem in database.problems)]


UNREADABLE = Check(
    "unreadable",
    "files that cannot be read",
    "restore them, or move them away",
    of_database=_find,
)
