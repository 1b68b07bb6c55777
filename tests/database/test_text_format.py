"""What spreadsheets save as CSV: other separators than commas, other encodings than UTF-8."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opatlas.capture.capture_reader import read_capture_header
from opatlas.errors import TableError
from opatlas.model.schema import BASE
from opatlas.store.csv_files import read_frame, read_text_csv

ROW = ("dynamic", "AI_CORE", "1,8;4,8", "BF16;BF16", "ND;ND", "1,4", "BF16", "ND")


def table(*, separator: str = ",", note: str = "größer", column: str = "Note", quoting: int = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([(*BASE, column), (*ROW, "plain"), (*ROW, note)])
    return text.getvalue()


def error_of(path: Path, content: bytes) -> TableError:
    path.write_bytes(content)
    with pytest.raises(TableError) as caught:
        read_frame(path)
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
    assert len(read_frame(path)) == 2
    path.write_text('"one;Input Shapes"\nx\n')
    assert list(read_text_csv(path).columns) == ["one;Input Shapes"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_text_is_named_and_no_line_of_it(tmp_path: Path, encoding: str) -> None:
    error = error_of(tmp_path / "MatMulV2.csv", table(separator="\t").encode(encoding))
    assert encoding[:6].upper() in error.problem
    assert error.line is None
    assert "UTF-8" in error.remedy


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


def test_a_capture_in_utf16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(table().encode("utf-16"))
    with pytest.raises(TableError) as caught:
        read_capture_header(path)
    assert "UTF-16" in caught.value.problem


@pytest.mark.parametrize(
    ("pack", "what", "remedy"),
    [
        (gzip.compress, "gzip", "gunzip"),
        (bz2.compress, "bzip2", "bunzip2"),
        (lzma.compress, "xz", "unxz"),
        (lambda content: zipped("kernel_details.csv", content), "zip archive", "Unpack it"),
        (lambda content: zipped("[Content_Types].xml", content), ".xlsx", "CSV UTF-8"),
        (lambda content: b"SQLite format 3\0" + content, "SQLite", "--export=on"),
    ],
)
def test_a_file_that_is_no_text_is_named_for_what_it_is(
    tmp_path: Path, pack: Callable[[bytes], bytes], what: str, remedy: str
) -> None:
    error = error_of(tmp_path / "MatMulV2.csv", pack(table().encode()))
    assert what in error.problem
    assert remedy in error.remedy


def zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, content)
    return packed.getvalue()
