"""An option is read, reaches the measuring, and stands in the manifest: nobody keeps a list of them for it."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from doc_commands import ROOT

from bench.collectives.options import Wanted
from bench.declared_options import Scope
from bench.groups.options import NodeOptions
from bench.job import DeviceSpec, MeasureSettings
from database.merge import UpdateMode
from plugins import options, theory
from plugins.choice import Shard
from plugins.journaling import options_of
from plugins.settings import Settings

#: Fields of Settings that the manifest has under another name.
RENAMED = {"mode": "update_mode", "messages": "communication"}
#: Fields of Settings that are not among the options of a manifest, and why.
NOT_IN_MANIFEST = {
    "database": "the manifest lies there",
    "devices": "they have a place of their own in it, with what they said of themselves",
    "measure": "its fields are in it",
    "of_operators": "its items are in it",
    "wait_s": "bears on nothing that is measured",
    "collect_only": "writes no manifest",
    "file_names": "the names of the CSVs beside it",
    "named": "about the choice of the folder",
    "note": "the same",
    "own_folder": "the same",
    "origin": "its device and packages are in it",
    "read_only": "writes no manifest",
    "strict": "bears on verdicts, and on no status",
}
#: Read by pytest itself.
OF_PYTEST = {"--fail-fast"}
#: Read by their names, which are made of a prefix (bench/groups/options.py).
OF_NODES = tuple(option.dest for option in NodeOptions("--").declared(Scope.ANY))


def settings(**more: object) -> Settings:
    values: dict[str, object] = {
        "database": Path("database"),
        "devices": (DeviceSpec("cpu"),),
        "mode": UpdateMode.MISSING_ONLY,
        "prune": True,
        "ops": frozenset({"Mul", "Add"}),
        "shard": Shard(1, 2),
        "retry_failed": True,
        "prof_path": Path("/profiles/PROF_1"),
        "measure": MeasureSettings(repeat_count=7),
        "case_timeout_s": 9.0,
        "wait_s": 0.0,
        "msprof_rows": 11,
        "in_process": True,
        "collect_only": False,
    }
    return Settings(**{**values, **more})  # type: ignore[arg-type]


def attributes_read(*places: str) -> Iterator[tuple[str, str]]:
    """Attributes that the code of some folders or files reads: the last name of what has it, and its own."""
    for place in places:
        for path in sorted((ROOT / place).rglob("*.py")) or [ROOT / place]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    owner = node.value
                    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                    yield name.lstrip("_"), node.attr


def test_every_option_is_read() -> None:
    read = {name for owner, name in attributes_read("plugins", "bench") if owner in ("option", "options")}
    silent = [
        option.name
        for option in (*options.OPTIONS, *theory.OPTIONS)
        if option.dest not in read and not option.dest.endswith(OF_NODES) and option.name not in OF_PYTEST
    ]
    assert silent == []


@pytest.mark.parametrize("kind", [Settings, MeasureSettings])
def test_every_setting_is_read(kind: type) -> None:
    of_settings = {name for owner, name in attributes_read("plugins", "bench") if owner == "settings"}
    if kind is Settings:
        of_settings |= {name for owner, name in attributes_read("plugins/settings.py") if owner == "self"}
    assert {field.name for field in fields(kind)} <= of_settings


def test_every_setting_is_in_the_manifest_or_known_not_to_be() -> None:
    told = options_of(settings())
    assert {field.name for field in fields(MeasureSettings)} <= told.keys()
    missing = {field.name for field in fields(Settings) if RENAMED.get(field.name, field.name) not in told}
    assert missing == NOT_IN_MANIFEST.keys()


def test_the_manifest_has_values_that_another_program_reads() -> None:
    wanted = Wanted({}, Namespace(), ["grid 2"])
    told = options_of(settings(messages=wanted, of_operators={"ep_size": 8}))
    assert told == {
        "update_mode": "missing-only",
        "prune": True,
        "ops": ["Add", "Mul"],
        "shard": "1/2",
        "status": [],
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
        "max_noise": None,
        "msprof_rows": 11,
        "case_timeout_s": 9.0,
        "in_process": True,
        "prof_path": "PROF_1",
        "communication": ["grid 2"],
        "ep_size": 8,
    }
