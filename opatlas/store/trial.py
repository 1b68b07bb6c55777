"""A trial: a command with --dry-run works on a copy of the database, so that it tells exactly what would happen."""

from __future__ import annotations

import shutil
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.store.csv_files import Database

#: What a trial does without: reports, and what others are in the middle of.
_NOT_COPIED = shutil.ignore_patterns("reports", "*.lock", ".*")


def copied(target: Path, folder: Path) -> Database:
    """A copy of a database, empty where there is none. Raises OpAtlasError."""
    try:
        if target.exists():
            # A link must not bring in what is not in the database.
            shutil.copytree(target, folder, ignore=_NOT_COPIED, symlinks=True)
    except OSError as error:
        raise OpAtlasError(f"{target} cannot be copied to {folder} for the dry run ({error}): make room") from None
    return Database(folder)
