"""database/README.md lists every column, status and field of the code, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from doc_commands import ROOT

from opatlas.data import journal
from opatlas.data.database import PRUNED_REASON, Database
from opatlas.data.manifest import VERSION, Manifest
from opatlas.row import columns as schema
from opatlas.row.columns import PIPE_UTILIZATION
from opatlas.row.communication import COLLECTIVES, TIERS
from opatlas.row.location import NPU_DEVICES
from opatlas.row.record import Measurement, Record
from opatlas.row.status import Status, UpdateMode

PAGE = (ROOT / "database" / "README.md").read_text(encoding="utf-8")
COLUMNS = set(schema.COLUMNS)
OLDER = {schema.LEGACY_MICROBENCH, schema.LEGACY_PROFILING_MEDIAN, schema.LEGACY_PROFILING_STD}


def section(title: str) -> str:
    """The text under a heading, sections beneath it included."""
    level = re.findall(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)[0]
    rest = PAGE.partition(f"\n{level} {title}\n")[2]
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def first_cells(text: str, header: str) -> list[str]:
    """The first column of the tables with a header, without its backticks."""
    cells, inside = list[str](), False
    for line in text.splitlines():
        inside = line.startswith("|") and (inside or line.startswith(f"| {header} |"))
        if inside:
            cells.append(line.split(" | ")[0].removeprefix("| ").strip("`"))
    return [cell for cell in cells if cell not in (header.strip("`"), "---")]


def words(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def test_the_tables_of_columns_are_those_of_the_code() -> None:
    named = first_cells(PAGE, "column")
    assert sorted(named) == sorted(COLUMNS)


def test_the_page_says_its_version() -> None:
    assert f"is version {VERSION}." in section("Version of the schema")


def test_required_columns_are_marked() -> None:
    table = section("What the row is")
    required = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `") and "required" in line}
    # The outputs are "as for inputs".
    said = required | {name.replace("Input", "Output") for name in required if name != schema.INPUT_FORMATS}
    assert said == set(schema.REQUIRED)


@pytest.mark.parametrize("counter", PIPE_UTILIZATION)
def test_every_counter_is_named(counter: str) -> None:
    assert f"`{counter}`" in PAGE


def test_statuses_and_the_work_of_the_next_session() -> None:
    lines = [line for line in section("Status").splitlines() if line.startswith("| `")]
    after = {line.split("`")[1]: line for line in lines if line.split("`")[1] not in COLUMNS}
    assert list(after) == [status.value for status in Status]
    assert {Status(name) for name, line in after.items() if "xfail" in line} == {
        status for status in Status if status.expected_to_fail
    }


def test_signature_names_the_cells_that_change_it() -> None:
    table = section("Signature")
    runtime = {*schema.RUNTIME_IN_SIGNATURE, *schema.LENGTHS_IN_SIGNATURE} - {schema.LEGACY_AVG_SEQ_LEN}
    assert {name for name in words(table) if name.startswith("Runtime ")} == runtime
    assert all(collective.kernel_type in table for collective in COLLECTIVES)


def test_update_modes() -> None:
    assert first_cells(section("Write-back"), "`--update-mode`") == [mode.value for mode in UpdateMode]


def test_folders_next_to_the_csvs() -> None:
    database = Database(ROOT)
    folders = (getattr(database, name) for name in dir(Database) if name.endswith("_dir"))
    own = {folder.name for folder in folders if isinstance(folder, Path)}
    assert set(first_cells(section("Folders"), "folder")) == {f"{name}/" for name in own}
    assert PRUNED_REASON in section("Folders")


def test_devices_tiers_and_messages() -> None:
    assert all(name in section("Folders") for name in NPU_DEVICES)
    table = section("Columns of a collective's CSV")
    assert all(f"{tier} {name}" in table for tier, name in TIERS.items())
    assert all(f"{collective.name}: " in table for collective in COLLECTIVES)


def test_older_columns() -> None:
    assert words(section("Older files")) >= OLDER


def test_journal_and_manifest_name_every_field() -> None:
    text = section("Journal")
    named = words(text) - {"journal/{Run ID}.jsonl", "opatlas combine"}
    assert named == {field.name for kind in (journal.JournalHeader, Record, Measurement) for field in fields(kind)}
    assert "version 3." in text
    assert words(section("Manifest")) - {"runs/{Run ID}.json"} == {field.name for field in fields(Manifest)}
