"""States of a database that are compared: `DB` as it is, and `DB@STATE`: a git revision, a run, or its captures."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from opatlas.ask.compare.calls import RowCall, captured_call, replayed_call
from opatlas.ask.compare.databases import CallSource, ComparedDatabase, calls_in, distinct_names, named_database
from opatlas.data import log
from opatlas.data.database import Database, expect_tables
from opatlas.data.row_history import record_table
from opatlas.errors import OpAtlasError
from opatlas.files import absolute_path
from opatlas.row.location import named_folder
from opatlas.row.record import Record
from opatlas.text import shortened, suggest

#: The state of the durations that were captured, and not replayed.
CAPTURES = "captures"
_GIT_S = 120
#: The modes of regular files in a tree of git begin so; links and submodules are no files.
_REGULAR = "100"


@contextmanager
def compared_states(places: Sequence[str]) -> Iterator[list[ComparedDatabase]]:
    """Yields the databases of places `DB` and `DB@STATE`, under names that tell them apart.

    The files of a git revision are there until the end of the block. A folder with an @ in its name is that folder.

    Raises:
        OpAtlasError: a folder is missing or has no CSVs, a state is unknown, or a place is named twice.
    """
    with ExitStack() as stack:
        found: list[ComparedDatabase] = []
        for place in places:
            database = stack.enter_context(_state(place))
            if any((each.path, each.state) == (database.path, database.state) for each in found):
                raise OpAtlasError(f"{place}: named twice: name each database once")
            found.append(database)
        yield distinct_names(found)


def _split(place: str) -> tuple[str, str]:
    """Returns the folder and the state of a place; a folder with an @ in its name has no state.

    The folder ends at the first @ that a folder or a device stands before, since revisions have them, too (HEAD@{1}).
    """
    # os.path.exists, since the whole may be longer than a path.
    if "@" not in place or os.path.exists(place):
        return place, ""
    ends = [at for at, character in enumerate(place) if character == "@"]
    end = next((at for at in ends if os.path.isdir(named_folder(place[:at]))), ends[0])
    return place[:end], place[end + 1 :]


@contextmanager
def _state(place: str) -> Iterator[ComparedDatabase]:
    folder, state = _split(place)
    path = absolute_path(named_folder(folder))
    if not state:
        if not folder or folder != place:
            raise OpAtlasError(f"{place}: give DB@STATE: a git revision, the Run ID of a run, or {CAPTURES}")
        yield named_database(path)
    elif state == CAPTURES:
        database, source = named_database(path), calls_in(path, captured_call, Database(path).kernel_types())
        if not any(call.duration for name in source.kernel_types for call in source.read(name).values()):
            raise OpAtlasError(f"{place}: no row has a captured duration: `opatlas ingest` reads captures")
        yield replace(database, state=state, source=source)
    elif state in (runs := log.runs(Database(path))):
        calls = read_run(Database(path), state)
        source = CallSource(sorted(calls), lambda kernel_type: calls.get(kernel_type, {}))
        yield replace(named_database(path), state=state, source=source)
    else:
        with _git_revision(path, state, runs) as (commit, checkout):
            database = named_database(checkout)
            short = commit[:10]
            label = state if commit.startswith(state) else f"{state} ({short})"
            yield replace(database, path=path, state=label, source=database.calls)


def read_run(database: Database, run_id: str) -> dict[str, dict[str, RowCall]]:
    """Returns what a run has of each row, by kernel type and signature.

    Of several records it is the last measured one, else the last.

    Raises:
        OpAtlasError: the history of the run cannot be read.
    """
    records: dict[str, dict[str, Record]] = {}
    for record in log.read(database, run_id).records:
        for each in filter(None, (record.requested_record(), record.launched_record())):
            of_type = records.setdefault(each.kernel_type, {})
            there = of_type.get(each.signature)
            if there is None or each.measurement is not None or there.measurement is None:
                of_type[each.signature] = each
    tables = ((name, of_type, record_table(name, of_type.values())) for name, of_type in records.items())
    return {
        name: {signature: replayed_call(table.row(i)) for i, signature in enumerate(of_type)}
        for name, of_type, table in tables
    }


@contextmanager
def _git_revision(path: Path, revision: str, runs: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yields the commit of a revision, and a folder with the CSVs and manifests that a database had then."""
    existing = next(folder for folder in (path, *path.parents) if folder.is_dir())
    commit = _git(existing, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        named = shortened(revision)
        raise OpAtlasError(
            f"{path}@{named}: neither a run of the database{suggest(named, runs)}, nor a revision of a git repository "
            f"that has it: `git log -- {path}` lists revisions"
        )
    at = commit.decode().strip()
    with tempfile.TemporaryDirectory(prefix="opatlas-") as folder:
        # Software and device follow from the last parts of the path.
        checkout = Path(folder, *path.parts[1:][-4:])
        below = path.relative_to(existing)
        _write_files(existing, f"{at}:./{below.as_posix().removeprefix('.')}", ".csv", checkout)
        _write_files(existing, f"{at}:./{(below / 'runs').as_posix()}", ".json", checkout / "runs")
        try:
            expect_tables(checkout)
        except OpAtlasError as error:
            raise OpAtlasError(f"{path}@{revision}: {str(error).replace(str(checkout), str(path))}") from None
        yield at, checkout


def _write_files(repository: Path, tree: str, suffix: str, folder: Path) -> None:
    """Writes the files with a suffix that a tree of a commit has itself; none if there is no such tree.

    Contents are those that git keeps: no filter of the repository runs, since it may be a stranger's. `git worktree`
    and `git archive` would run its filters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for entry in map(os.fsdecode, (_git(repository, "ls-tree", "-z", "--full-tree", tree) or b"").split(b"\0")):
        about, _, name = entry.partition("\t")
        if about.startswith(_REGULAR) and name.endswith(suffix):
            with open(folder / name, "wb") as file:
                if _git(repository, "cat-file", "blob", about.split()[-1], into=file) is None:
                    raise OpAtlasError(f"{tree}: git has no content of {name}: fetch it (`git fetch --refetch`)")


def _git(folder: Path, *arguments: str, into: IO[bytes] | int = subprocess.PIPE) -> bytes | None:
    """Returns what git prints, b"" if that goes into a file; None if it fails. Raises OpAtlasError without git."""
    command = ["git", "-C", str(folder), *arguments]
    # The repository may be a stranger's: nothing is fetched, by whatever command its settings name.
    environment = {**os.environ, "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, stdout=into, stderr=subprocess.DEVNULL, timeout=_GIT_S, check=False, env=environment
        )
    except FileNotFoundError:
        raise OpAtlasError("git is not installed, so revisions cannot be read: install it") from None
    except subprocess.TimeoutExpired:
        raise OpAtlasError(f"`{' '.join(command)}` took more than {_GIT_S} s: try it by hand") from None
    return (done.stdout or b"") if done.returncode == 0 else None
