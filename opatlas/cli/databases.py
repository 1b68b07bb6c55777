"""`opatlas combine` and `opatlas fetch`: databases that were measured separately become one; those of a zip file."""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path, PurePosixPath
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated
from zipfile import BadZipFile, ZipFile

from cyclopts import Parameter

from opatlas.capture.ingest import rebuild_profiling
from opatlas.cli.app import held
from opatlas.data.combine import CombineResult, CombineSources, combine as combine_databases, open_sources, refuse_mixed
from opatlas.data.csv_files import not_writable
from opatlas.data.database import Database, expect_tables
from opatlas.data.log import COMBINE
from opatlas.data.manifest import VERSION, RunFacts
from opatlas.data.pool import PooledRow, pool as pool_runs
from opatlas.data.restore import clear_edited
from opatlas.errors import OpAtlasError, UsageError, noted, usage_errors
from opatlas.files import BROKEN_GZIP, read_file
from opatlas.formats import percent
from opatlas.row.location import ROOT, parse_path, place_of
from opatlas.show.result import Fields, Part, Result, Table


def combine(
    target: Annotated[Path, Parameter(name="TARGET")],
    /,
    *sources: Annotated[Path, Parameter(name="SOURCE")],
    mixed: bool = False,
    pool: bool = False,
) -> Result:
    """Combines databases that were measured separately into one database.

    If a row has two durations, that of the newer run stays, and the history keeps the other. SOURCEs do not change.

    Exit status: 0 everything is in; 1 something was left out because of an error, or TARGET cannot be written; 2
    nothing was done: wrong usage, or other devices or versions without --mixed.

    Args:
        target: folder of {KernelType}.csv files to combine into; made if it does not exist.
        sources: folders of {KernelType}.csv files, with their unmerged journals.
        mixed: combine durations of different devices or versions of torch.
        pool: then give each row of TARGET the duration of its run with the median over all runs, and fill the Pooled
            columns: runs, machines, and the spread between machines.
    """
    if not (sources or pool):
        raise UsageError("no SOURCE: name databases to combine into TARGET, or pool the runs of TARGET with --pool")
    with usage_errors():
        opened = open_sources(Database(target), sources)
        if not mixed:
            refuse_mixed(target, opened)
    with held(Database(target), "combine") as problems:
        found, pooled = _combine(Database(target), opened, pool)
        problems[:] = dict.fromkeys([*opened.problems, *problems, *found.problems])
    content = {
        "target": target,
        "databases": len(opened.sources),
        "journals": opened.journals,
        **{each.name: getattr(found, each.name) for each in fields(found) if each.name != "mapping"},
        "pooled": pooled,
        "problems": problems,
    }
    parts = [*_parts(target, opened, found), *(_pooled(pooled) if pooled is not None else ())]
    return Result(parts, content, problems)


def _combine(target: Database, opened: CombineSources, pool: bool) -> tuple[CombineResult, list[PooledRow] | None]:
    """Combines the opened sources; returns the rows whose runs were pooled, too. Raises OpAtlasError."""
    edited = clear_edited(target, COMBINE)
    outcome = combine_databases(target, opened)
    if outcome.ingests:
        _pool_captures(target, outcome)
    outcome.edited += edited.count
    outcome.problems += edited.problems
    if not pool:
        return outcome, None
    return outcome, pool_runs(target, outcome.problems)


def _pool_captures(target: Database, outcome: CombineResult) -> None:
    """Computes the captured durations of the target again, with the launches of all its ingests."""
    with noted(outcome.problems), target.lock():
        remade = rebuild_profiling(target).outcome
        outcome.problems += remade.problems
        outcome.captures_pooled = remade.updated


def _parts(target: Path, opened: CombineSources, found: CombineResult) -> Iterator[Part]:
    yield Fields(
        {
            "databases": len(opened.sources) or None,
            "journals": opened.journals or None,
            "kernel types": (len(found.kernel_types), f"{len(found.new):,} new"),
            "rows added": found.added,
            "rows with another duration": found.taken,
            "rows with other new cells": found.changed,
            "pruned rows": found.pruned or None,
            "edited since their run": found.edited or None,
            "manifests": found.manifests or None,
            "ingests": found.ingests or None,
            "rows with pooled captures": found.captures_pooled or None,
            "rows in TARGET": found.target_rows,
            "op_mapping": str(target / found.mapping.path.name) if found.mapping is not None else None,
        },
        title=str(target),
    )


def _pooled(pooled: Sequence[PooledRow]) -> Iterator[Part]:
    kinds = Counter((row.runs, row.machines) for row in pooled)
    yield Table(("runs", "machines", "rows"), [(*kind, kinds[kind]) for kind in sorted(kinds, reverse=True)], "pooled")
    if spreads := [row.spread for row in pooled if row.spread is not None]:
        yield f"spread between machines: {percent(median(spreads))} in the median, {percent(max(spreads))} at most"


