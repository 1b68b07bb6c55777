"""docs/options.md against the options that OpAtlas declares."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from declared_options import command_parsers, names, pytest_parser, shown

PAGE = (Path(__file__).parents[1] / "docs" / "options.md").read_text(encoding="utf-8")

#: The option tables of the original design document, section 3.2.
ORIGINAL = {
    "Ingest": "profiling-path database-path device vllm-version torch-version cann-version",
    "Replay": "database-path device vllm-version torch-version cann-version prof-path op "
    "dispatch-ffn-combine-ep-size dispatch-ffn-combine-nproc-per-node dispatch-ffn-combine-nnodes "
    "dispatch-ffn-combine-node-rank dispatch-ffn-combine-master-addr dispatch-ffn-combine-master-port "
    "repeat-count update-mode fail-fast prune-empty-duration-rows",
    "Theory rows": "target-models data-dir device vllm-version torch-version cann-version rows seed max-hbm-gb",
    "Communication": "output-dir output-csv ops grid-shape num-devices topology-tier dtype bytes-grid "
    "do-run bench-mode",
}
OWN = "Options that OpAtlas adds"
#: Without a table of the original: commands of their own.
COMMANDS = {
    "Show": "show",
    "Implementations": "implementations",
    "History": "history",
    "Check": "check",
    "Combine": "combine",
    "Compare": "compare",
    "Diagnose": "diagnose",
    "Doctor": "doctor",
    "Export": "export",
    "Fit": "fit",
    "Model": "model",
    "Models": "models",
    "Plan": "plan",
    "Plot": "plot",
    "Query": "query",
    "Report": "report",
    "Regressions": "regressions",
    "Suite": "suite",
    "SuperKernel": "superkernel",
}
#: Sections whose rows have their options in `pytest --help`.
OF_PYTEST = ("Replay", "Theory rows", "Communication", "Nodes", OWN)

_OPTION = re.compile(r"`(--?[a-z][a-z-]*)`")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, header left out."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def options_here(title: str) -> set[str]:
    """Options that the page says exist."""
    column = 2 if title in ORIGINAL else 0
    return {option for row in rows(title) for option in _OPTION.findall(row[column])}


def text_of(action: argparse.Action) -> str:
    """Returns the help of an option, with its default filled in."""
    return (action.help or "") % vars(action)


@pytest.mark.parametrize("title", ORIGINAL)
def test_every_original_option_has_its_row(title: str) -> None:
    assert [row[0] for row in rows(title)] == [f"--{name}" for name in ORIGINAL[title].split()]


@pytest.mark.parametrize("title", ORIGINAL)
def test_rows_name_an_option_or_say_that_there_is_none(title: str) -> None:
    for original, default, here, _ in rows(title):
        assert default, original
        assert bool(_OPTION.search(here)) != (here == "none"), original


def test_the_page_names_the_options_of_sessions_and_no_others() -> None:
    on_the_page = set[str]().union(*(options_here(title) for title in OF_PYTEST))
    assert on_the_page - {"-k", "-x"} == names(pytest_parser())


def test_the_page_names_the_options_of_the_ingest_and_no_others() -> None:
    assert options_here("Ingest") == names(command_parsers()["ingest"])


def test_every_command_has_its_section() -> None:
    # The ingest has a table of the original document.
    assert {*COMMANDS.values(), "ingest"} == command_parsers().keys()


@pytest.mark.parametrize("title", COMMANDS)
def test_the_options_of_a_command_are_those_of_the_page(title: str) -> None:
    assert options_here(title) == names(command_parsers()[COMMANDS[title]])


@pytest.mark.parametrize(
    ("title", "parser"),
    [("Nodes", pytest_parser()), (OWN, pytest_parser())]
    + [(title, command_parsers()[name]) for title, name in COMMANDS.items()],
)
def test_defaults_on_the_page_are_those_of_the_help(title: str, parser: argparse.ArgumentParser) -> None:
    texts = {name: text_of(action) for action in shown(parser) for name in action.option_strings}
    for cell, default, _ in rows(title):
        option = _OPTION.findall(cell)[0]
        # The help of a switch says what happens without the switch.
        assert default in ("off", "required", "not written") or f"(default: {default})" in texts[option], option
