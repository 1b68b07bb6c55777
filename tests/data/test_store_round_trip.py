"""What is written is read again as it was, whatever the cells and names, or refused before anything is replaced."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest
from frames import write_frame
from hypothesis import example, given, settings, strategies as st

from opatlas.data import csv_files as store
from opatlas.data.csv_files import read_table, read_text_csv
from opatlas.data.header import read_header
from opatlas.errors import TableError

#: Pieces that writers and readers of CSV disagree about.
PIECES = (
    "\r",
    "\n",
    "\r\n",
    "\x0b",
    "\x0c",
    "\0",
    "\ufeff",
    "\u2028",
    "\x85",
    '"',
    "'",
    ",",
    " ",
    "\t",
    "=1+1",
    "00",
    "a",
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=4).map("".join) | st.just("x" * 5000)
written_texts = texts.filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    names = draw(st.lists(written_texts, min_size=1, max_size=4, unique=True))
    rows = draw(st.lists(st.lists(written_texts, min_size=len(names), max_size=len(names)), max_size=3))
    return names, rows


def frame_of(names: list[str], rows: list[list[str]]) -> pd.DataFrame:
    # As objects: pandas 3 refuses a lone surrogate in its own type of text.
    return pd.DataFrame(rows, columns=pd.Index(names, dtype=object), dtype=object)


@settings(max_examples=50, deadline=None)
@given(tables())
@example((["a"], [[""], ["x"], [""]]))
@example((["\ufeffa", "b"], [["\ufeff", "\ufeff"]]))
@example((["a", "b\nc", "d\re"], [["1", "2", "3"], ["\ufeff", "", ""]]))
@example((["a ", " a", "a"], [["1", "2", "3"]]))
@example((["a", ""], [["", ""]]))
@example((["a", "b"], [["\0", ""]]))
@example((['a"', 'b"c'], [['"', '""']]))
def test_names_and_cells_are_read_again_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[list[str], list[list[str]]]
) -> None:
    names, rows = table
    path = tmp_path_factory.mktemp("written") / "MatMulV3.csv"
    path.write_text("the old file")
    try:
        write_frame(frame_of(names, rows), path)
    except TableError:
        assert path.read_text() == "the old file"
        # A table without a header, with one that could not be told from another table's, or with a zero byte in it.
        assert len(names) == 1 or any("\0" in name for name in names)
        return
    again = read_text_csv(path).to_pandas()
    assert list(again.columns) == names
    assert again.to_numpy().tolist() == rows


@given(cells=st.lists(written_texts, min_size=2, max_size=2), note=written_texts)
def test_the_reader_of_python_agrees(tmp_path_factory: pytest.TempPathFactory, cells: list[str], note: str) -> None:
    path = tmp_path_factory.mktemp("written") / "MatMulV3.csv"
    write_frame(frame_of(["Note", "b"], [[cells[0] + note, cells[1]]]), path)
    with open(path, encoding="utf-8", newline="") as file:
        assert list(csv.reader(line.replace("\0", "NUL") for line in file)) == [
            ["Note", "b"],
            [(cells[0] + note).replace("\0", "NUL"), cells[1].replace("\0", "NUL")],
        ]


def test_a_lone_surrogate_is_refused_with_its_place_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "MatMulV3.csv"
    path.write_text("the old file")
    with pytest.raises(TableError) as raised:
        write_frame(frame_of(["a", "b"], [["", "ä"], ["1", "odd \udcff"], ["1", "2"]]), path)
    assert (raised.value.path, raised.value.line) == (path, 3)
    assert path.read_text() == "the old file"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    str(raised.value).encode()


@pytest.mark.parametrize(
    "names", [[], ["", "a", ""], ["version https://git-lfs.github.com/spec/", "a"], [" Status", "a"], ["a\0", "b"]]
)
def test_a_header_that_could_not_be_read_is_refused_before_anything_is_written(
    tmp_path: Path, names: list[str]
) -> None:
    path = tmp_path / "MatMulV3.csv"
    path.write_text("the old file")
    with pytest.raises(TableError):
        write_frame(frame_of(names, []), path)
    assert path.read_text() == "the old file"


HEADERS = {
    "blank": (b"\n", 1),
    "blank, with CR": (b"\r\n", 1),
    "blanks": (b"  \t\n", 1),
    "blank after a BOM": (b"\xef\xbb\xbf\n", 1),
    "an empty name": (b'""\n', 1),
    "not UTF-8": (b"a\xff,b\n", 1),
    "an open quote": (b'a,"b\n', 1),
    "text behind a quote": (b'a,"b"c\n', 1),
    "lone CR": (b"a\rb,c\n", 1),
}


@pytest.mark.parametrize(("header", "line"), HEADERS.values(), ids=HEADERS)
def test_what_is_no_header_is_an_error_with_its_line_and_no_types_are_guessed(
    tmp_path: Path, header: bytes, line: int
) -> None:
    path = tmp_path / "MatMulV3.csv"
    path.write_bytes(header + b"Input Shapes,Count\n00,true\n")
    for read in (read_header, read_text_csv, read_table):
        with pytest.raises(TableError) as raised:
            read(path)
        assert (raised.value.path, raised.value.line) == (path, line)


@pytest.mark.parametrize(
    ("body", "line"),
    [(b"1,2\n\xff,2\n", 3), (b"1,2\n3,4\n\xff\n5,6\n", 4), (b"1,2\n3\n5,6\n", 3), (b"1,2,3\n\xff,2\n", 3)],
    ids=["not UTF-8", "not UTF-8 and too few fields", "too few fields", "one of each"],
)
def test_no_line_is_passed_over_without_a_word(
    tmp_path: Path, body: bytes, line: int, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "MatMulV3.csv"
    path.write_bytes(b"a,b\n" + body)
    with pytest.raises(TableError) as raised:
        read_text_csv(path).to_pandas()
    assert raised.value.line == line
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("block_bytes", [64, 1 << 12])
def test_a_cell_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(store, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "MatMulV3.csv"
    rows = [["a", "1"], ["b", "x" * 100_000], ["c", "two\nlines " * 1000]]
    write_frame(frame_of(["Name", "Text"], rows), path)
    assert read_text_csv(path).to_pandas().to_numpy().tolist() == rows
