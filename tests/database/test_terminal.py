"""What commands print."""

from __future__ import annotations

import sys

import pytest
from printed import numbers_in

from opatlas.cli.main import main
from opatlas.errors import CellError, OpAtlasError
from opatlas.text import (
    exception_line,
    percent_text,
    print_problems,
    printable,
    printable_lines,
    show,
    table_lines,
)


def test_of_many_problems_the_first_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems([f"line {number}" for number in range(25)])
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[0], numbers_in(lines[-1])) == (21, "error: line 0", (5,))


def test_of_those_that_are_only_the_first_all_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    total, what = 2341, "malformed lines"
    print_problems(["line 1", "line 2"], total=total, what=what)
    last = capsys.readouterr().err.splitlines()[-1]
    assert (numbers_in(last), last.endswith(what)) == ((total - 2,), True)
    print_problems([], total=0, what="malformed lines")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_lines_that_fit_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a/very/long/path" * 5 + "/nowhere"
    command = ["ingest", "--profiling-path", path]
    assert main(command) == 2
    in_a_pipe = capsys.readouterr().err
    assert len(in_a_pipe.splitlines()) == 1
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(command) == 2
    on_a_terminal = capsys.readouterr().err
    assert on_a_terminal.split() == in_a_pipe.split()
    assert all(len(line) <= 60 for line in on_a_terminal.splitlines() if path not in line)
    assert len(on_a_terminal.splitlines()) > 2


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x07", "\r", "\x00", "\x7f", "\x9b", "\u202e", "\u2066", "\u2028", "\ufeff", "\udcff", "\x08"]
)
def test_what_a_terminal_would_obey_is_escaped(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for told in (
        printable_lines(f"a {text} b"),
        str(OpAtlasError(text)),
        str(CellError("Format", text, text)),
        printable(text),
    ):
        assert told.isprintable()
    show(f"a\n\tb{text}")
    print_problems([text], what=text, total=2)
    told = "".join(capsys.readouterr())
    assert told.startswith("a\n\tb")
    assert told.replace("\n", "").replace("\t", "").isprintable()


def test_letters_of_all_languages_are_shown_as_they_are() -> None:
    assert printable_lines("größe 模型 \U0001f600 a\n\tb") == "größe 模型 \U0001f600 a\n\tb"


def test_a_table_keeps_its_columns_in_lines_that_fit() -> None:
    rows = [("name", "count", "what is said of it"), ("a", "1", "words " * 9), ("longer", "12", "")]
    assert table_lines(rows, 1000)[1] == "a       1      " + ("words " * 9).rstrip()
    lines = table_lines(rows, 30)
    assert max(map(len, lines)) <= 30
    assert [line.split()[:2] for line in lines if not line.startswith(" ")] == [
        ["name", "count"],
        ["a", "1"],
        ["longer", "12"],
    ]
    assert " ".join(lines).split().count("words") == 9
    assert lines[-1] == "longer  12"


def test_a_failed_build_is_told_by_the_first_error_of_the_compiler() -> None:
    message = (
        "Error building extension 'norm': [1/2] c++ -MMD -MF main.o.d\nFAILED: main.o\nmain.cpp:2:44: error: no ;\n^"
    )
    assert exception_line(RuntimeError(message)) == (
        "RuntimeError: Error building extension 'norm': main.cpp:2:44: error: no ;"
    )


@pytest.mark.parametrize(
    ("share", "digits", "signed", "text"),
    [
        (0.084, 1, False, "8.4 %"),
        (0.67, 0, False, "67 %"),
        (12.5, 1, False, "1,250.0 %"),
        (0.1, 0, True, "+10 %"),
        (-0.8, 1, True, "-80.0 %"),
    ],
)
def test_a_percentage_has_a_space_before_its_sign(share: float, digits: int, signed: bool, text: str) -> None:
    assert percent_text(share, digits, signed=signed) == text
