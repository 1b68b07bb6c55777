"""docs/adding-a-device.md: its code is that of the simulated devices and works; its tables are the Protocols."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from doc_commands import ROOT
from sessions import Sessions, row

from bench.devices.kinds import KINDS
from database.layout import cpu_device_name

PAGE = (ROOT / "docs" / "adding-a-device.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def test_what_the_page_quotes_stands_in_the_file() -> None:
    quoted = {name: block for name, block in BLOCKS.items() if name.startswith("tests/")}
    assert len(quoted) == 2
    for name, block in quoted.items():
        assert block in (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_devices_of_a_conftest_get_a_worker_each(sessions: Sessions) -> None:
    (sessions.folder / "conftest.py").write_text(BLOCKS["conftest.py"])
    sessions.write("Toy", [row(size) for size in range(1, 5)])
    done = sessions.run()
    assert done.ledger() == {"measured": 4}
    assert "created: 2/2 workers" in done
    (path,) = (sessions.database / "runs").glob("*.json")
    device = json.loads(path.read_text())["device"]
    assert (device["name"], device["kind"]) == ("Simulated", "simulated")


def test_an_instrument_that_they_do_not_offer_is_refused_before_anything_runs(sessions: Sessions) -> None:
    (sessions.folder / "conftest.py").write_text(BLOCKS["conftest.py"])
    sessions.write("Toy", [row(1)])
    done = sessions.run_in_process("--instrument=sundial", SIMULATED_VISIBLE_DEVICES="0")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "--instrument sundial: devices of kind cpu offer wall-clock" in done
    assert sessions.read("Toy") == [row(1)]


def test_another_device_can_be_asked_for_beside_them(sessions: Sessions) -> None:
    (sessions.folder / "conftest.py").write_text(BLOCKS["conftest.py"])
    sessions.write("Toy", [row(1)])
    assert sessions.run_in_process("--device=cpu").ledger() == {"measured": 1}
    (path,) = (sessions.database / "runs").glob("*.json")
    device = json.loads(path.read_text())["device"]
    assert (device["name"], device["kind"]) == (cpu_device_name(), "cpu")


def compares_kinds(source: str) -> bool:
    """Whether a file compares something with the name of a kind, or looks something up by it."""
    for node in ast.walk(ast.parse(source)):
        words: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            words = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            words = [*node.keys]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            words = [*node.elts]
        elif isinstance(node, ast.Subscript):
            words = [node.slice]
        if any(isinstance(word, ast.Constant) and word.value in KINDS for word in words):
            return True
    return False


def test_every_file_that_knows_kinds_is_on_the_page() -> None:
    table = PAGE.partition("| file | what it has of a kind |\n")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines()[1:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    places = {name: set(ROOT.glob(name)) for name in named}
    assert all(places.values())
    listed = set[Path]().union(*places.values())
    files = [path for folder in ("bench", "plugins", "shapes", "database") for path in (ROOT / folder).rglob("*.py")]
    knowing = [path for path in files if compares_kinds(path.read_text(encoding="utf-8"))]
    assert len(knowing) > len(named)
    missing = [path for path in knowing if not listed.intersection((path, *path.parents))]
    assert [str(path.relative_to(ROOT)) for path in missing] == []


@pytest.mark.parametrize(
    ("protocol", "file"),
    [
        ("Device", "bench/devices/__init__.py"),
        ("Instrument", "bench/instruments/__init__.py"),
        ("Rule", "bench/stop_rule.py"),
    ],
)
def test_tables_name_the_members_of_a_protocol(protocol: str, file: str) -> None:
    (body,) = (
        node.body
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == protocol
    )
    members = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    members |= {ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign)}
    table = PAGE.partition(f"`{protocol}` in `{file}`:\n\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == members
