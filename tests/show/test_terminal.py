"""What commands print."""

from __future__ import annotations

import pytest
from printed import numbers_in

from opatlas.errors import CellError, OpAtlasError
from opatlas.formats import change, percent
from opatlas.show import Column, Fields, Format, Result, Table, print_note, print_result
from opatlas.show.result import plain_text, screen, text
from opatlas.text import exception_line, printable, printable_lines


def test_of_many_problems_the_first_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_result(Result(problems=[f"line {number}" for number in range(25)])) == 1
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[0], numbers_in(lines[-1])) == (21, "error: line 0", (5,))


@pytest.mark.parametrize("written", ["text", "markdown", "csv"])
@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x07", "\r", "\x00", "\x7f", "\x9b", "\u202e", "\u2066", "\u2028", "\ufeff", "\udcff", "\x08"]
)
def test_what_a_terminal_would_obey_is_escaped(text: str, written: Format, capsys: pytest.CaptureFixture[str]) -> None:
    for told in (
        printable_lines(f"a {text} b"),
        str(OpAtlasError(text)),
        str(CellError("Format", text, text)),
        printable(text),
    ):
        assert told.isprintable()
    parts = [f"a\tb{text}", Table((text, "b"), [(text, 1)], title=text), Fields({text: (text, text)}, title=text)]
    print_result(Result(parts, problems=[text]), written)
    print_note(text)
    told = "".join(capsys.readouterr())
    assert told.replace("\n", "").replace("\t", "").isprintable()


def test_letters_of_all_languages_are_shown_as_they_are() -> None:
    assert printable_lines("größe 模型 \U0001f600 a\n\tb") == "größe 模型 \U0001f600 a\n\tb"


def test_all_rows_are_lines_where_no_terminal_limits_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table(("name", "what is said of it"), [("a", "words " * 29 + "end"), ("longer", None)])
    monkeypatch.delenv("COLUMNS", raising=False)
    print_result(Result([table]), "text")
    assert len(capsys.readouterr().out.splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "30")
    print_result(Result([table]), "text")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 30
    assert " ".join(lines).split().count("words") == 29
    narrow = Table((Column("a share of all", percent), "name"), [(0.249, "words " * 29)])
    assert any("24.9 %  words" in line for line in text([narrow], 30).splitlines())


@pytest.mark.parametrize("rows", [6, 100])
def test_a_screen_has_the_most_important_rows_and_both_ends_of_their_names(rows: int) -> None:
    names = [f"{'A' * 80}-{number}" for number in range(rows)]
    weighed = Table(("name", "us"), [(name, number) for number, name in enumerate(names)], weight=lambda row: row[1])
    parts = [
        Fields({"answer": 7}),
        weighed,
        Table(("word", "what"), [("word", "a sentence of words " * 9)] * rows, "words"),
        Table(("detail",), [("seldom asked",)] * rows, "details", detail=True),
    ]
    lines = screen(parts, 60).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 60
    assert any(line.startswith("AAA") and line.endswith(f"-{rows - 1}  {rows - 1:2}".rstrip()) for line in lines)
    assert "seldom asked" not in lines
    assert "details" in lines[-1]
    assert "--format text" in lines[-1]


def test_a_table_of_many_columns_fits_a_terminal_of_eighty() -> None:
    names = ("part", "kernel type", "calls", "each(us)", "share", "how", "implementation", "note")
    words = ("experts_reduce", "hcom_reduceScatter_", 58, 596.5, 0.52, "extrapolated", "flashinfer", "random load")
    numbers = Table([f"{name}(ms)" for name in "abcdefghijk"], [(12345,) * 11])
    for parts in ([Table(names, [words] * 99, "a title of many words " * 5)], [numbers]):
        assert max(map(len, screen(parts, 80).splitlines())) <= 80


def test_what_fits_on_a_screen_is_shown_as_it_is() -> None:
    parts = [Table(("name",), [("a",), ("words of a cell " * 12,)], "names", detail=True), "a sentence"]
    assert screen(parts, 60) == text(parts, 60)


def test_a_failed_build_is_told_by_the_first_error_of_the_compiler() -> None:
    message = (
        "Error building extension 'norm': [1/2] c++ -MMD -MF main.o.d\nFAILED: main.o\nmain.cpp:2:44: error: no ;\n^"
    )
    assert exception_line(RuntimeError(message)) == (
        "RuntimeError: Error building extension 'norm': main.cpp:2:44: error: no ;"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(231290.4, "231,290"), (-12345.0, "-12,345"), (0.123456, "0.1235"), (7, "7"), (12345, "12,345"), (True, "True")],
)
def test_a_number_has_no_exponent_and_all_digits_before_the_point(value: object, shown: str) -> None:
    assert plain_text(value) == shown


def test_a_percentage_has_a_space_before_its_sign() -> None:
    assert (percent(0.084), percent(0.67, 0), percent(12.5)) == ("8.4 %", "67 %", "1,250.0 %")
    assert (change(0.1), change(-0.8)) == ("+10.0 %", "-80.0 %")
