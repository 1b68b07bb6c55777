"""Files of /proc and /sys below a folder that takes the place of /."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, texts: Mapping[str, str]) -> Path:
    """Writes files by their path below `root`; gives `root`."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
