"""The files change while rows run: the merge reads them anew, and nothing measured or edited is lost."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from moods import Mood
from sessions import Finished, Running, Sessions, row

from opatlas.data import journal, log
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.row.columns import AVERAGE
from opatlas.row.signature import signatures

pytestmark = pytest.mark.usefixtures("forks")
SIZES = (1, 2, 3)
#: Durations by kernel type and signature.
Durations = dict[tuple[str, str], str]

REPLAYS = """
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays


@replays({kernel_types}, npu=None)
def test_edited(row, replay):
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""


def _lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """An edit of the lines of a file, the header being the first one."""

    def edit(path: Path) -> None:
        path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))

    return edit


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    lines = path.read_text().splitlines()
    other.write_text("\n".join((lines[0], _resized(lines[1], 7), _resized(lines[2], 8))) + "\n")
    other.replace(path)


def _resized(line: str, size: int) -> str:
    """The line of a row of another size."""
    note, _, rest = line.partition(",")
    return f"{note},{re.sub(r'[123]', str(size), rest)}"


#: Edits of a table by a person, and the sizes of the rows in it then.
EDITS: dict[str, tuple[Callable[[Path], None], tuple[int, ...]]] = {
    "OtherCells": (_lines(lambda lines: [line.replace("note", "changed") for line in lines]), (1, 2, 3)),
    "RowAdded": (_lines(lambda lines: [*lines, _resized(lines[1], 9)]), (1, 2, 3, 9)),
    "RowRemoved": (_lines(lambda lines: [*lines[:2], *lines[3:]]), (1, 3)),
    "Reordered": (_lines(lambda lines: [lines[0], *lines[:0:-1]]), (3, 2, 1)),
    "ShapeChanged": (_lines(lambda lines: [*lines[:2], _resized(lines[2], 5), *lines[3:]]), (1, 5, 3)),
    "ColumnAdded": (
        _lines(lambda lines: [f"Mine,{lines[0]},Also Mine", *(f"a,{line},b" for line in lines[1:])]),
        (1, 2, 3),
    ),
    "SavedBySpreadsheet": (
        lambda path: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")),
        (1, 2, 3),
    ),
    "Replaced": (_replaced, (7, 8)),
}
#: Damages that make a table unreadable.
SPOILED: dict[str, Callable[[Path], object]] = {
    "Truncated": lambda path: os.truncate(path, path.stat().st_size - 20),
    "Emptied": lambda path: os.truncate(path, 0),
    "Pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "OtherTable": lambda path: path.write_text("a,b\n1,2\n"),
}


def noted(sizes: Iterable[int] = SIZES) -> list[dict[str, str]]:
    return [{"Note": f"note{size}", **row(size)} for size in sizes]


def waiting(sessions: Sessions, kernel_types: Iterable[str], *options: str, devices: str) -> tuple[Running, Durations]:
    """A session that has measured three rows of each kernel type, and waits in a last one; with its journals."""
    names = sorted(kernel_types)
    (sessions.folder / "test_edited.py").write_text(REPLAYS.format(kernel_types=", ".join(map(repr, names))))
    for kernel_type in names:
        sessions.write(kernel_type, noted())
    sessions.write("Moody", [row(Mood.WAIT_FOR_GO)])
    # One device process does not matter for the files; several workers write a journal each.
    start = sessions.start_in_process if devices == "1" else sessions.start
    running = start(*options, SIMULATED_DEVICES=devices)
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.wait_for_records(3 * len(names))
    return running, in_journals(journal.journals(Database(sessions.database)))


def go(sessions: Sessions, running: Running) -> Finished:
    sessions.go()
    return running.wait()


def in_journals(paths: Iterable[Path]) -> Durations:
    records = [record for path in paths for record in journal.read(path).records]
    return {(r.kernel_type, r.signature): f"{r.measurement.summary.mean_us:.4f}" for r in records if r.measurement}


def in_histories(sessions: Sessions) -> Durations:
    database = Database(sessions.database)
    found = [record for run in log.runs(database) for record in log.read(database, run).records]
    return {(r.kernel_type, r.signature): f"{r.measurement.summary.mean_us:.4f}" for r in found if r.measurement}


def in_tables(sessions: Sessions) -> Durations:
    database, durations = Database(sessions.database), {}
    for kernel_type in database.kernel_types():
        try:
            frame = database.read(kernel_type).frame
        except OpAtlasError:
            continue
        if AVERAGE in frame:
            names = signatures(kernel_type, frame)
            durations.update({(kernel_type, name): us for name, us in zip(names, frame[AVERAGE], strict=True) if us})
    return durations


def named(done: Finished) -> list[Path]:
    """The files with records that a summary names."""
    return [path for path in map(Path, re.findall(r"/[^\s:,`']+\.jsonl", done.output)) if path.exists()]


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def size_of(cells: dict[str, str]) -> int:
    return int(cells["Input Shapes"].partition(";")[0])


@dataclass(frozen=True)
class Edited:
    """A session that has ended, and whose tables were edited meanwhile.

    Attributes:
        before: the tables as they were edited.
        measured: the measurements of the session by then.
    """

    sessions: Sessions
    mode: str
    done: Finished
    before: dict[str, list[dict[str, str]]]
    measured: Durations


#: The merge knows nothing of devices, but of how many journals there are.
@pytest.fixture(scope="class", params=[("all", "1"), ("missing-only", "2")], ids="-".join)
def edited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edited]:
    """All edits in one session, each of a kernel type of its own."""
    mode, devices = request.param
    sessions = Sessions(tmp_path_factory.mktemp("edited"))
    try:
        running, measured = waiting(sessions, EDITS, f"--update-mode={mode}", devices=devices)
        for kernel_type, (edit, _) in EDITS.items():
            edit(sessions.database / f"{kernel_type}.csv")
        before = {kernel_type: table(sessions.database / f"{kernel_type}.csv") for kernel_type in EDITS}
        yield Edited(sessions, mode, go(sessions, running), before, measured)
    finally:
        sessions.end()


