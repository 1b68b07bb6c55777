"""Shared code of the tests of theory rows."""

from __future__ import annotations

import textwrap
from pathlib import Path

from opatlas.shapes.strategies import sample_rows

from opatlas.theory.catalog import Catalog, read_catalog
from opatlas.theory.models import ModelFacts
from opatlas.theory.plan import Request
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB


def request(*models: ModelFacts, rows: int = 0, seed: int = 0, gb: float = 32) -> Request:
    """A run for some models, undivided."""
    return Request(Targets(models, tp_sizes=(1,), ep_sizes=(1,)), rows, seed, int(gb * GB), sample_rows)


def catalog_of(folder: Path, text: str) -> Catalog:
    """A catalog written as in shapes/catalog.yaml, without its indentation."""
    path = folder / "catalog.yaml"
    path.write_text(textwrap.dedent(text))
    return read_catalog(path)
