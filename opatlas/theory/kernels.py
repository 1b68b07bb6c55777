"""Which kernel types of a database get theory rows: those of the catalog, and those that are like one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opatlas.model.signature import normalized_kernel_type
from opatlas.store.database import Database
from opatlas.store.op_mapping import read_mapping
from opatlas.theory.catalog import Catalog, Kernel

#: Profilers also name a kernel after the function that launches it.
_TWIN = "aicore"
#: The pattern of a kernel type of which a mapping says no more than that it works element by element.
_ELEMENTWISE = "Add"


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
    for name, base in _mapped(database.path):
        if name not in found and base in catalog.kernels:
            found[name] = Kernel(name, catalog.kernels[base].patterns)
    return found


def _mapped(folder: Path) -> Iterator[tuple[str, str]]:
    """Kernel types that a mapping of operators names, each with the one whose patterns it has.

    Entries without a kernel of their own (composites, what costs nothing) and collectives are left out, and so are
    AiCore twins, of which few versions of CANN have any.
    """
    mapping = read_mapping(folder)
    for operator in mapping.operators if mapping is not None else ():
        if not operator.kernel_type or operator.is_communication or operator.is_free or operator.is_composite:
            continue
        for name in operator.alternates:
            if not name.lower().endswith(_TWIN):
                yield normalized_kernel_type(name), operator.kernel_type
        if operator.fields.get("query_mode") == "elementwise":
            yield operator.kernel_type, _ELEMENTWISE
