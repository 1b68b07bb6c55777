"""An ingest that is killed at any moment, and run again, gives what one gives that was not killed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from captures import launch, write_capture

from opatlas.capture.cases import SampleLine, read_samples
from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.data import csv_files as store
from opatlas.data.database import Database
from opatlas.data.manifest import IngestManifest, read_ingests
from opatlas.errors import OpAtlasError

ROOT = Path(__file__).parents[2]
#: Samples, manifest, three CSVs, and the manifest again.
WRITES = 6
_RUN = re.compile(r"ingest-\d{8}T\d{6}Z-[0-9a-f]{6}")


@pytest.fixture
def earlier(tmp_path: Path) -> Database:
    """A database that has a capture of Add and MatMulV3."""
    database = Database(tmp_path / "earlier")
    path = write_capture(tmp_path / "a/kernel_details.csv", [launch(type="Add", duration="3"), launch(duration="10")])
    ingest(database, path)
    return database


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A further capture, of Mul too."""
    launches = [launch(type="Add", duration="5"), launch(duration="30"), launch(duration="70"), launch(type="Mul")]
    return write_capture(tmp_path / "b/kernel_details.csv", launches)


def ingest(database: Database, path: Path, *, replace: bool = False) -> list[str]:
    return ingest_captures(database, [path], IngestRequest(path, replace)).problems


def copy_of(database: Database, name: str) -> Database:
    shutil.copytree(database.path, database.path.with_name(name))
    return Database(database.path.with_name(name))


def contents(database: Database) -> tuple[dict[str, str], list[list[SampleLine]]]:
    """The CSVs, runs named by the order in which they count, and the samples of all ingests."""
    ingests = read_ingests(database)
    run_ids = [found.manifest.run_id for found in ingests]

    def named(text: str) -> str:
        return _RUN.sub(lambda found: f"run {run_ids.index(found[0])}", text)

    tables = {path.name: named(path.read_text()) for path in sorted(database.path.glob("*.csv"))}
    return tables, [list(read_samples(found.samples)) for found in ingests if found.samples]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("write", range(WRITES))
def test_the_same_capture_again(
    earlier: Database, second: Path, write: int, replace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copy_of(earlier, "whole")
    assert not ingest(whole, second, replace=replace)
    written = 0

    def stop(source: str, target: Path) -> None:
        nonlocal written
        if written == write:
            raise KeyboardInterrupt
        written += 1
        move(source, target)

    move = store.os.replace
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", stop)
        with pytest.raises(KeyboardInterrupt):
            ingest(earlier, second, replace=replace)
    assert not ingest(earlier, second, replace=replace)
    assert contents(earlier) == contents(whole)
    assert all(IngestManifest.read(path).finished_at for path in earlier.runs_dir.glob("ingest-*.json"))


def test_a_full_disk_leaves_all_as_it_was(earlier: Database, second: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(earlier)

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(OpAtlasError, match="No space left"):
            ingest(earlier, second)
    assert contents(earlier) == before


def test_another_capture_brings_one_in_that_was_cut_off(
    earlier: Database, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = write_capture(tmp_path / "c/kernel_details.csv", [launch(duration="90")])
    whole = copy_of(earlier, "whole")
    for path in (second, third):
        ingest(whole, path)
    # After the samples were written, and before any CSV was.
    with monkeypatch.context() as patch:
        patch.setattr("opatlas.capture.ingest.apply_cases", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ingest(earlier, second)
    assert not ingest(earlier, third)
    assert contents(earlier) == contents(whole)


def test_a_damaged_csv_gets_its_statistics_when_it_is_mended(earlier: Database, second: Path) -> None:
    whole = copy_of(earlier, "whole")
    ingest(whole, second)
    path = earlier.csv_path("MatMulV3")
    text = path.read_text()
    path.write_text(text + "half a row\n")
    assert ingest(earlier, second)
    assert ingest(earlier, second), "it is not in yet, and still told"
    path.write_text(text)
    assert not ingest(earlier, second)
    assert contents(earlier) == contents(whole)
