"""docs/options.md against what --help says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from opatlas.cli import main as command

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "options.md").read_text(encoding="utf-8")

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
    "History": "history",
    "Rebuild": "rebuild",
    "Unprune": "unprune",
    "Combine": "combine",
    "Fill runtime": "fill-runtime",
    "Trace to CSV": "trace-to-csv",
    "Doctor": "doctor",
    "Kernels": "kernels",
    "Probe DispatchFFNCombine": "probe-dispatch-ffn-combine",
    "Validate communication": "validate-comm",
    "Plot": "plot",
    "Plot communication": "plot-comm",
    "Plot products": "plot-products",
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


def help_of(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def pytest_help() -> str:
    return help_of("pytest", "bench/")


@pytest.fixture(scope="module")
def ingest_help() -> str:
    return help_of("opatlas", "ingest")


def declared(text: str) -> set[str]:
    """Options that a help text declares: at the beginning of a line, `-h, --help` and the like included."""
    heads = re.findall(r"^ +(-[^ ].*?)(?:  |$)", text, flags=re.MULTILINE)
    return {option for head in heads for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", head)}


def group_of_opatlas(text: str) -> str:
    """The parts of pytest's help that this project adds, but for those of single operators."""
    return "\n".join(re.findall(r"^OpAtlas.*:\n((?:(?: .*)?\n)+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("title", ORIGINAL)
def test_every_original_option_has_its_row(title: str) -> None:
    assert [row[0] for row in rows(title)] == [f"--{name}" for name in ORIGINAL[title].split()]


@pytest.mark.parametrize("title", ORIGINAL)
def test_rows_name_an_option_or_say_that_there_is_none(title: str) -> None:
    for original, default, here, _ in rows(title):
        assert default, original
        assert bool(_OPTION.search(here)) != (here == "none"), original


def test_what_the_page_names_for_pytest_exists(pytest_help: str) -> None:
    named = set[str]().union(*(options_here(title) for title in OF_PYTEST))
    assert named <= declared(pytest_help)


def test_what_the_page_names_for_the_ingest_exists(ingest_help: str) -> None:
    assert options_here("Ingest") <= declared(ingest_help)


def test_every_option_of_opatlas_is_on_the_page(pytest_help: str) -> None:
    ours = declared(group_of_opatlas(pytest_help))
    assert ours
    assert ours <= set[str]().union(*(options_here(title) for title in OF_PYTEST))


def test_every_option_of_the_ingest_is_on_the_page(ingest_help: str) -> None:
    assert declared(ingest_help) - {"-h", "--help"} == options_here("Ingest")


def test_every_command_has_its_section() -> None:
    there = {name for name, known in command.COMMANDS.items() if known.module is not None}
    # The ingest has a table of the original document.
    assert {*COMMANDS.values(), "ingest"} == there


@pytest.mark.parametrize("title", COMMANDS)
def test_the_options_of_a_command_are_those_of_the_page(title: str) -> None:
    text = help_of("opatlas", COMMANDS[title])
    assert declared(text) - {"-h", "--help"} == options_here(title)
    for _, default, _ in rows(title):
        assert default in ("off", "required", "not written") or f"(default: {default})" in " ".join(text.split())


def test_pytest_options_that_the_page_promises_exist(pytest_help: str) -> None:
    promised = set(_OPTION.findall(section(OWN).rpartition("pytest's own options")[2]))
    assert {"-k", "-n", "--junitxml"} <= promised
    # pytest hides this spelling of --junit-xml from its help.
    assert promised - {"--junitxml"} <= declared(pytest_help)


def test_defaults_of_our_own_options_are_those_of_the_help(pytest_help: str) -> None:
    texts = re.split(r"\n {2}(?=--)", group_of_opatlas(pytest_help))
    for cell, default, _ in rows(OWN):
        text = " ".join(next(text for text in texts if text.startswith(cell.strip("`"))).split())
        # Switches, off by default, say what happens without them.
        assert f"(default: {default})" in text or default == "off", cell


def test_options_of_an_operator_are_on_the_page(pytest_help: str) -> None:
    text = re.split(r"\n\n?(?=\S)", pytest_help.partition("\nExpert parallelism:")[2])[0]
    assert declared(text)
    assert declared(text) <= options_here("Replay")


def test_options_of_collectives_are_on_the_page(pytest_help: str) -> None:
    text = re.split(r"\n\n?(?=\S)", pytest_help.partition("\nCollectives:")[2])[0]
    # What a kernel takes too (--ops, --instrument) is declared with the options of replays.
    assert declared(text) <= options_here("Communication")


def test_options_of_nodes_are_on_the_page(pytest_help: str) -> None:
    text = re.split(r"\n\n?(?=\S)", pytest_help.partition("\nNodes:")[2])[0]
    assert declared(text) == options_here("Nodes")
    texts = re.split(r"\n {2}(?=--)", text)
    for cell, default, _ in rows("Nodes"):
        shown = " ".join(next(text for text in texts if text.startswith(cell.strip("`"))).split())
        assert f"(default: {default})" in shown
