"""Reading and writing the CSVs of a database."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock
from frames import write_frame

from opatlas.data.csv_files import read_table, write_atomically, write_text
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError, TableError

ROOT = Path(__file__).parents[2]
HEADER = "OP State,Input Shapes,Input Data Types,Output Shapes,Output Data Types,Our Note\n"
ROW = 'dynamic,"16,32;64,32",BF16;BF16,"16,64",BF16,"said ""so"""\n'


def write(path, text, **options):
    path.write_text(text, encoding="utf-8", newline="", **options)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "MatMulV3.csv"


def test_bom_and_crlf_are_read_and_not_written(path):
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + ROW).replace("\n", "\r\n").encode())
    frame = read_table(path).to_pandas()
    assert frame.columns[0] == "OP State"
    write_frame(frame, path)
    assert path.read_bytes() == (HEADER + ROW).encode()


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
        read_table(path).to_pandas()
    assert (caught.value.path, caught.value.line) == (path, line)
    assert named in f"{caught.value.problem} {caught.value.remedy}"
    assert path.read_bytes() == text.encode()


def test_what_is_no_table_of_messages(tmp_path):
    path = write(tmp_path / "mine.csv", HEADER + ROW)
    with pytest.raises(TableError) as caught:
        read_table(path, "hcom_allReduce_").to_pandas()
    assert caught.value.line == 1
    assert all(name in caught.value.problem for name in ("message_bytes", "num_devices"))
    assert len(read_table(path)) == 1


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


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_header_alone_is_a_table_without_rows(path, end):
    frame = read_table(write(path, HEADER.rstrip("\n") + end)).to_pandas()
    assert (len(frame), list(frame.columns)) == (0, HEADER.strip().split(","))


@pytest.mark.parametrize(
    ("older", "now"),
    [
        (
            "Average Duration(us),Median Duration(us),Std Duration(us),avg_seq_len",
            "Profiling Average Duration(us),Profiling Median Duration(us),Profiling Std Duration(us),avg_seq_len",
        ),
        (
            "MicroBench Duration(us),Average Duration(us),Median Duration(us)",
            "Average Duration(us),Profiling Average Duration(us),Profiling Median Duration(us)",
        ),
        ("MicroBench Duration(us)", "Average Duration(us)"),
        (
            "Median Duration(us),Average aicore_time(us)",
            "Profiling Median Duration(us),Profiling Average aicore_time(us)",
        ),
    ],
)
def test_columns_of_older_tools_have_the_names_of_today(path, older, now):
    required = "Input Shapes,Input Data Types,Output Shapes,Output Data Types,"
    frame = read_table(
        write(path, f"{required}{older}\n4,FLOAT,4,FLOAT,{','.join('1' * len(older.split(',')))}\n")
    ).to_pandas()
    assert list(frame.columns[4:]) == now.split(",")


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
