"""Reading and writing the CSVs of a database."""

import errno
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock
from frames import write_frame
from hypothesis import given
from hypothesis import strategies as st

from opatlas.data.csv_files import (
    not_writable,
    read_frame,
    read_text_csv,
    write_atomically,
    write_rows,
    write_text,
)
from opatlas.data.database import Database
from opatlas.data.header import read_header
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.table import RowTable

ROOT = Path(__file__).parents[2]
HEADER = "OP State,Input Shapes,Input Data Types,Output Shapes,Output Data Types,Our Note\n"
ROW = 'dynamic,"16,32;64,32",BF16;BF16,"16,64",BF16,"said ""so"""\n'


def write(path, text, **options):
    path.write_text(text, encoding="utf-8", newline="", **options)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "MatMulV3.csv"


def test_cells_are_text_to_the_letter(path):
    frame = read_frame(write(path, HEADER + ROW))
    assert frame["Input Shapes"].tolist() == ["16,32;64,32"]
    assert frame["Our Note"].tolist() == ['said "so"']


def test_a_rewrite_changes_nothing(path):
    text = HEADER + ROW + ",,N/A,NULL,nan,007\n"
    write_frame(read_frame(write(path, text)), path)
    assert path.read_text() == text


@pytest.mark.parametrize("rows", [3, 500])
@given(cells=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=8), min_size=2))
def test_what_is_written_is_read(tmp_path_factory, rows, cells):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    frame = pd.DataFrame({"a": ["x"] * rows, "b": (cells * rows)[:rows]})
    write_frame(frame, path)
    again = read_text_csv(path)
    assert again["b"].tolist() == frame["b"].tolist()


def test_bom_and_crlf_are_read_and_not_written(path):
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + ROW).replace("\n", "\r\n").encode())
    frame = read_frame(path)
    assert frame.columns[0] == "OP State"
    write_frame(frame, path)
    assert path.read_bytes() == (HEADER + ROW).encode()


def test_a_header_without_rows_is_an_empty_table(path):
    assert len(read_frame(write(path, HEADER))) == 0


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        pytest.param(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", None, "git lfs pull", id="lfs"
        ),
        pytest.param("", None, "empty", id="empty"),
        pytest.param("\n\n", None, "empty", id="blank lines"),
        pytest.param("a,b\n1,2\n", 1, "'Input Shapes'", id="no column"),
        pytest.param("Input Shapes,b\n1,2\n", 1, "'Output Shapes'", id="a column too few"),
        pytest.param(HEADER + ROW + "dynamic,1\n", 3, "2 fields", id="a short line"),
        pytest.param(HEADER + "dynamic,1\n" + ROW + "1\n1,2,3,4,5,6,7\n", 2, "2 more", id="several lines"),
        pytest.param(HEADER.replace("Our Note", " OP State ") + ROW, 1, "'OP State'", id="a repeated column"),
    ],
)
def test_what_is_no_table(path, text, line, named):
    path.write_bytes(text.encode())
    with pytest.raises(TableError) as caught:
        read_frame(path)
    assert (caught.value.path, caught.value.line) == (path, line)
    assert named in f"{caught.value.problem} {caught.value.remedy}"
    assert path.read_bytes() == text.encode()


def test_what_is_no_table_of_messages(tmp_path):
    path = write(tmp_path / "mine.csv", HEADER + ROW)
    with pytest.raises(TableError) as caught:
        read_frame(path, "hcom_allReduce_")
    assert caught.value.line == 1
    assert all(name in caught.value.problem for name in ("message_bytes", "num_devices"))
    assert len(read_frame(path)) == 1


def test_a_header_is_read_whole_without_quotes_and_known_names_without_blanks(path):
    names = [f" column {number} " for number in range(1000)] + ["Input Shapes"]
    write(path, ",".join(f'"{name}"' for name in names[:-1]) + ",\t Input Shapes \n" + "x," * 1000 + "x\n")
    assert read_header(path).names == names
    assert list(read_text_csv(path).columns) == names


def test_a_cell_may_hold_a_line_end(path):
    frame = read_text_csv(write(path, 'a,b\n"one\ntwo",3\n4,5\n'))
    assert frame.to_dict("list") == {"a": ["one\ntwo", "4"], "b": ["3", "5"]}


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_many_rows_are_written_as_few_are(path, monkeypatch, limit):
    frame = pd.DataFrame(
        {
            'said "a", b': [f"row {number}" for number in range(20)],
            "plain": ["", "1,2"] * 10,
            "quoted": ['"', "x\ny", "", "z"] * 5,
        }
    )
    monkeypatch.setattr("opatlas.data.csv_files.ROWS_PER_WRITE", limit)
    write_frame(frame, path)
    assert path.read_bytes() == frame.to_csv(index=False, lineterminator="\n").encode()


@pytest.mark.parametrize("rows", [1, 300])
def test_a_carriage_return_is_no_end_of_a_line(path, rows):
    frame = pd.DataFrame({"a": ["one\rtwo"] * rows, "b": ["3"] * rows})
    write_frame(frame, path)
    assert read_text_csv(path).to_dict("list") == frame.to_dict("list")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664), (0o077, 0o600)])
