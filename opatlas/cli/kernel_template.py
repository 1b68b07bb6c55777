"""Writes a file for each kernel type that a user wants to implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from opatlas.ask.kernel_rows import sample_rows
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.text import suggest


def write_templates(
    folder: Path, kernel_types: Sequence[str], others: Mapping[Path, str], database: Path | None
) -> list[Path]:
    """Writes a file for each kernel type and each operator into a folder, and returns the files.

    Args:
        others: further files, and their texts.
        database: has the sample rows; None: the first default database that has one.

    Raises:
        OpAtlasError: a kernel type has no replay or no row, or a file exists: nothing is written.
    """
    replays = replays_of_bench()
    # A file whose name begins with an underscore is no kernel's; the mark has the name of the kernel type.
    paths = {kernel_type: folder / f"{kernel_type.lstrip('_')}.py" for kernel_type in kernel_types}
    for kernel_type in kernel_types:
        if kernel_type not in replays:
            raise OpAtlasError(
                f"--ops {kernel_type}: there is no such kernel type with a replay{suggest(kernel_type, replays)}"
            )
    if there := [path for path in (*paths.values(), *others) if path.exists()]:
        raise OpAtlasError(f"{there[0]} exists: nothing is written; remove it, or name another folder")
    rows = sample_rows(kernel_types, database)
    # Imported here because it imports torch.
    from opatlas.run.kernel_template import template

    texts = {path: template(folder, kernel_type, rows[kernel_type]) for kernel_type, path in paths.items()}
    texts |= others
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return list(texts)
