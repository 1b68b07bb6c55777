"""Brings what is known of the sources' runs into the target: manifests, histories, durations that were not taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from database import history
from database.errors import OpAtlasError
from database.history import Histories
from database.journal import Contents
from database.manifest import LARGEST_BYTES
from database.record import RowName
from database.safe_paths import read_own
from database.schema import RUN_ID
from database.signature import signatures
from database.store import Database, read_frame, write_text

#: Stands for a run id in the name of the folder that keeps durations which `combine` did not take.
COMBINE = "combine"


def copy_manifests(target: Database, manifests: Iterable[Path], problems: list[str]) -> int:
    """Copies manifests that the target lacks; gives their number."""
    copied = 0
    for manifest in manifests:
        path = target.runs_dir / manifest.name
        if path.exists():
            continue
        try:
            write_text(path, read_own(manifest, LARGEST_BYTES).decode())
            copied += 1
        except OpAtlasError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{manifest}: cannot be read ({error.strerror}): check its permissions")
    return copied


def copy_histories(target: Database, source: Database, journal: Contents | None, problems: list[str]) -> None:
    """Adds the records of a source to the histories of the target.

    Args:
        journal: the journal that the tables of the source were made of, which are no history of their own.
    """
    for run_id in history.runs(source):
        try:
            contents = history.read(source, run_id)
            history.add(target, contents.header, contents.records)
            problems += [f"{history.path_of(source, run_id)}:{line}: {why}" for line, why in contents.unreadable]
        except OpAtlasError as error:
            problems.append(str(error))
    for path in history.replaced_tables(source):
        try:
            run_id = path.parent.name.removesuffix(history.REPLACED_SUFFIX)
            history.keep_replaced(target, run_id, path.stem, read_frame(path))
        except OpAtlasError as error:
            problems.append(str(error))
    if journal is not None:
        history.add(target, journal.header, journal.records)


def keep_durations(target: Database, kernel_type: str, not_taken: Sequence[pd.DataFrame], histories: Histories) -> None:
    """Keeps the rows whose durations are not in the table, if no history has them. Raises OpAtlasError."""
    rows = pd.concat([frame for frame in not_taken if len(frame)] or [pd.DataFrame()], ignore_index=True).fillna("")
    if rows.empty:
        return
    run_ids = rows[RUN_ID].tolist() if RUN_ID in rows.columns else [""] * len(rows)
    lost = [
        position
        for position, signature in enumerate(signatures(kernel_type, rows))
        if not histories.have(run_ids[position], RowName(kernel_type, signature))
    ]
    if lost:
        history.keep_replaced(target, COMBINE, kernel_type, rows.iloc[lost])
