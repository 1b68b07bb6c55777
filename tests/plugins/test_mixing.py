"""A session never replaces, or joins, durations that its own do not compare with, unless it is told to."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from moods import Mood
from sessions import Finished, Sessions, row

from opatlas.data.origin import MeasurementOrigin
from opatlas.row.location import UNNAMED_NPU, cpu_device_name, public_version
from opatlas.row.versions import detect

AVERAGE = "Average Duration(us)"
USAGE_ERROR = int(pytest.ExitCode.USAGE_ERROR)


def contents(folder: Path, *, without: str = "") -> dict[str, str]:
    """Digests of all files below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return {name: digest for name, digest in found.items() if not without or without not in name}


def manifests(sessions: Sessions) -> list[Path]:
    return sorted((sessions.database / "runs").glob("*.json"))


def rewrite(path: Path, **values: Any) -> None:
    """Changes values of a manifest; those of a mapping are put into it."""
    manifest = json.loads(path.read_text())
    for name, value in values.items():
        manifest[name] = {**manifest[name], **value} if isinstance(value, Mapping) else value
    path.write_text(json.dumps(manifest))


def durations(sessions: Sessions, kernel_type: str = "Toy") -> list[str]:
    return [r.get(AVERAGE, "") for r in sessions.read(kernel_type)]


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database of two rows that were measured here, and one that was not."""
    sessions = Sessions(tmp_path_factory.mktemp("measured"))
    sessions.write("Toy", [row(4), row(5), row(6)])
    done = sessions.run_in_process("-k", "not Toy-6")
    assert done.code == 0, done.output
    yield sessions.database
    sessions.end()


@pytest.fixture
def measured(measured_once: Path, sessions: Sessions) -> Sessions:
    """A copy of that database."""
    shutil.copytree(measured_once, sessions.database, dirs_exist_ok=True)
    return sessions


def of_another_device(sessions: Sessions) -> None:
    (path,) = manifests(sessions)
    rewrite(path, device={"name": "NVIDIA_H200", "kind": "cuda"})


def is_refused(done: Finished) -> bool:
    return done.code == USAGE_ERROR and "measured" not in done.output.partition("ERROR")[0]


def test_mixed_is_allowed_and_recorded(measured: Sessions) -> None:
    of_another_device(measured)
    (theirs,) = manifests(measured)
    done = measured.run_in_process("--mixed", "-k", "not Toy-5")
    assert (done.code, done.ledger()) == (0, {"measured": 2}), done.output
    assert "NVIDIA_H200" in done
    run_ids = [r["Run ID"] for r in measured.read("Toy")]
    assert run_ids[1] == theirs.stem
    assert run_ids[0] == run_ids[2] != theirs.stem
    (ours,) = set(manifests(measured)) - {theirs}
    assert json.loads(ours.read_text())["options"]["mixed"] is True
    # A mixed database stays one.
    assert is_refused(measured.run_in_process())


def test_a_folder_named_for_another_patch_release_is_told(sessions: Sessions) -> None:
    torch = public_version(detect().torch or "")
    release, _, patch = torch.rpartition(".")
    sessions.database = sessions.folder / cpu_device_name() / "torch" / f"torch{release}.{int(patch) + 1}_cpu"
    sessions.database.mkdir(parents=True)
    sessions.write("Toy", [row(4)])
    done = sessions.run_in_process()
    assert (done.code, done.ledger()) == (0, {"measured": 1}), done.output
    assert f"torch {release}.{int(patch) + 1}" in done
    assert f"torch {torch}" in done


def test_another_instrument_and_other_threads_are_refused(measured: Sessions) -> None:
    rows = measured.read("Toy")
    measured.write("Toy", [{**r, "Instrument": "another"} for r in rows])
    done = measured.run_in_process()
    assert is_refused(done), done.output
    assert "another" in done
    measured.write("Toy", rows)
    (manifest,) = manifests(measured)
    text = manifest.read_text()
    found = json.loads(text)
    threads = found["device"]["facts"]["threads"]
    found["device"]["facts"]["threads"] = threads + 1
    manifest.write_text(json.dumps(found))
    assert is_refused(measured.run_in_process("--update-mode=missing-only"))


def test_a_device_that_measures_with_another_instrument_than_expected_skips_the_rows(sessions: Sessions) -> None:
    """What a device of a conftest.py measures with is known only when it is open."""
    sessions.write("Toy", [row(4), row(5)])
    assert sessions.run_in_process(SIMULATED_DEVICES="1").code == 0
    rows = sessions.read("Toy")
    sessions.write("Toy", [{**rows[0], "Instrument": "another"}, rows[1]])
    before = durations(sessions)
    done = sessions.run(SIMULATED_DEVICES="1")
    assert (done.code, done.ledger()) == (0, {"measured": 1, "skipped": 1}), done.output
    assert [new == old for new, old in zip(durations(sessions), before, strict=True)] == [True, False]


def test_durations_of_unknown_origin_are_not_replaced(sessions: Sessions) -> None:
    sessions.write("Toy", [{**row(4), AVERAGE: "9.7472"}, row(5)])
    before = contents(sessions.database)
    done = sessions.run_in_process()
    assert is_refused(done), done.output
    assert "Toy.csv:2" in done
    assert contents(sessions.database, without=".lock") == before
    missing = sessions.run_in_process("--update-mode=missing-only")
    assert (missing.code, missing.ledger()) == (0, {"measured": 1}), missing.output
    assert durations(sessions)[0] == "9.7472"


# A database of captures of another device


CAPTURED = "Profiling Average Duration(us)"


def beside(sessions: Sessions, kernel_type: str = "Toy") -> dict[int, dict[str, str]]:
    """The rows in the database beside one of captures, by size."""
    with open(sessions.beside_captures / f"{kernel_type}.csv", newline="") as file:
        return {int(r["Input Shapes"].partition(";")[0]): r for r in csv.DictReader(file)}


@pytest.fixture
def captured(sessions: Sessions) -> Sessions:
    """A database with a captured row, and one that was also replayed here."""
    sessions.write("Toy", [{**row(n), CAPTURED: "7.5", AVERAGE: us} for n, us in ((4, ""), (5, "9.0"))])
    return sessions


def test_a_session_that_writes_nothing_makes_no_database_beside_captures(captured: Sessions) -> None:
    before = contents(captured.folder, without="output")
    done = captured.run_in_process("--read-only", "-q")
    assert done.code == 0, done.output
    assert "database-replays" in done
    assert not list(captured.folder.glob("*-replays"))
    assert contents(captured.database) == {
        name.removeprefix("database/"): digest for name, digest in before.items() if name.startswith("database/")
    }


def test_workers_and_implementations_share_the_database_beside_captures(captured: Sessions) -> None:
    before = contents(captured.database)
    kernel = captured.folder / "mine" / "Toy.py"
    kernel.parent.mkdir()
    kernel.write_text("def kernel(x, y):\n    return x + y\n")
    done = captured.run("-n2", f"--implementation=torch,{kernel.parent}")
    assert (done.code, done.ledger()) == (0, {"measured": 4}), done.output
    (mine,) = captured.beside_captures.glob("implementations/mine-*/Toy.csv")
    assert "Profiling" not in mine.read_text()
    assert contents(captured.database) == before


def test_a_row_that_was_pruned_beside_captures_stays_away(sessions: Sessions) -> None:
    sessions.write("Moody", [{**row(n), CAPTURED: "7.5"} for n in (101, Mood.RAISE)])
    done = sessions.run_in_process("--prune-empty-duration-rows")
    assert done.ledger() == {"measured": 1, "failed": 1}
    assert sessions.run_in_process().ledger() == {"measured": 1}
    assert len(sessions.read("Moody")) == 2


NPU = "Ascend910B3"


@pytest.mark.parametrize(
    ("captured_on", "measured_on", "is_same"),
    [
        (("", ""), (NPU, "npu"), True),
        ((UNNAMED_NPU, ""), (NPU, "npu"), True),
        ((UNNAMED_NPU, "npu"), ("", "npu"), True),
        (("ATLAS_800_A2_376T_64G", "npu"), (NPU, "npu"), True),
        ((NPU, "npu"), ("ATLAS_800_A2_376T_64G", "npu"), True),
        ((NPU, "npu"), (NPU, ""), True),
        ((NPU, "npu"), ("Ascend910B4", "npu"), False),
        (("ATLAS_800_A2_376T_64G", "npu"), ("ATLAS_800_A3_560T_128G_DIE", "npu"), False),
        ((UNNAMED_NPU, ""), ("NVIDIA_H200", ""), False),
        ((UNNAMED_NPU, "npu"), ("AMD_EPYC", "cpu"), False),
        ((NPU, ""), ("", "cuda"), False),
        (("AMD_EPYC", "cpu"), ("Intel_Xeon_Processor", "cpu"), False),
    ],
)
def test_which_devices_are_the_same(captured_on: tuple[str, str], measured_on: tuple[str, str], is_same: bool) -> None:
    one, other = MeasurementOrigin(*captured_on), MeasurementOrigin(*measured_on)
    assert one.has_same_device(other) == other.has_same_device(one) == is_same


# --read-only


def test_read_only_leaves_what_a_killed_session_left_behind(measured: Sessions) -> None:
    measured.write("Moody", [row(Mood.WAIT_FOR_GO)])
    killed = measured.start()
    killed.wait_for_body(Mood.WAIT_FOR_GO)
    os.kill(killed.process.pid, 9)
    killed.wait()
    assert not measured.left_behind()
    before = contents(measured.database)
    assert measured.records() > 0
    done = measured.run_in_process("--read-only", "--ops=Toy")
    assert done.code == 0, done.output
    assert contents(measured.database) == before


def test_read_only_makes_no_starter(sessions: Sessions) -> None:
    done = sessions.run_in_process("--read-only")
    assert done.code == int(pytest.ExitCode.NO_TESTS_COLLECTED), done.output
    assert not list(sessions.database.iterdir())
