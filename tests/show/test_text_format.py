"""What spreadsheets save as CSV: other separators than commas, other encodings than UTF-8."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opatlas.capture.capture_reader import read_capture_header
from opatlas.data.csv_files import read_table, read_text_csv
from opatlas.errors import TableError
from opatlas.row.columns import BASE

ROW = ("dynamic", "AI_CORE", "1,8;4,8", "BF16;BF16", "ND;ND", "1,4", "BF16", "ND")


def table(*, separator: str = ",", note: str = "größer", column: str = "Note", quoting: int = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([(*BASE, column), (*ROW, "plain"), (*ROW, note)])
    return text.getvalue()


def error_of(path: Path, content: bytes) -> TableError:
    path.write_bytes(content)
    with pytest.raises(TableError) as caught:
        read_table(path).to_pandas()
    assert path.read_bytes() == content
    return caught.value


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize(("separator", "name"), [(";", "';'"), ("\t", "tabs"), ("|", "'|'")])
def test_another_separator_is_named(tmp_path: Path, separator: str, name: str, quoting: int) -> None:
    text = table(separator=separator, quoting=quoting)
    for mark in (b"", codecs.BOM_UTF8):
        error = error_of(tmp_path / "MatMulV2.csv", mark + text.encode())
        assert error.line == 1
        assert name in error.problem
        assert "commas" in error.remedy


def test_a_separator_of_shapes_is_none_of_fields(tmp_path: Path) -> None:
    path = tmp_path / "MatMulV2.csv"
    path.write_text(table(column="a;b|c"))
    assert len(read_table(path)) == 2
    path.write_text('"one;Input Shapes"\nx\n')
    assert read_text_csv(path).column_names == ["one;Input Shapes"]


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", "größer"), ("cp1252", "€ größer")])
def test_a_cell_in_another_encoding_is_named_with_its_column(tmp_path: Path, encoding: str, shown: str) -> None:
    error = error_of(tmp_path / "MatMulV2.csv", table(note=shown).encode(encoding))
    assert error.line == 3
    assert "'Note'" in error.problem
    assert shown in error.problem
    assert "UTF-8" in error.remedy


def test_a_column_in_another_encoding_is_named(tmp_path: Path) -> None:
    error = error_of(tmp_path / "MatMulV2.csv", table(column="Größe").encode("latin-1"))
    assert error.line == 1
    assert "Größe" in error.problem


def test_a_line_of_which_no_cell_can_be_told_is_named(tmp_path: Path) -> None:
    error = error_of(tmp_path / "MatMulV2.csv", table().encode() + b'x\ry,"\xff\n')
    assert error.line == 4


@pytest.mark.parametrize(
    "pack",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.encode("utf-32"),
        lambda text: gzip.compress(text.encode()),
        lambda text: zipped("[Content_Types].xml", text),
        lambda text: b"SQLite format 3\0" + text.encode(),
    ],
    ids=["UTF-16", "UTF-16 without a mark", "UTF-32", "gzip", "workbook", "SQLite"],
)
def test_a_file_that_is_no_text_is_named_and_no_line_of_it(tmp_path: Path, pack: Callable[[str], bytes]) -> None:
    error = error_of(tmp_path / "MatMulV2.csv", pack(table()))
    assert error.line is None
    assert "UTF-8" in error.remedy
    capture = tmp_path / "kernel_details.csv"
    capture.write_bytes(pack(table()))
    with pytest.raises(TableError) as caught:
        read_capture_header(capture)
    assert caught.value.problem == error.problem


def zipped(name: str, text: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, text)
    return packed.getvalue()
