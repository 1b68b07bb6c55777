"""What a session says before its rows run, and which rows it was asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from doc_commands import ROOT
from opatlas.bench import test_norm
from opatlas.plugins.cases import NOT_RUN, CaseTable, Fate, Plan, SessionCase, of_fate
from opatlas.plugins.choice import Shard, requested_rows
from opatlas.plugins.session import Session
from opatlas.plugins.settings import Settings
from opatlas.plugins.target import SessionTarget
from opatlas.plugins.told import plan_lines

from opatlas.data.origin import MeasurementOrigin
from opatlas.row.status import UpdateMode
from opatlas.row.table import RowTable
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation import Implementation
from opatlas.run.instruments.instrument import MeasureSettings

TARGET = SessionTarget(Implementation("torch"), Path("/data"), MeasurementOrigin())
SETTINGS = Settings(
    targets=(TARGET,),
    devices=(DeviceSpec("cpu"),),
    mode=UpdateMode.MISSING_ONLY,
    prune=False,
    ops=frozenset(),
    shard=Shard(1, 2),
    retry_failed=False,
    prof_path=None,
    measure=MeasureSettings(),
    case_timeout_s=None,
    msprof_rows=None,
    in_process=False,
    collect_only=True,
)


def table_of(*fates: Fate, **of_table: Any) -> CaseTable:
    frame = pd.DataFrame({"Input Shapes": list(map(str, range(len(fates))))})
    table = CaseTable(RowTable("Mul", Path("/data/Mul.csv"), frame), len(fates), **of_table)
    table.cases = [SessionCase(table, position, f"Mul-{position}", fate) for position, fate in enumerate(fates)]
    return table


def session_of(plan: Plan, settings: Settings = SETTINGS) -> Session:
    """Returns a session whose rows are selected, and what it reads of pytest."""
    option = SimpleNamespace(keyword="", read_only=False, prof_path=None)
    config: Any = SimpleNamespace(option=option, args=[], invocation_params=SimpleNamespace(dir=ROOT))
    session = object.__new__(Session)
    session.context = SimpleNamespace(config=config, plan=plan, settings=settings)
    session.collector = SimpleNamespace(known_replays=lambda: {"Mul": test_norm.test_rms_norm})
    for case in of_fate(session.cases, Fate.TO_RUN):
        case.account = NOT_RUN
    return session


def test_a_database_that_two_targets_share_is_taken_over_once() -> None:
    plan = Plan({"Mul": table_of(Fate.TO_RUN, Fate.LEFT_OUT, Fate.OTHER_SHARD)})
    for _ in range(2):
        plan.add(Plan(prepared=["session run-1 was killed"]))
    lines = plan_lines(session_of(plan))
    assert sum("session run-1 was killed" in line for line in lines) == 1
    assert sum("/data" in line for line in lines) == 1
    assert any("1 row left out" in line for line in lines)
    assert any("1 row in other shards" in line for line in lines)


def test_the_captured_time_is_that_of_the_default_whatever_its_place() -> None:
    own, other = table_of(captured_time_us=7.0), table_of(target=1, suffix="-mine")
    assert Plan({each.key: each for each in (own, other)}).captured_time_us() == {"Mul": 7.0}
    assert Plan({each.key: each for each in (other, own)}).captured_time_us() == {"Mul": 7.0}


@pytest.mark.parametrize(
    ("arguments", "keyword", "asked"),
    [
        (["bench"], "", {"RmsNorm", "Unknown"}),
        (["bench/test_norm.py"], "", {"RmsNorm"}),
        (["bench/test_norm.py::test_rms_norm"], "", {"RmsNorm"}),
        (["bench/test_matmul.py"], "", set()),
        (["bench/test_matmul.py", "bench/formulas", "bench"], "", {"RmsNorm"}),
        (["no/such/place"], "", {"RmsNorm", "Unknown"}),
        (["bench"], "rms_norm", {"RmsNorm"}),
        (["bench"], "Unknown or rms", {"RmsNorm", "Unknown"}),
    ],
)
def test_rows_are_requested_by_file_and_by_k(arguments: list[str], keyword: str, asked: set[str]) -> None:
    """In xdist's controller too, which collects nothing and knows the replays of bench/ alone."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(keyword=keyword), args=arguments, invocation_params=SimpleNamespace(dir=ROOT)
    )
    requested = requested_rows(config, {"RmsNorm": test_norm.test_rms_norm})
    assert {name for name in ("RmsNorm", "Unknown") if requested(name, f"{name}-1x2")} == asked
