"""Notes of killed sessions under msprof on their rows: each line is read by itself, and each profile, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import captures
import pytest

from opatlas.capture.single_launches import Launch
from opatlas.data import journal
from opatlas.data.database import Database
from opatlas.row.quality import Quality
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run import msprof_output as pending
from opatlas.run.instruments.attribution import PendingSamples, ProfiledRow, ProfiledSamples
from opatlas.run.job import Job, RowOutcome, describe_stand_in
from opatlas.run.msprof_output import recover_profiles

RUN = "20261121T163006-1f0c9a"


MEASUREMENT = {
    "samples_us": [1.0],
    "instrument": "msprof",
    "cache_state": "cold",
    "checked_elements": 1,
    "total_elements": 1,
    "assumptions": ["a"],
}


def line(size: int, **changes: Any) -> bytes:
    values = {
        "kernel_type": "Abs",
        "cells": captures.cells(f"{size}", f"{size}"),
        "launched": {"number": size, "samples": 2},
        "measurement": {**MEASUREMENT},
    }
    return json.dumps({**values, **changes}).encode()


@pytest.fixture(autouse=True)
def profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles that hold two samples of each row: its number, in microseconds, and as many kernels less one."""

    def samples_of(output: Path, rows: Sequence[ProfiledRow]) -> list[ProfiledSamples]:
        return [
            ProfiledSamples(
                (
                    (
                        Launch("", 0, us, row.kernel_type, row.cells, {}),
                        *(Launch("", 0, 9.0, "Cast", {}, {}) for _ in range(int(us) - 1)),
                    ),
                )
                * 2
            )
            for row, us in ((row, float(row.pending.number)) for row in rows)
        ]

    monkeypatch.setattr(pending, "read_samples", samples_of)


def left(database: Database, *lines: bytes, number: str = "0000") -> Path:
    output = database.profiles_dir / RUN / number
    (output / "PROF_1").mkdir(parents=True)
    (output / "launched.jsonl").write_bytes(b"".join(lines))
    return output


def sizes(database: Database) -> list[float]:
    records = [record for path in journal.journals(database) for record in journal.read(path).records]
    return [record.measurement.samples_us[0] for record in records if record.measurement is not None]


def test_a_whole_profile_is_journalled_and_removed(tmp_path: Path) -> None:
    database = Database(tmp_path)
    left(database, line(1) + b"\n", line(2) + b"\n")
    assert recover_profiles(database) == []
    assert sizes(database) == [1.0, 2.0]
    # With the folder of its session, which holds nothing else.
    assert not database.profiles_dir.exists()


def test_a_row_of_another_database_is_written_only_where_the_session_has_that_database(tmp_path: Path) -> None:
    database, other = Database(tmp_path / "own"), Database(tmp_path / "other")
    of_other = json.dumps({**json.loads(line(2)), "database": str(other.path)}).encode()
    left(database, line(1) + b"\n", of_other + b"\n")
    assert recover_profiles(database) == []
    assert sizes(database) == [1.0]
    assert not other.path.exists()
    left(database, line(1) + b"\n", of_other + b"\n", number="0001")
    assert recover_profiles(database, [other.path]) == []
    assert sizes(other) == [2.0]


def test_the_folder_of_a_session_stays_while_another_profile_is_in_it(tmp_path: Path) -> None:
    database = Database(tmp_path)
    output, other = left(database, line(1) + b"\n"), database.profiles_dir / RUN / "0001" / "PROF_1"
    other.mkdir(parents=True)
    assert recover_profiles(database) == []
    assert not output.exists()
    assert other.is_dir()


def test_kernels_and_bound_of_a_row_are_in_its_journal(tmp_path: Path) -> None:
    database = Database(tmp_path)
    output = database.profiles_dir / RUN / "0000"
    output.mkdir(parents=True)
    for size in (1, 2):
        job = Job("m", "", "f", "Abs", captures.cells(f"{size}", f"{size}"), 1.0)
        noted = Measurement((), "msprof", "cold", stand_in=describe_stand_in(["mul", "add"], None), bound_us=1.5)
        pending.record_pending(
            output,
            job,
            RowOutcome(Status.MEASURED, measurement=noted, pending=PendingSamples(size, samples=2)),
        )
    assert recover_profiles(database) == []
    (path,) = journal.journals(database)
    measurements = [record.measurement for record in journal.read(path).records]
    assert [(each.stand_in, each.bound_us) for each in measurements if each] == [
        ("", 1.5),
        (describe_stand_in(["mul", "add"], 2), 1.5),
    ]
    assert [each.verdict.quality for each in measurements if each] == [Quality.ABOVE_ROOFLINE, Quality.COMPOSITION]


@pytest.mark.parametrize("torn", [line(2)[:-20], line(2)[: line(2).index(b"}") + 1], b"{}", bytes(9)])
def test_a_torn_last_line_costs_its_row_also_where_it_ends_in_a_brace(tmp_path: Path, torn: bytes) -> None:
    database = Database(tmp_path)
    output = left(database, line(1) + b"\n", torn)
    assert recover_profiles(database) == []
    assert sizes(database) == [1.0]
    assert not output.exists()


DAMAGED = {
    "another version": line(2, launched={"count": 2}),
    "no sample": line(2, launched={"number": 2, "samples": 0}),
    "a field less": json.dumps({"kernel_type": "Abs", "cells": {}}).encode(),
    "kernel type is a number": line(2, kernel_type=7),
    "cells are a list": line(2, cells=[]),
    "a list": b"[]",
    "zeros": bytes(200),
    "deep": b'{"cells":' * 100_000,
    "not UTF-8": line(2).replace(b"msprof", b"m\xff"),
    "huge": line(2, measurement={**MEASUREMENT, "checked_elements": 10**300}),
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_an_unreadable_line_is_reported_once_and_the_profile_is_kept(tmp_path: Path, damaged: bytes) -> None:
    database = Database(tmp_path)
    content = line(1) + b"\n" + damaged + b"\n" + line(3) + b"\n"
    output = left(database, content)
    other = left(database, line(4) + b"\n", number="0001")
    (problem,) = recover_profiles(database)
    assert f"{output / 'launched.jsonl'}:2" in problem
    assert sizes(database) == [1.0, 4.0]
    assert (output / "launched.jsonl.unreadable").read_bytes() == content
    assert (output / "PROF_1").is_dir()
    assert not other.exists()
    assert recover_profiles(database) == []


def test_an_unexpected_error_keeps_no_other_profile_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path)
    bad, good = left(database, line(1) + b"\n"), left(database, line(2) + b"\n", number="0001")
    whole = pending.read_samples

    def broken(output: Path, rows: Sequence[ProfiledRow]) -> Any:
        if output == bad:
            raise ZeroDivisionError("x")
        return whole(output, rows)

    monkeypatch.setattr(pending, "read_samples", broken)
    (problem,) = recover_profiles(database)
    assert str(bad) in problem
    assert "ZeroDivisionError: x" in problem
    assert sizes(database) == [2.0]
    assert (bad.exists(), good.exists()) == (True, False)
