"""The code that measures, by which a manifest tells one version of OpAtlas from another."""

from __future__ import annotations

from pathlib import Path

from database.manifest import code_digest

CODE = tuple(Path(__file__).parent.parent / name for name in ("bench", "database", "plugins"))


def present_code() -> str:
    """Digest of the code of this process."""
    return code_digest(CODE)
