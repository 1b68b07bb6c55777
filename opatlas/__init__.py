"""OpAtlas: a versioned, traceable database of measured operator durations.

`opatlas.open("NVIDIA_H200")` returns an `OpenDatabase`, which tells durations: `help(opatlas.OpenDatabase)`. The names
in `opatlas.__all__` are the public API; docs/query.md shows them. Each is imported when it is first used, so that
`import opatlas` takes no time and needs neither torch nor pytest.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from opatlas.installation import CHECKOUT as _CHECKOUT

_MODULES = {
    name: module
    for module, names in {
        "ask.query.database": "OpenDatabase open",
        "ask.query.model_cost": "ModelCost PartCost",
        "ask.query.next_rows": "NextRow NextRows",
        "ask.query.question": "How NoAnswer QueryResult",
        "data.database": "Database",
        "errors": "OpAtlasError",
        "outer.suites.override": "use",
        "row.errors": "Unsupported",
        "row.location": "default_path list_databases",
        "row.table": "Row RowTable",
        "row.versions": "Versions",
        "run.formula": "per_element per_row pointwise",
        "run.implementation": "Prepared implements",
        "run.registry": "replays",
        "theory.model_step": "Step",
    }.items()
    for name in names.split()
}
__all__ = sorted(_MODULES)

if TYPE_CHECKING:
    from opatlas.ask.query.database import (
        OpenDatabase as OpenDatabase,
        open as open,  # noqa: A004
    )
    from opatlas.ask.query.model_cost import ModelCost as ModelCost, PartCost as PartCost
    from opatlas.ask.query.next_rows import NextRow as NextRow, NextRows as NextRows
    from opatlas.ask.query.question import How as How, NoAnswer as NoAnswer, QueryResult as QueryResult
    from opatlas.data.database import Database as Database
    from opatlas.errors import OpAtlasError as OpAtlasError
    from opatlas.outer.suites.override import use as use
    from opatlas.row.errors import Unsupported as Unsupported
    from opatlas.row.location import default_path as default_path, list_databases as list_databases
    from opatlas.row.table import Row as Row, RowTable as RowTable
    from opatlas.row.versions import Versions as Versions
    from opatlas.run.formula import per_element as per_element, per_row as per_row, pointwise as pointwise
    from opatlas.run.implementation import Prepared as Prepared, implements as implements
    from opatlas.run.registry import replays as replays
    from opatlas.theory.model_step import Step as Step

if _CHECKOUT is not None:
    # A checkout has bench/, plugins/ and shapes/ beside this package, and a wheel has them inside it.
    # Either way they are opatlas.bench, opatlas.plugins and opatlas.shapes.
    __path__.append(str(_CHECKOUT))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_import_module(f"{__name__}.{_MODULES[name]}"), name)
