"""The Runtime columns of attention rows, as far as a capture tells.

A capture holds the shapes of the sequence lengths and of the block table, and not their values,
which are what an attention kernel's duration depends on. The value columns stay empty here;
`fill-runtime` fills them from records dumped at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas.capture.cases import CasesOfType, ProfiledCase
from opatlas.model.schema import INPUT_SHAPES, RUNTIME_PREFIX
from opatlas.model.slots import split_cell
from opatlas.text import printable

ATTENTION_TYPES = frozenset({"FusedInferAttentionScore"})

SOURCE_PROFILE = RUNTIME_PREFIX + "source_profile"
COMPLETENESS = RUNTIME_PREFIX + "metadata_completeness"

#: The input slots (of 31) whose shapes describe the batch.
_SHAPE_SLOTS = {
    RUNTIME_PREFIX + "actual_seq_lengths_shape": 5,
    RUNTIME_PREFIX + "actual_seq_lengths_kv_shape": 6,
    RUNTIME_PREFIX + "block_table_shape": 14,
}
#: A row seen by more ranks than this names the first ones and how many more there are.
_SOURCES_NAMED = 3


@dataclass(frozen=True)
class Bundle:
    """A capture and what lies beside it; None for a file that is not there."""

    capture: Path
    operator_details: Path | None
    trace_view: Path | None

    @classmethod
    def of(cls, capture: Path) -> Bundle:
        return cls(capture, _beside(capture, "operator_details.csv"), _beside(capture, "trace_view.json"))

    def name(self, root: Path) -> str:
        """`rank_0/kernel_details.csv + trace_view.json`, from the last folder of `root` downwards."""
        root = root.resolve()
        above = root.parent if root.is_dir() else root.parent.parent
        capture = self.capture.resolve()
        place = capture.relative_to(above) if capture.is_relative_to(above) else Path(capture.parent.name, capture.name)
        beside = [path.name for path in (self.operator_details, self.trace_view) if path is not None]
        return " + ".join([printable(place.as_posix()), *beside])


def runtime_cells(case: ProfiledCase, root: Path) -> dict[str, str]:
    """The Runtime columns that a capture can fill; none for kernels other than attention.

    Args:
        root: the --profiling-path; files are named from its last folder on, so that no path of the
            machine that ran the ingest gets into the database.
    """
    if case.kernel_type not in ATTENTION_TYPES:
        return {}
    return {SOURCE_PROFILE: source_cell(source_names(case, root)), **shape_cells(case)}


def shape_cells(case: ProfiledCase) -> dict[str, str]:
    """The Runtime columns that the shapes of an attention kernel tell; none for other kernels."""
    if case.kernel_type not in ATTENTION_TYPES:
        return {}
    shapes = split_cell(case.cells[INPUT_SHAPES])
    cells = {column: shapes[slot] if slot < len(shapes) else "" for column, slot in _SHAPE_SLOTS.items()}
    return {**cells, COMPLETENESS: "shapes-only" if any(cells.values()) else "none"}


def source_names(case: ProfiledCase, root: Path) -> list[str]:
    """The captures of an attention kernel with what lies beside them, named from `root` on; none for other kernels."""
    return [Bundle.of(source).name(root) for source in case.sources] if case.kernel_type in ATTENTION_TYPES else []


def bundles(cases: Mapping[str, CasesOfType]) -> list[Bundle]:
    """The captures that attention rows came from, in the order read."""
    captures = dict.fromkeys(
        source for kernel_type in ATTENTION_TYPES for case in cases.get(kernel_type, ()) for source in case.sources
    )
    return [Bundle.of(capture) for capture in captures]


def source_cell(names: Sequence[str]) -> str:
    """The cell that names the captures of a row: the first ones, and how many more there are."""
    more = len(names) - _SOURCES_NAMED
    return "; ".join(names[:_SOURCES_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _beside(capture: Path, name: str) -> Path | None:
    path = capture.with_name(name)
    return path if path.is_file() else None
