"""docs/contributing.md: its code works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from doc_commands import ROOT
from scratch_checkout import ScratchCheckout
from sessions import Sessions, row

from opatlas.cli.app import run_tool
from opatlas.row.location import cpu_device_name

PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


HOOK = """
import simulated

pytest_plugins = ("opatlas.plugins",)


def pytest_opatlas_devices(config):
    return simulated.devices(2) if config.option.device in (None, "simulated") else None
"""


def test_the_example_of_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS["opatlas/cli/hello.py"], names)
    assert run_tool(names["hello"], "hello", ["Ada", "--times", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "Ada", "times": 2}


@pytest.mark.slow
def test_devices_of_a_conftest_get_a_worker_each(sessions: Sessions) -> None:
    (sessions.folder / "conftest.py").write_text(HOOK)
    sessions.write("Toy", [row(size) for size in range(1, 5)])
    done = sessions.run()
    assert done.ledger() == {"measured": 4}
    assert "created: 2/2 workers" in done
    (path,) = (sessions.database / "runs").glob("*.json")
    device = json.loads(path.read_text())["device"]
    assert (device["name"], device["kind"]) == ("Simulated", "simulated")


def test_an_instrument_that_they_do_not_offer_is_refused_before_anything_runs(sessions: Sessions) -> None:
    (sessions.folder / "conftest.py").write_text(HOOK)
    sessions.write("Toy", [row(1)])
    done = sessions.run_in_process("--instrument=sundial", SIMULATED_VISIBLE_DEVICES="0")
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert "--instrument sundial: " in done
    assert "wall-clock" in done
    assert sessions.read("Toy") == [row(1)]


def test_another_device_can_be_named_in_addition(sessions: Sessions) -> None:
    (sessions.folder / "conftest.py").write_text(HOOK)
    sessions.write("Toy", [row(1)])
    assert sessions.run_in_process("--device=cpu").ledger() == {"measured": 1}
    (path,) = (sessions.database / "runs").glob("*.json")
    device = json.loads(path.read_text())["device"]
    assert (device["name"], device["kind"]) == (cpu_device_name(), "cpu")


def test_one_file_adds_a_kind_of_device(tmp_path: Path) -> None:
    checkout = ScratchCheckout(tmp_path)
    (tmp_path / "opatlas/run/devices/toy.py").write_text(BLOCKS["opatlas/run/devices/toy.py"])
    done = checkout.run("pytest bench/ --ops Mul --repeat-count 1", options="-q --device=toy")
    assert done.returncode == 0, done.stdout
    (database,) = (tmp_path / "database/data").glob("*/*/*")
    assert database.parts[-3:-1] == ("Toy_1", "torch")
    (manifest,) = (database / "runs").glob("*.json")
    device = json.loads(manifest.read_text())["device"]
    assert (device["name"], device["kind"], device["facts"]) == ("Toy_1", "toy", {"colour": "red"})