def test_a_new_file_heeds_the_umask_and_an_old_one_keeps_its_mode(tmp_path, umask, mode):
    path = tmp_path / "new" / "folder" / "a.txt"
    seen = []

    def fill(temporary):
        seen.append(Path(temporary))
        Path(temporary).write_text("x")

    before = os.umask(umask)
    try:
        write_atomically(path, fill)
        assert path.stat().st_mode & 0o777 == mode
        path.chmod(0o660)
        write_atomically(path, fill)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o660
    for temporary in seen:
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".a.txt.")
        assert temporary.name.endswith(".opatlas-tmp")
    assert os.listdir(path.parent) == ["a.txt"]


def test_file_and_folder_are_on_disk_before_a_write_is_done(path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.path.realpath(f"/proc/self/fd/{handle}")))
    write_text(path, "x")
    assert len(synced) == 2
    assert synced[0].endswith(".opatlas-tmp")
    assert synced[1] == str(path.parent)


def test_where_things_of_a_database_are(tmp_path):
    database = Database(str(tmp_path))
    folders = (database.journal_dir, database.runs_dir, database.reports_dir, database.pruned_dir)
    names = [folder.name for folder in (*folders, database.profiles_dir)]
    assert names == ["journal", "runs", "reports", "pruned", "profiles"]
    assert {folder.parent for folder in folders} == {database.path} == {tmp_path}
    write(tmp_path / "Add.csv", HEADER + ROW)
    table = database.read("Add")
    assert (table.kernel_type, table.path, len(table.frame)) == ("Add", tmp_path / "Add.csv", 1)


def test_no_such_file(path):
    with pytest.raises(TableError) as caught:
        read_frame(path)
    assert caught.value.path == path


def test_a_legacy_microbench_column_is_the_average(path):
    text = HEADER.replace("Our Note", "MicroBench Duration(us)") + ROW
    assert "Average Duration(us)" in read_frame(write(path, text)).columns


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_header_alone_is_a_table_without_rows(path, end):
    frame = read_frame(write(path, HEADER.rstrip("\n") + end))
    assert (len(frame), list(frame.columns)) == (0, HEADER.strip().split(","))


def test_an_older_profiling_file(path):
    header = "Input Shapes,Input Data Types,Output Shapes,Output Data Types,Average Duration(us),Median Duration(us),"
    text = header + "Std Duration(us),Average aicore_time(us),avg_seq_len\n4,FLOAT,4,FLOAT,1,2,3,4,5\n"
    assert list(read_frame(write(path, text)).columns[4:]) == [
        "Profiling Average Duration(us)",
        "Profiling Median Duration(us)",
        "Profiling Std Duration(us)",
        "Profiling Average aicore_time(us)",
        "avg_seq_len",
    ]


def test_an_older_profiling_file_with_a_microbench_column(path):
    header = "Input Shapes,Input Data Types,Output Shapes,Output Data Types,MicroBench Duration(us),"
    text = header + "Average Duration(us),Median Duration(us)\n4,FLOAT,4,FLOAT,1,2,3\n"
    assert list(read_frame(write(path, text)).columns[4:]) == [
        "Average Duration(us)",
        "Profiling Average Duration(us)",
        "Profiling Median Duration(us)",
    ]


def test_a_crash_while_writing_leaves_the_old_file(path):
    write(path, HEADER + ROW)

    def crash(temporary):
        with open(temporary, "w") as file:
            file.write("half a")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        write_atomically(path, crash)
    assert path.read_text() == HEADER + ROW
    assert os.listdir(path.parent) == [path.name]


def test_a_link_within_its_folder_stays_a_link(tmp_path):
    behind, link = tmp_path / "shared" / "Add.csv", tmp_path / "Add.csv"
    behind.parent.mkdir()
    behind.write_text("old")
    link.symlink_to("shared/Add.csv")
    write_text(link, "new")
    assert link.is_symlink()
    assert behind.read_text() == "new"


def test_a_full_disk_is_an_error_for_the_user(path):
    write(path, HEADER + ROW)

    def full(temporary):
        raise OSError(28, "No space left on device")

    with pytest.raises(OpAtlasError, match="No space left"):
        write_atomically(path, full)
    assert path.read_text() == HEADER + ROW


def test_a_database_that_another_process_holds(tmp_path):
    database = Database(tmp_path)
    (tmp_path / "journal").mkdir()
    held = FileLock(tmp_path / "journal/database.lock")
    with held, pytest.raises(OpAtlasError, match=str(tmp_path)), database.lock(timeout_s=0.1):
        pass


def test_a_database_that_cannot_be_written(tmp_path):
    write(tmp_path / "file", "in the way")
    with pytest.raises(OpAtlasError, match=str(tmp_path / "file")), Database(tmp_path / "file").lock():
        pass


def test_an_error_under_the_lock_stays_itself(tmp_path):
    with pytest.raises(PermissionError, match="mine"), Database(tmp_path).lock():
        raise PermissionError(13, "mine")
    with Database(tmp_path).lock(timeout_s=0.1):
        pass


