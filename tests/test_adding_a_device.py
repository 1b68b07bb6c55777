"""docs/adding-a-device.md: its code is that of the simulated devices and works; its tables are the Protocols."""

from __future__ import annotations

import ast
import json
import re

import pytest
from doc_commands import ROOT
from sessions import Sessions, row

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


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--instrument=sundial", "--instrument sundial: devices of kind cpu offer wall-clock"),
        ("--device=cuda", "--device cuda: the hook pytest_opatlas_devices of a conftest.py or plugin gives simulated"),
    ],
)
def test_what_they_do_not_offer_is_refused_before_anything_runs(option: str, words: str, sessions: Sessions) -> None:
    (sessions.folder / "conftest.py").write_text(BLOCKS["conftest.py"])
    sessions.write("Toy", [row(1)])
    done = sessions.run_in_process(option, SIMULATED_VISIBLE_DEVICES="0")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert words in done
    assert sessions.read("Toy") == [row(1)]


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
