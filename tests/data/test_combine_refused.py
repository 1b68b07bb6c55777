"""What `opatlas combine` refuses, and leaves as it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from abs_rows import NEW, OLD, cells, contents, measured, read, write
from combining import RunCombine

from opatlas.data.combine import open_sources, refuse_mixed
from opatlas.data.database import Database, SessionLock
from opatlas.data.manifest import Manifest
from opatlas.errors import OpAtlasError
from opatlas.row.columns import AVERAGE


def incomparable(target: Database, *sources: Database) -> str:
    """Returns the error for databases that were measured differently; "" for others."""
    try:
        refuse_mixed(target.path, open_sources(target, [source.path for source in sources]))
    except OpAtlasError as error:
        return str(error)
    return ""


def ran_on(
    database: Database,
    run: str,
    name: str = "Xeon",
    torch: str = "2.13.0",
    threads: int = 2,
    others: tuple[str, ...] = (),
) -> None:
    device, *more = ({"name": each, "kind": "cpu", "facts": {"threads": threads}} for each in (name, *others))
    Manifest(run, 1.77e9, device=device, other_devices=more, packages={"torch": torch}).write(database)


@pytest.fixture
def pair(target: Database, source: Database) -> tuple[Database, Database]:
    """A target and a source, each with a duration of the same row."""
    write(target, [measured(1, 5.0, OLD)])
    write(source, [measured(1, 6.0, NEW)])
    return target, source


def test_paths_that_are_no_sources_are_wrong_usage(
    pair: tuple[Database, Database], tmp_path: Path, run_combine: RunCombine
) -> None:
    target, source = pair
    empty = tmp_path / "empty"
    (empty / "journal").mkdir(parents=True)
    linked = tmp_path / "linked"
    linked.symlink_to(target.path)
    table = source.path / "Abs.csv"
    before = contents(tmp_path)
    for arguments, named in (
        ((target.path, target.path), target.path),
        ((target.path, linked), linked),
        ((target.path, source.path, tmp_path / "nowhere"), tmp_path / "nowhere"),
        ((target.path, source.path, "x" * 300), "x" * 300),
        ((target.path, source.path, empty), empty),
        ((target.path, source.path, table), table),
        ((table, target.path), table),
    ):
        status, out, err = run_combine(*arguments)
        assert (status, out) == (2, {}), named
        assert err.startswith("error: ")
        assert str(named) in err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"name": "AMD_EPYC"}, ("Xeon", "AMD_EPYC")),
        ({"torch": "2.9.0+cpu"}, ("2.13.0", "2.9.0")),
        ({"threads": 16}, (" 2:", " 16,")),
        ({"others": ("Other",)}, ("Other, Xeon",)),
        ({"torch": "2.13.0+cpu"}, ()),
    ],
    ids=["device", "torch", "threads", "further device", "build"],
)
def test_what_was_measured_otherwise_is_refused(
    pair: tuple[Database, Database], other: dict[str, Any], named: tuple[str, ...]
) -> None:
    target, source = pair
    ran_on(target, OLD)
    ran_on(source, NEW, **other)
    # A run that was killed before its first row.
    (source.runs_dir / "killed.json").write_text(json.dumps({"started_at": 1.0, "device": {}, "packages": {}}))
    error = incomparable(target, source)
    assert bool(error) == bool(named)
    assert all(text in error for text in (*named, *([str(target.path), str(source.path)] if named else [])))


def test_a_refusal_changes_nothing_and_names_the_option(
    pair: tuple[Database, Database], run_combine: RunCombine
) -> None:
    target, source = pair
    ran_on(target, OLD)
    ran_on(source, NEW, "AMD_EPYC")
    before = contents(target.path)
    status, out, err = run_combine(target.path, source.path)
    assert (status, out) == (2, {})
    assert "--mixed" in err
    assert contents(target.path) == before
    assert not target.journal_dir.exists()
    assert run_combine(target.path, source.path, "--mixed")[0] == 0
    assert read(target)[0][AVERAGE] == "6.0"
    assert run_combine(target.path, source.path)[0] == 0, "the target holds both already"


def test_sources_of_different_devices_are_refused_too(
    target: Database, tmp_path: Path, run_combine: RunCombine
) -> None:
    sources = [Database(tmp_path / name) for name in ("one", "two")]
    for shard, device in zip(sources, ("AMD_EPYC", "Xeon"), strict=True):
        write(shard, [measured(1, 5.0, OLD)])
        ran_on(shard, OLD, device)
    error = incomparable(target, *sources)
    assert all(str(shard.path) in error for shard in sources)
    assert run_combine(target.path, *(shard.path for shard in sources))[0] == 2
    assert not target.path.exists()


def test_a_target_that_a_session_has_is_refused(target: Database, source: Database, run_combine: RunCombine) -> None:
    write(target, [cells(1)])
    write(source, [measured(2, 5.0, OLD)])
    session = SessionLock(target, run_id=NEW, command="pytest bench/")
    session.acquire()
    status, _, err = run_combine(target.path, source.path)
    assert status == 1
    assert all(named in err for named in (str(target.path), NEW, str(os.getpid())))
    assert len(read(target)) == 1
    session.release()
    assert run_combine(target.path, source.path)[0] == 0
    assert len(read(target)) == 2
