"""Jobs that measure a row with a shipped implementation."""

from __future__ import annotations

from collections.abc import Mapping

from replaying import replay_of

from opatlas.run.implementation_catalog import shipped
from opatlas.run.job import Job

#: The first call may compile the kernel with nvcc.
ROW_S = 600.0


def library_job(name: str, kernel_type: str, cells: Mapping[str, str]) -> Job:
    """The job of a row for an implementation, or for the calls that the replays name ("torch")."""
    module, _, function = replay_of(kernel_type).rpartition(".")
    source = shipped()[name].source(kernel_type) if name in shipped() else None
    return Job(module, "", function, kernel_type, dict(cells), ROW_S, source=source)
