"""Brings what is known of the sources' runs into the target: manifests, histories, ingests, durations not taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from database import history
from database.errors import OpAtlasError
from database.history import Histories
from database.ingest.manifest import manifest_path
from database.ingest.pool import ingests_of
from database.journal import Contents
from database.manifest import LARGEST_BYTES
from database.record import RowName
from database.safe_paths import read_own
from database.schema import RUN_ID
from database.signature import signatures
from database.store import Database, read_frame, write_bytes, write_text

#: Stands for a run id in the name of the folder that keeps durations which `combine` did not take.
COMBINE = "combine"
_LARGEST_SAMPLES_BYTES = 4 << 30


@contextmanager
def _told(problems: list[str]) -> Iterator[None]:
    """Adds the error of a file that cannot be read or written to the problems, and goes on after it."""
    try:
        yield
    except OpAtlasError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{error.filename}: cannot be read ({error.strerror}): check its permissions")


def copy_manifests(target: Database, manifests: Iterable[Path], problems: list[str]) -> int:
    """Copies manifests that the target lacks; gives their number."""
    copied = 0
    for manifest in manifests:
        path = target.runs_dir / manifest.name
        if path.exists():
            continue
        with _told(problems):
            write_text(path, read_own(manifest, LARGEST_BYTES).decode())
            copied += 1
    return copied


def copy_histories(target: Database, source: Database, journal: Contents | None, problems: list[str]) -> None:
    """Adds the records of a source to the histories of the target.

    Args:
        journal: the journal that the tables of the source were made of, which are no history of their own.
    """
    for run_id in history.runs(source):
        with _told(problems):
            contents = history.read(source, run_id)
            history.add(target, contents.header, contents.records)
            problems += [f"{history.path_of(source, run_id)}:{line}: {why}" for line, why in contents.unreadable]
    for path in history.replaced_tables(source):
        with _told(problems):
            run_id = path.parent.name.removesuffix(history.REPLACED_SUFFIX)
            history.keep_replaced(target, run_id, path.stem, read_frame(path))
    if journal is not None:
        history.add(target, journal.header, journal.records)


def copy_ingests(target: Database, source: Database, problems: list[str]) -> int:
    """Copies the ingests of a source with their samples; gives their number.

    An ingest whose captures the target has already is not copied.
    """
    copied = 0
    with _told(problems):
        known = {file.sha256: ingest.manifest.run_id for ingest in ingests_of(target) for file in ingest.manifest.files}
        ingests = [ingest for ingest in ingests_of(source) if ingest.manifest.finished_at is not None]
        for ingest in ingests:
            run_id, files = ingest.manifest.run_id, ingest.manifest.files
            there = [file for file in files if file.sha256 in known]
            if len(there) == len(files) or ingest.samples is None:
                continue
            if there:
                problems.append(
                    f"{manifest_path(source, run_id)}: of its captures, {there[0].name} is in TARGET already, by "
                    f"{known[there[0].sha256]}, and others are not: ingest these into TARGET"
                )
                continue
            for path in (ingest.samples, manifest_path(source, run_id)):
                content = read_own(path, _LARGEST_SAMPLES_BYTES)
                write_bytes(target.runs_dir / path.name, content)
            known |= {file.sha256: run_id for file in files}
            copied += 1
    return copied


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
