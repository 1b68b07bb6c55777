"""The private parts of pytest that sessions use. pyproject.toml bounds pytest's version because of these.

| part | why pytest's public parts do not do |
| --- | --- |
| `Expression` | -k selects rows before they are collected, by pytest's own rules |
| `LogXML`, `xml_key` | JUnit names rows by their signature, and has their numbers as properties of the suite |
| `ReprFileLocation` | with `CI`, the short summary repeats one line of a failure |
| `read_global_capture`, `_report_sections` | what a row printed goes to this row, and pytest does not hold all of it |
| `_file` of the terminal writer | tables are wrapped on a terminal only |
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from _pytest._code.code import ReprFileLocation
from _pytest.junitxml import LogXML, xml_key
from _pytest.mark.expression import Expression

from opatlas.show.render import UNLIMITED
from opatlas.show.result import Part

__all__ = ["Expression", "LogXML", "xml_key"]


def write_parts(terminal: pytest.TerminalReporter, parts: Iterable[Part]) -> None:
    """Writes parts of a result as wide as the terminal that pytest writes to; unbroken lines where it is none."""
    from opatlas.show.render import text

    writer = terminal.config.get_terminal_writer()
    is_limited = writer._file.isatty() or bool(os.environ.get("COLUMNS"))
    shown = text(parts, writer.fullwidth if is_limited else UNLIMITED, styled=bool(writer.hasmarkup))
    if shown:
        terminal.write_line(shown)


def shorten_message(report: pytest.TestReport) -> None:
    """Leaves of a failure's message the first line, without the name of pytest's exception; its text stays.

    JUnit shows the message above the text. Where `CI` is set, so does pytest's short summary.
    """
    crash: ReprFileLocation | None = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = crash.message.partition("\n")[0].removeprefix("Failed: ")


def take_output(item: pytest.Item) -> None:
    """Moves the output that pytest has captured since it last looked to the call of a test."""
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    if capture is not None:
        for name, text in zip(("stdout", "stderr"), capture.read_global_capture(), strict=True):
            item.add_report_section("call", name, text)


def captured_sections(item: pytest.Item) -> list[tuple[str, str, str]]:
    """Returns the output that pytest keeps of a test, as phase, stream and text. Changes of the list take effect."""
    return item._report_sections
