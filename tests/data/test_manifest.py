"""Manifests of runs: what is written is read again; one that is damaged costs itself only; which run is the newer."""

from __future__ import annotations

import json
import operator
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, RunOrder, code_digest, read_manifests, run_id_time
from opatlas.errors import OpAtlasError

RUN = "20261121T163006-1f0c9a"
WRITTEN = Manifest(
    RUN,
    1.5e9,
    {"update_mode": "all", "warmup": 3},
    "abc",
    device={"name": "NVIDIA H200", "memory_bytes": 150_000_000_000},
    other_devices=[{"name": "NVIDIA H100"}],
    statuses={"measured": 2},
    packages={"torch": "2.9.0+cu130"},
)

DAMAGED = {
    "empty": b"",
    "zeros": bytes(100),
    "list": b"[]",
    "no start": b"{}",
    "start is text": b'{"started_at": "x"}',
    "start is huge": b'{"started_at": 1' + b"0" * 400 + b"}",
    "start after the last date": b'{"started_at": 1e300}',
    "5,000 digits": b'{"started_at": 1, "options": {"x": ' + b"1" * 5000 + b"}}",
    "device is a list": b'{"started_at": 1, "device": ["CPU"]}',
    "packages are numbers": b'{"started_at": 1, "packages": {"torch": 2}}',
    "deep": b'{"started_at": 1, "options": ' + b'{"x":' * 100_000,
    "deep where nobody looks": b'{"started_at": 1, "unknown": ' + b"[" * 100_000,
    "not UTF-8": b'{"started_at": 1, "code": "\xff"}',
    "lone surrogate": b'{"started_at": 1, "code": "\\udcff"}',
}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = WRITTEN.write(Database(tmp_path))
    read = Manifest.read(path)
    assert read == replace(WRITTEN, other_devices=read.other_devices)
    assert read.device_names == {"NVIDIA H200", "NVIDIA H100"}
    assert read.torch == "2.9.0"


def test_fields_of_later_versions_are_ignored_and_those_of_earlier_ones_are_empty(tmp_path: Path) -> None:
    path = tmp_path / f"{RUN}.json"
    path.write_text(json.dumps({"started_at": 7, "version": 99, "of_later_versions": {"x": [1, None]}}))
    read = Manifest.read(path)
    assert (read.run_id, read.started_at, read.version) == (RUN, 7, 99)
    assert (read.host, read.python, read.torch, read.packages, read.device_names) == ("", "", "", {}, frozenset())


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_costs_itself_only(tmp_path: Path, text: bytes) -> None:
    database = Database(tmp_path)
    WRITTEN.write(database)
    damaged = database.runs_dir / "damaged.json"
    damaged.write_bytes(text)
    with pytest.raises(OpAtlasError) as raised:
        Manifest.read(damaged)
    assert str(damaged) in str(raised.value)
    problems: list[str] = []
    assert set(read_manifests(database, problems)) == {RUN}
    assert problems == [str(raised.value)]


def test_the_manifest_of_an_ingest_is_not_one_of_a_run(tmp_path: Path) -> None:
    database = Database(tmp_path)
    WRITTEN.write(database)
    (database.runs_dir / "ingest-20261122T144345Z-1a2b3c.json").write_text('{"kind": "ingest", "device": null}')
    problems: list[str] = []
    assert (list(read_manifests(database, problems)), problems) == ([RUN], [])


@pytest.mark.parametrize("name", ["norm.py", "data/fold.py", "catalog.yaml", "kernels/gpu_calls.json"])
def test_whatever_decides_rows_or_durations_is_in_the_digest(name: str, tmp_path: Path) -> None:
    package = tmp_path / "shapes"
    (package / name).parent.mkdir(parents=True)
    (package / name).write_text("a")
    before = code_digest([package])
    (package / name).write_text("b")
    assert code_digest([package]) != before


@pytest.mark.parametrize("name", ["__pycache__/norm.cpython-311.py", "README.md"])
def test_pages_and_what_python_keeps_are_no_code(name: str, tmp_path: Path) -> None:
    package = tmp_path / "database"
    package.mkdir()
    (package / "store.py").write_text("a")
    before = code_digest([package])
    (package / name).parent.mkdir(parents=True, exist_ok=True)
    (package / name).write_text("b")
    assert code_digest([package]) == before


EARLIER, LATER = "20261121T120000-aaaaaa", "20261121T120001-000000"


@pytest.fixture(params=["Asia/Shanghai", "America/New_York", "UTC"])
def _time_zone(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("_time_zone")
def test_the_time_in_a_run_id_is_utc_in_every_time_zone() -> None:
    assert run_id_time("19700102T000001-1f0c9a") == 86_401
    # The first run has a manifest, whose time needs no time zone.
    order = RunOrder({"other": run_id_time(EARLIER) or 0.0})
    assert order.age("other") < order.age(LATER)


def test_a_run_without_a_time_is_older_than_one_with_and_newer_than_none() -> None:
    order = RunOrder()
    ordered = ["", "by hand", EARLIER, LATER]
    assert all(map(operator.lt, map(order.age, ordered), map(order.age, ordered[1:])))


def test_different_runs_of_the_same_second_have_an_order() -> None:
    order = RunOrder()
    assert len({order.age(f"20261121T120000-{n:06x}") for n in range(3)}) == 3


@pytest.mark.parametrize(
    "run_id", ["99999999T999999-x", "x", "\uff12\uff10\uff12\uff161121T120000-x", "20261121T1200001"]
)
def test_an_id_without_a_time_has_none(run_id: str) -> None:
    assert run_id_time(run_id) is None