_DIGEST = re.compile(r"(.+)@(?:sha256:)?([0-9a-fA-F]{64})", re.DOTALL)
_URL = re.compile(r"https?://")
#: Packed, and unpacked. The database of an H200 has 1 MB and 6 MB.
_LARGEST_FILE, _LARGEST_CONTENT = 1 << 30, 4 << 30
_LONGEST_SILENCE_S = 60
#: The folders of a database that are installed: rows, and runs, of kernels and of steps. Not journals, locks, reports.
_FOLDERS = (PurePosixPath(), PurePosixPath("runs"), PurePosixPath("steps"), PurePosixPath("steps/runs"))
_SUFFIXES = (".csv", ".gz", ".json", ".txt", ".yaml")


def fetch(source: Annotated[str, Parameter(name="URL|PATH")], /) -> Result:
    """Installs the databases in a zip file, so that their devices answer by name.

    The file has them as {device}/{library}/{versions}/{KernelType}.csv, at any depth, as an archive of a checkout has.
    Their rows and runs are installed.

    Exit status: 0 installed; 1 nothing was: the file cannot be read or has another digest, or a database is there; 2
    wrong usage.

    Args:
        source: address or path of the file; with @sha256:DIGEST after it, no other content is taken.
    """
    pinned = _DIGEST.fullmatch(source)
    place, wanted = pinned.groups() if pinned else (source, "")
    if _URL.match(place):
        content = _download(place)
    else:
        content = read_file(Path(place), _LARGEST_FILE, "name a zip file, or an http address")
    digest = hashlib.sha256(content).hexdigest()
    if wanted.lower() not in ("", digest):
        raise OpAtlasError(f"{place}: its SHA-256 is {digest}, not the one after @: take the file from elsewhere")
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            installed = _install(archive, place)
    except (BadZipFile, *BROKEN_GZIP, NotImplementedError, RuntimeError) as error:
        raise OpAtlasError(f"{place}: no zip file, or a damaged one ({error}): take it from elsewhere") from None
    return Result(
        [Fields({"sha256": digest, "root": ROOT}, title=place), Table(("database", "CSVs"), list(installed.items()))]
    )


def _download(url: str) -> bytes:
    # They take 60 ms to import.
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=_LONGEST_SILENCE_S) as answer:
            content: bytes = answer.read(_LARGEST_FILE + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise OpAtlasError(f"{url}: cannot be fetched ({error}): check the address and the network") from None
    if len(content) > _LARGEST_FILE:
        raise OpAtlasError(f"{url}: larger than {_LARGEST_FILE >> 30} GiB: name the file of fewer databases")
    return content


def _install(archive: ZipFile, source: str) -> Mapping[str, int]:
    """Unpacks the databases, checks them, and puts them into place; returns their numbers of CSVs."""
    paths = {name: path for name in archive.namelist() if _is_data(path := PurePosixPath(name))}
    tables = [path for path in paths.values() if path.suffix == ".csv" and len(path.parts) > 3]
    found = {place_of(*each.parts[-4:-1]): each.parent for each in tables if parse_path(Path(each.parent)) is not None}
    if not found:
        raise OpAtlasError(f"{source}: has no CSV in folders {{device}}/{{library}}/{{versions}}: pack the database so")
    if sum(each.file_size for each in archive.infolist()) > _LARGEST_CONTENT:
        raise OpAtlasError(f"{source}: larger than {_LARGEST_CONTENT >> 30} GiB when unpacked: name a smaller file")
    if there := [target for target in found if target.exists()]:
        raise OpAtlasError(f"{there[0]} exists: move it away, or unpack {source} and `opatlas combine` the two")
    (root, *_) = {target.parents[2] for target in found}
    try:
        root.mkdir(parents=True, exist_ok=True)
        # There, so that each database comes into place in one step.
        with TemporaryDirectory(prefix=".fetch-", dir=root) as folder:
            new = {target: Path(folder, str(number)) for number, target in enumerate(found)}
            for target, unpacked in new.items():
                for name, path in paths.items():
                    if found[target] in path.parents and path.relative_to(found[target]).parent in _FOLDERS:
                        file = unpacked / path.relative_to(found[target])
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_bytes(archive.read(name))
                _check(unpacked)
            for target, unpacked in new.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                unpacked.rename(target)
    except OSError as error:
        raise OpAtlasError(not_writable(root, error)) from None
    return {"/".join(target.parts[-3:]): len(list(target.glob("*.csv"))) for target in found}


def _is_data(path: PurePosixPath) -> bool:
    return path.suffix in _SUFFIXES and not path.name.startswith(".") and ".." not in path.parts


def _check(folder: Path) -> None:
    """Refuses what is no database, or is of a later schema than this OpAtlas knows. Raises OpAtlasError."""
    expect_tables(folder)
    for path in Database(folder).runs_dir.glob("*.json"):
        if RunFacts.read(path).version > VERSION:
            raise OpAtlasError(f"{path.name}: its version is later than {VERSION}: install a newer OpAtlas")
