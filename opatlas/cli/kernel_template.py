"""Writes a file for each kernel type that a user wants to implement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opatlas.ask.kernel_rows import sample_rows
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.outer.suites.listing import suite_rows
from opatlas.outer.suites.template import operator_file, operator_template
from opatlas.outer.suites.texts import overload_of
from opatlas.row.columns import FUNCTIONAL
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.text import suggest


def suite_operators(suite: str) -> list[str]:
    """Returns the operators of a suite that are no variants of others. Raises OpAtlasError."""
    rows = suite_rows(suite, "cpu")
    return [overload_of(name) for name, own in rows.items() if not any(cells[FUNCTIONAL] for cells in own)]


def write_templates(
    folder: Path, kernel_types: Sequence[str], operators: Sequence[str], database: Path | None
) -> list[Path]:
    """Writes a file for each kernel type and each operator into a folder, and returns the files.

    Args:
        operators: operators of torch ("add.Tensor").
        database: has the sample rows; None: the first default database that has one.

    Raises:
        OpAtlasError: a kernel type has no replay or no row, torch has no such operator, or a file exists: nothing is
            written.
    """
    replays = replays_of_bench()
    # A file whose name begins with an underscore is no kernel's; the mark has the name of the kernel type.
    paths = {kernel_type: folder / f"{kernel_type.lstrip('_')}.py" for kernel_type in kernel_types}
    for kernel_type in kernel_types:
        if kernel_type not in replays:
            raise OpAtlasError(
                f"--ops {kernel_type}: there is no such kernel type with a replay{suggest(kernel_type, replays)}"
            )
    of_operators = {operator_file(folder, operator): operator for operator in operators}
    if there := [path for path in (*paths.values(), *of_operators) if path.exists()]:
        raise OpAtlasError(f"{there[0]} exists: nothing is written; remove it, or name another folder")
    rows = sample_rows(kernel_types, database)
    # Imported here because it imports torch.
    from opatlas.run.kernel_template import template

    texts = {path: template(folder, kernel_type, rows[kernel_type]) for kernel_type, path in paths.items()}
    texts |= {path: operator_template(folder, operator) for path, operator in of_operators.items()}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return list(texts)