@pytest.mark.parametrize("kernel_type", ["a.b", "_triton_rope", "é" * 100, "a b"])
def test_kernel_types_that_are_file_names(tmp_path, kernel_type):
    assert Database(tmp_path).csv_path(kernel_type) == tmp_path / f"{kernel_type}.csv"


@pytest.mark.parametrize("kernel_type", ["a/b", "..", "", "a\nb", "a:b", "a\\b", "é" * 101, "a" * 201, ".a", *'*?"<>|'])
def test_kernel_types_that_are_no_file_names(tmp_path, kernel_type):
    with pytest.raises(OpAtlasError) as caught:
        Database(tmp_path).csv_path(kernel_type)
    assert repr(kernel_type)[1:-1] in str(caught.value)


def test_a_database_lists_compute_kernels_only(tmp_path):
    for name in ("Sub.csv", "Add.csv", "hcom_allReduce_.csv", "op_mapping.yaml", "._Add.csv"):
        write(tmp_path / name, "")
    assert Database(tmp_path).kernel_types() == ["Add", "Sub"]


def test_write_and_read_through_the_database(tmp_path):
    database = Database(tmp_path)
    frame = read_frame(write(tmp_path / "MatMulV3.csv", HEADER + ROW))
    with database.lock():
        database.write(RowTable("Other", database.csv_path("Other"), frame))
    assert database.read("Other").frame.equals(frame)


def test_reports_of_one_second_are_numbered(tmp_path):
    database = Database(tmp_path)
    first = database.new_report_path("gaps", 0.0, suffix=".md")
    assert first.parent == tmp_path / "reports"
    first.parent.mkdir()
    first.touch()
    second = database.new_report_path("gaps", 0.0, suffix=".md")
    second.touch()
    names = [path.name for path in (first, second, database.new_report_path("gaps", 0.0, suffix=".md"))]
    assert names == [first.name, f"{first.stem}_2.md", f"{first.stem}_3.md"]
    assert database.new_report_path("gaps", 0.0) == first.with_suffix(".csv")


def test_a_report_is_named_for_its_local_time(tmp_path):
    at = 1_000_000_000.0
    assert Database(tmp_path).new_report_path("gaps", at).name == f"gaps_{datetime.fromtimestamp(at):%Y%m%d_%H%M%S}.csv"


def test_what_to_do_about_a_database_that_cannot_be_written(golden):
    errors = [
        *(PermissionError(errno.EACCES, "Permission denied"), NotADirectoryError(errno.ENOTDIR, "Not a directory")),
        *(OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded")),
        *(OSError(errno.EFBIG, "File too large"), OSError("gone")),
    ]
    golden("not_writable.txt", "".join(f"{not_writable(Path('DB'), error)}\n" for error in errors))


def test_a_report_with_a_lone_surrogate_is_written(tmp_path):
    write_rows(tmp_path / "report.csv", ["a"], [["odd \udcff"]])
    assert (tmp_path / "report.csv").read_bytes() == b"a\nodd \\udcff\n"


def test_rows_of_a_report(tmp_path):
    path = tmp_path / "reports" / "gaps.csv"
    write_rows(path, ("Name", "Number"), iter([("a,b", 1), ('say "c"', None)]))
    assert path.read_bytes() == b'Name,Number\n"a,b",1\n"say ""c""",\n'


_UNFINISHED = """
import os, sys, time
from pathlib import Path
from opatlas.data.csv_files import write_atomically

def fill(temporary):
    Path(temporary).write_text("half a")
    print(temporary, flush=True)
    time.sleep(600)

write_atomically(Path(sys.argv[1]), fill)
"""


def test_whoever_locks_a_database_removes_half_written_files_of_killed_writers_and_nothing_else(tmp_path):
    database = Database(tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}.outside"
    outside.touch()
    folders = (tmp_path, database.journal_dir, database.runs_dir, database.reports_dir, database.pruned_dir)
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / ".Add.csv.x1.opatlas-tmp").touch()
        (folder / "Add.csv").touch()
        (folder / ".hidden").touch()
        (folder / "mine.opatlas-tmp").touch()
        (folder / ".link.x1.opatlas-tmp").symlink_to(outside)
        (folder / ".folder.x1.opatlas-tmp").mkdir()
    writer = subprocess.Popen(
        [sys.executable, "-c", _UNFINISHED, tmp_path / "Mul.csv"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    temporary = Path(writer.stdout.readline().strip())
    try:
        with database.lock():
            pass
        for folder in folders:
            names = {path.name for path in folder.iterdir()}
            assert ".Add.csv.x1.opatlas-tmp" not in names
            kept = {".hidden", "Add.csv", "mine.opatlas-tmp", ".link.x1.opatlas-tmp", ".folder.x1.opatlas-tmp"}
            assert kept <= names
        assert temporary.read_text() == "half a"
    finally:
        writer.kill()
        writer.communicate()
    with database.lock():
        assert not temporary.exists()
    assert outside.exists()