class TestEdited:
    @pytest.mark.parametrize("kernel_type", EDITS)
    def test_rows_are_found_by_signature_and_the_rest_stays(self, edited: Edited, kernel_type: str) -> None:
        sizes = EDITS[kernel_type][1]
        assert tuple(map(size_of, edited.before[kernel_type])) == sizes
        after = table(edited.sessions.database / f"{kernel_type}.csv")
        expected = [(size, "measured" if size in SIZES else "") for size in sizes]
        if edited.mode == "all":
            expected += [(size, "measured") for size in SIZES if size not in sizes]
        assert [(size_of(cells), cells.get("Status", "")) for cells in after] == expected
        for cells, cells_before in zip(after, edited.before[kernel_type], strict=False):
            assert cells.items() >= cells_before.items()

    def test_all_that_was_measured_is_in_a_table_or_in_a_file_that_is_named(self, edited: Edited) -> None:
        kept = in_tables(edited.sessions) | in_histories(edited.sessions)
        assert kept.items() >= edited.measured.items()
        assert edited.done.ledger() == {"measured": 3 * len(EDITS) + 1}
        assert not list((edited.sessions.database / "journal").glob("*.jsonl"))

    def test_it_fails_where_something_is_not_in_the_tables(self, edited: Edited) -> None:
        missing = edited.measured.keys() - in_tables(edited.sessions).keys()
        assert edited.done.code == (1 if missing else 0)
        if edited.mode == "all":
            assert not missing
            assert "5 added" in edited.done
            return
        assert {kernel_type for kernel_type, _ in missing} == {"RowRemoved", "ShapeChanged", "Replaced"}
        assert "5 measured rows" in edited.done
        assert "history" in edited.done


def test_tables_that_cannot_be_read_any_more_keep_the_journal(sessions: Sessions) -> None:
    running, measured = waiting(sessions, SPOILED, devices="1")
    paths = {kernel_type: sessions.database / f"{kernel_type}.csv" for kernel_type in SPOILED}
    whole = {path: path.read_bytes() for path in paths.values()}
    for kernel_type, spoil in SPOILED.items():
        spoil(paths[kernel_type])
    before = {path: path.read_bytes() for path in paths.values()}
    done = go(sessions, running)
    assert (done.code, done.ledger()) == (1, {"measured": 3 * len(SPOILED) + 1})
    for path in paths.values():
        assert done.has_line("NOT WRITTEN BACK", path)
    assert {path: path.read_bytes() for path in paths.values()} == before
    assert in_journals(named(done)).items() >= measured.items()
    assert sessions.statuses("Moody") == {Mood.WAIT_FOR_GO: "measured"}
    for path, content in whole.items():
        path.write_bytes(content)
    assert "merged 13 records" in sessions.run_in_process("-k", "nothing", SIMULATED_DEVICES="1")
    assert in_tables(sessions).items() >= measured.items()


def test_a_table_that_was_removed(sessions: Sessions) -> None:
    running, measured = waiting(sessions, ["Gone", "Here"], "--update-mode=all", devices="1")
    path = sessions.database / "Gone.csv"
    path.unlink()
    done = go(sessions, running)
    assert (done.code, done.ledger()) == (0, {"measured": 7})
    assert sorted(map(size_of, table(path))) == list(SIZES)
    assert (in_tables(sessions) | in_journals(named(done))).items() >= measured.items()
    assert sessions.statuses("Here") == dict.fromkeys(SIZES, "measured")


def test_a_database_that_was_removed(sessions: Sessions) -> None:
    """As `git clean` or the checkout of another branch does.

    Of several devices, a worker that has no more rows may have ended: its journal goes with the folder.
    """
    running, measured = waiting(sessions, ["Gone"], "--update-mode=missing-only", devices="1")
    shutil.rmtree(sessions.database)
    done = go(sessions, running)
    assert (done.code, done.ledger()) == (1, {"measured": 4})
    assert not list(sessions.database.glob("*.csv"))
    assert in_histories(sessions).items() >= measured.items()
    assert len(in_histories(sessions)) == 4
    assert len(list((sessions.database / "runs").glob("*.json"))) == 1


def test_a_folder_that_is_gone_and_cannot_be_made_again(sessions: Sessions) -> None:
    """As that of a network share: a file in its place also keeps root from it."""
    running, measured = waiting(sessions, ["Gone"], devices="2")
    gone = sessions.database / "journal"
    gone.rename(sessions.folder / "elsewhere")
    gone.write_text("a file")
    done = go(sessions, running)
    assert (done.code, done.ledger()) == (1, {"measured": 4})
    kept = list(sessions.temporary.glob("*.jsonl"))
    assert kept
    assert all(done.has_line(f"{each} ", gone / each.name) for each in kept)
    assert "Traceback" not in done
    gone.unlink()
    (sessions.folder / "elsewhere").rename(gone)
    sessions.run_in_process("-k", "nothing", SIMULATED_DEVICES="1")
    assert in_tables(sessions).items() >= measured.items()
    assert len(in_tables(sessions)) == 4


def test_journals_that_were_removed(sessions: Sessions) -> None:
    running, measured = waiting(sessions, ["Here"], devices="1")
    shutil.rmtree(sessions.database / "journal")
    done = go(sessions, running)
    assert (done.code, done.ledger()) == (0, {"measured": 4})
    assert in_tables(sessions).items() >= measured.items()
    assert not list((sessions.database / "journal").glob("*.jsonl"))
