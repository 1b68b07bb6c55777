"""What a session says before its rows run, and which rows it was asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from doc_commands import ROOT
from opatlas.bench import test_norm
from opatlas.plugins.plan import CasesOfTable, Plan, PreparedDatabase
from opatlas.plugins.plan_lines import crowded_folders, plan_lines
from opatlas.plugins.requested_rows import RequestedRows
from opatlas.plugins.selection import Shard, meant
from opatlas.plugins.settings import Settings
from opatlas.plugins.target import SessionTarget

from opatlas.data.origin import MeasurementOrigin
from opatlas.data.update_mode import UpdateMode
from opatlas.data.write_back import RecoveredJournal
from opatlas.row.table import RowTable
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementations.implementation import Implementation
from opatlas.run.instruments.instrument import MeasureSettings

SETTINGS = Settings(
    targets=(SessionTarget(Implementation("torch"), Path("/data"), MeasurementOrigin()),),
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
    collect_only=False,
)


def cases_of(rows: int, **of_plan: Any) -> CasesOfTable:
    frame = pd.DataFrame({"Input Shapes": list(map(str, range(rows)))})
    return CasesOfTable(RowTable("Mul", Path("/data/Mul.csv"), frame), rows, **of_plan)


def test_a_database_that_two_targets_share_is_taken_over_once() -> None:
    table = cases_of(3)
    table.cases, table.left_out, table.other_shards = {0: "Mul-1"}, {1: "Mul-2"}, [2]
    everything: Any = SimpleNamespace(known_replays=dict)
    config: Any = SimpleNamespace(
        option=SimpleNamespace(keyword=""), args=[], invocation_params=SimpleNamespace(dir=ROOT)
    )
    recovered = RecoveredJournal("run-1", Counter({"measured": 1}))
    plan = Plan(
        {"Mul": table},
        prepared=[
            PreparedDatabase(recovered=[recovered], starter_rows=1, taken_over="session run-1"),
            PreparedDatabase(taken_over="session run-1"),
        ],
    )
    lines = plan_lines(plan, SETTINGS, {"Mul"}, 1, RequestedRows(config, everything), {})
    assert sum("session run-1 was killed" in line for line in lines) == 1
    assert sum("/data" in line for line in lines) == 1


def test_the_captured_time_is_that_of_the_default_whatever_its_place() -> None:
    own = cases_of(0, captured_time_us=7.0)
    other = cases_of(0, target=1, suffix="-mine")
    assert Plan({each.key: each for each in (own, other)}).captured_time_us() == {"Mul": 7.0}
    assert Plan({each.key: each for each in (other, own)}).captured_time_us() == {"Mul": 7.0}


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("RmsNrm", " (did you mean RmsNorm?)"),
        ("not Mul and (rmsnrm or softmx)", " (did you mean RmsNorm?) (did you mean SoftmaxV2?)"),
        ("Mul", ""),
        ("zzzzzz", ""),
    ],
)
def test_the_words_of_k_that_are_in_no_name_are_told_what_is_near(expression: str, hint: str) -> None:
    assert meant(expression, ["Mul", "RmsNorm", "SoftmaxV2"]) == hint


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
    collector: Any = SimpleNamespace(known_replays=lambda: {"RmsNorm": test_norm.test_rms_norm})
    requested = RequestedRows(config, collector)
    assert {name for name in ("RmsNorm", "Unknown") if requested(name, f"{name}-1x2")} == asked


@pytest.mark.parametrize(("targets", "named"), [(4, [0, 1, 2, 3]), (5, [1])])
def test_many_implementations_without_a_row_are_not_named_one_by_one(targets: int, named: list[int]) -> None:
    table = cases_of(1, target=1)
    table.cases = {0: "Mul-1"}
    assert Plan({"Mul": table}).named_targets(targets) == named


def test_many_databases_of_one_folder_are_named_by_it() -> None:
    paths = [Path("/db/implementations", str(number)) for number in range(9)]
    assert crowded_folders([Path("/db"), *paths]) == {Path("/db/implementations"): 9}
    assert not crowded_folders(paths[:8])
