"""Opens the databases and journals that are to be combined, and checks that they are comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opatlas.data import journal
from opatlas.data.combine import CombineSource
from opatlas.data.comparable import expect_comparable
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.manifest import Manifest, manifest_paths, read_each
from opatlas.data.update_mode import UpdateMode
from opatlas.data.write_back import write_back
from opatlas.errors import OpAtlasError
from opatlas.files import expect_folder
from opatlas.progress import track
from opatlas.row.record import Record
from opatlas.text import pluralize


@dataclass
class CombineSources:
    """The sources of `combine`.

    Attributes:
        sources: in the order of the command line; each database is followed by its journals, oldest first.
        target_manifests: the manifests of the target, by path.
        databases, journals: the number of each.
        problems: files that could not be read.
    """

    sources: list[CombineSource] = field(default_factory=list)
    target_manifests: Mapping[Path, Manifest] = field(default_factory=dict)
    databases: int = 0
    journals: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of all sources, then of the target, whose manifests take precedence."""
        every = (*(source.manifests for source in self.sources), self.target_manifests)
        return [manifest for manifests in every for manifest in manifests.values()]


def open_sources(target: Database, paths: Sequence[Path], scratch: Path) -> CombineSources:
    """Opens the sources; writes to `scratch` only.

    Journals are read now, and tables when they are combined, so that a record which a session writes back in between is
    in the journal or in a table.

    Args:
        paths: folders of `{KernelType}.csv` files, and journals.
        scratch: the folder for databases that are made from journals.

    Raises:
        OpAtlasError: the target is not a folder; a path is missing, unreadable, neither a database nor a journal, or
            the target itself.
    """
    expect_folder(target.path, "", option="TARGET", may_be_made=True)
    opened = CombineSources()
    opened.target_manifests = read_each(manifest_paths(target), opened.problems)
    for path in track(paths, "read, sources"):
        try:
            if not path.exists():
                raise OpAtlasError(f"{path}: no such folder or journal; check the path")
            if path.is_dir():
                _open_database(target, path, scratch, opened)
            else:
                _open_journal_alone(path, scratch, opened)
        except OSError as error:
            raise OpAtlasError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from None
    return opened


def _open_database(target: Database, path: Path, scratch: Path, opened: CombineSources) -> None:
    """Raises OpAtlasError, OSError."""
    if target.path.exists() and path.samefile(target.path):
        raise OpAtlasError(f"{path}: this is TARGET itself; name other databases to combine into it")
    database = Database(path)
    # Raises UnsafePath before anything is read, if a folder of the source is a link.
    database.folders()
    journals = journal.journals(database)
    if not database.kernel_types_and_messages() and not journals:
        raise OpAtlasError(
            f"{path}: holds no {{KernelType}}.csv and no journal/*.jsonl; name the folder that the CSVs are in"
        )
    opened.databases += 1
    manifests = read_each(manifest_paths(database), opened.problems)
    opened.sources.append(CombineSource(str(path), database, manifests))
    for left_behind in journals:
        try:
            contents = journal.read(left_behind)
        except FileNotFoundError:
            # The session wrote it back meanwhile: its records are in the tables.
            continue
        except OpAtlasError as error:
            opened.problems.append(str(error))
        except OSError as error:
            opened.problems.append(f"{left_behind}: {error.strerror}: make it readable")
        else:
            _add_journal(left_behind, contents, {}, scratch, opened)


def _open_journal_alone(path: Path, scratch: Path, opened: CombineSources) -> None:
    """Raises OpAtlasError, OSError."""
    if path.suffix != ".jsonl":
        raise OpAtlasError(f"{path}: neither a folder nor a journal (.jsonl); name the folder that the CSVs are in")
    folder = path.absolute().parent
    contents = journal.read(path)
    manifests: list[Path] = []
    if folder.name == "journal":
        run_ids = sorted({record.run_id for record in contents.records})
        beside = (Database(folder.parent).runs_dir / f"{run_id}.json" for run_id in run_ids)
        manifests = [manifest for manifest in beside if manifest.exists()]
    _add_journal(path, contents, read_each(manifests, opened.problems), scratch, opened)


def _add_journal(
    path: Path,
    contents: journal.JournalContents,
    manifests: Mapping[Path, Manifest],
    scratch: Path,
    opened: CombineSources,
) -> None:
    """Makes a database from a journal, as if its session had begun with unmeasured rows."""
    opened.problems += [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
    if contents.torn:
        opened.problems.append(f"{path}: the last record is cut off: its session was killed, or still runs")
    database = Database(scratch / f"journal{opened.journals}")
    opened.journals += 1
    bare: dict[str, dict[str, Record]] = {}
    for record in contents.records:
        bare.setdefault(record.kernel_type, {}).setdefault(record.signature, record)
    for kernel_type, records in bare.items():
        fold = TableFold(database.read_or_empty(kernel_type))
        for record in records.values():
            fold.append(record.cells)
        fold.write(database)
    merged = write_back(database, contents.records, UpdateMode.ALL, prune=False)
    opened.problems += merged.problems
    if merged.unmatched:
        opened.problems.append(f"{path}: {pluralize(len(merged.unmatched), 'record')} of rows with another signature")
    opened.sources.append(CombineSource(str(path), database, manifests, contents))


def refuse_mixed(target: Path, opened: CombineSources) -> None:
    """Raises IncomparableDatabases if, by the manifests, a source differs from the target or from an earlier source."""
    expect_comparable(
        [
            (str(target), opened.target_manifests.values()),
            *((source.name, source.manifests.values()) for source in opened.sources),
        ]
    )
