"""Which kernel types of a database get theory rows: those of the catalog, and those that are like one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from database.errors import OpAtlasError
from database.safe_paths import read_own
from database.signature import normalized_kernel_type
from database.store import Database
from database.yaml_file import NotYaml, parse_yaml
from shapes.catalog import Catalog, Kernel

#: Profilers also name a kernel after the function that launches it.
_TWIN = "aicore"
#: The pattern of a kernel type of which a mapping says no more than that it works element by element.
_ELEMENTWISE = "Add"
MAPPING = "op_mapping.yaml"
_LARGEST_BYTES = 16 << 20


def kernels_of(database: Database, catalog: Catalog) -> dict[str, Kernel]:
    """The catalog's, twins that the database has rows of, and alternates that its mapping names.

    Raises:
        OpAtlasError: a mapping that cannot be read.
    """
    found = dict(catalog.kernels)
    for name in database.kernel_types():
        base = name[: -len(_TWIN)]
        if name.lower().endswith(_TWIN) and base in catalog.kernels:
            found.setdefault(name, Kernel(name, catalog.kernels[base].patterns))
    for name, base in _mapped(database.path / MAPPING):
        if name not in found and base in catalog.kernels:
            found[name] = Kernel(name, catalog.kernels[base].patterns)
    return found


def _mapped(path: Path) -> Iterator[tuple[str, str]]:
    """Kernel types that a mapping of operators names, each with the one whose patterns it has.

    Entries without a kernel of their own (composites, what costs nothing) and collectives are left out.
    """
    for entry in _entries(path):
        kernel_type = entry.get("kernel_type")
        if not isinstance(kernel_type, str) or entry.get("category") == "communication":
            continue
        if entry.get("zero_cost") or entry.get("composite"):
            continue
        alternates = entry.get("alternate_kernel_types")
        for name in alternates if isinstance(alternates, list) else ():
            yield normalized_kernel_type(str(name)), kernel_type
        if entry.get("query_mode") == "elementwise":
            yield kernel_type, _ELEMENTWISE


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        content = parse_yaml(read_own(path, _LARGEST_BYTES))
    except FileNotFoundError:
        return []
    except (OSError, NotYaml) as error:
        raise OpAtlasError(
            f"{path} cannot be read ({' '.join(str(error).split())}): repair it, or move it out of the database"
        ) from None
    mappings = content.get("operator_mappings") if isinstance(content, dict) else None
    if not isinstance(mappings, dict):
        raise OpAtlasError(f"{path} has no mapping 'operator_mappings': repair it, or move it out of the database")
    return [entry for entry in mappings.values() if isinstance(entry, dict)]
