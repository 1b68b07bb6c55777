"""What tests found out of each kernel type, kept as JSON beside the code: it is told where they cannot run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """By kernel type; nothing where there is no file yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, found: Mapping[str, Any]) -> None:
    """One kernel type a line, in order, so that a change is a line of a diff."""
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in sorted(found.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
