"""The code that measures, by which a manifest tells one version of OpAtlas from another."""

from __future__ import annotations

from pathlib import Path

from opatlas.store.manifest import code_digest

CODE = tuple(Path(__file__).parent.parent / name for name in ("opatlas", "bench", "plugins"))


def present_code() -> str:
    """Digest of the code of this process."""
    return code_digest(CODE)
