"""The manifest of a run: what a Run ID in a CSV leads to. `runs/{run_id}.json` beside the CSVs."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from database.store import Database, write_text

VERSION = 1
#: Packages whose version bears on a duration or on how it is taken.
_PACKAGES = ("opatlas", "torch", "torch_npu", "vllm-ascend", "numpy", "pandas", "pytest", "hypothesis", "transformers")


@dataclass
class Manifest:
    """What a run was.

    Attributes:
        run_id: as in the Run ID column.
        started_at, finished_at: seconds since the epoch; None while it runs, or if it was killed.
        device: the name and facts that the device gave; empty until a row was run.
        other_devices: the same of the other devices of a session that has several.
        options: the options of the session, as given or by default.
        code: digest of the code that measured (`code_digest`).
        host, python, packages: where it ran.
        statuses: rows by what became of them.
    """

    run_id: str
    started_at: float
    options: Mapping[str, object]
    code: str
    device: Mapping[str, object] = field(default_factory=dict)
    other_devices: Sequence[Mapping[str, object]] = ()
    finished_at: float | None = None
    statuses: Mapping[str, int] = field(default_factory=dict)
    host: str = field(default_factory=platform.node)
    system: str = field(default_factory=platform.platform)
    python: str = field(default_factory=platform.python_version)
    packages: Mapping[str, str] = field(default_factory=lambda: installed(_PACKAGES))
    version: int = VERSION

    @staticmethod
    def path(database: Database, run_id: str) -> Path:
        """Where the manifest of a run is."""
        return database.runs_dir / f"{run_id}.json"

    def write(self, database: Database) -> Path:
        """Writes the manifest, replacing what stood there. Raises OpAtlasError."""
        path = self.path(database, self.run_id)
        write_text(path, json.dumps(asdict(self), indent=2, default=str) + "\n")
        return path


def code_digest(directories: Iterable[Path]) -> str:
    """Digest of all Python files under some directories: names and contents."""
    digest = hashlib.sha256()
    for directory in directories:
        for path in sorted(directory.rglob("*.py")):
            digest.update(path.relative_to(directory.parent).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # Absent is a fact too: the manifest simply does not name it.
            continue
    return versions
