"""An option is read, reaches the measuring, and is in the manifest, without a list of options."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields, replace
from pathlib import Path

from opatlas.plugins.choice import Shard
from opatlas.plugins.session_context import options_of
from opatlas.plugins.settings import Settings, kernels
from opatlas.plugins.target import SessionTarget

from opatlas.data.origin import MeasurementOrigin
from opatlas.options import Scope
from opatlas.row.status import UpdateMode
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation import Implementation
from opatlas.run.instruments.instrument import MeasureSettings

#: Fields of Settings that the manifest has under another name.
RENAMED = {"mode": "update_mode", "source": "communication"}
#: Fields of Settings that are not among the options of a manifest, and why.
NOT_IN_MANIFEST = {
    "devices": "they have a place of their own in it, with their facts",
    "measure": "its fields are in it",
    "group_options": "its items are in it",
    "collect_only": "writes no manifest",
    "named": "about the choice of the folder",
    "notes": "the same",
    "targets": "each has a manifest of its own, with its implementation; device and packages are in it",
    "read_only": "writes no manifest",
    "strict": "bears on verdicts, and on no status",
}


def settings(**more: object) -> Settings:
    values: dict[str, object] = {
        "targets": (SessionTarget(Implementation("torch"), Path("database"), MeasurementOrigin()),),
        "devices": (DeviceSpec("cpu"),),
        "mode": UpdateMode.MISSING_ONLY,
        "prune": True,
        "ops": frozenset({"Mul", "Add"}),
        "shard": Shard(1, 2),
        "retry_failed": True,
        "prof_path": Path("/profiles/PROF_1"),
        "measure": MeasureSettings(repeat_count=7),
        "case_timeout_s": 9.0,
        "msprof_rows": 11,
        "in_process": True,
        "collect_only": False,
    }
    return Settings(**{**values, **more})  # type: ignore[arg-type]


def test_every_setting_is_in_the_manifest_or_known_not_to_be() -> None:
    stored = options_of(settings())
    assert {field.name for field in fields(MeasureSettings)} <= stored.keys()
    missing = {field.name for field in fields(Settings) if RENAMED.get(field.name, field.name) not in stored}
    assert missing == NOT_IN_MANIFEST.keys()


def test_the_manifest_has_values_that_another_program_reads() -> None:
    source = replace(kernels(Namespace()), scope=Scope.COLLECTIVES, notes=["grid 2"])
    stored = options_of(settings(source=source, group_options={"ep_size": 8}))
    assert stored == {
        "implementation": None,
        "rows_from": None,
        "update_mode": "missing-only",
        "prune": True,
        "ops": ["Add", "Mul"],
        "shard": "1/2",
        "where": None,
        "retry_failed": True,
        "mixed": False,
        "versions": {},
        "repeat_count": 7,
        "cache": "cold",
        "time_limit_s": 5.0,
        "threads": None,
        "instrument": None,
        "aic_metrics": "PipeUtilization",
        "msprof_rows": 11,
        "case_timeout_s": 9.0,
        "in_process": True,
        "ray": None,
        "prof_path": "PROF_1",
        "communication": ["grid 2"],
        "models": None,
        "ep_size": 8,
    }
