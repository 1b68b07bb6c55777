"""The plan of a session, without a session."""

from __future__ import annotations

from pathlib import Path

from opatlas.plugins.cases import Plan
from opatlas.plugins.choice import Choice
from opatlas.plugins.plan import make_plan
from opatlas.plugins.target import SessionTarget

from opatlas.data.origin import MeasurementOrigin
from opatlas.run.implementation import TORCH, Implementation


def plan_of(folder: Path, chosen: Choice) -> Plan:
    """Returns what a session with torch would do with the rows of a folder."""
    return make_plan(SessionTarget(Implementation(TORCH), folder, MeasurementOrigin()), chosen)
