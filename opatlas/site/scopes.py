"""The scopes of a capture that a SuperKernel may fuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opatlas.superkernel.advice import advise
from opatlas.superkernel.analysis import analyse
from opatlas.superkernel.report import analysis_as_json
from opatlas.superkernel.timeline import read_timeline


def scopes_page(capture: Path) -> dict[str, Any]:
    """Returns what `opatlas superkernel CAPTURE --json` writes. Raises OpAtlasError if the capture cannot be read."""
    analysis = analyse(read_timeline(capture))
    return analysis_as_json(analysis, advise(analysis))
