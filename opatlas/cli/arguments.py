"""Arguments that several commands have, and output as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from opatlas.model.named_databases import named_folder
from opatlas.store.csv_files import write_text

#: The name of the terminal as a file.
_STDOUT = "-"


def add_database(parser: argparse.ArgumentParser) -> None:
    """Adds DB, the folder of a database."""
    parser.add_argument(
        "database",
        type=named_folder,
        metavar="DB",
        help="folder of {KernelType}.csv files, or a device such as NVIDIA_H200",
    )


def add_rows(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds ROW, names of rows; `default` says what none stands for."""
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help="a kernel type, or a row as pytest names it: its id, the digest at the end of the id, or a part of the id "
        f"({default})",
    )


def add_product_dtype(parser: argparse.ArgumentParser) -> None:
    """Adds --dtype, the dtype of a model's products."""
    parser.add_argument(
        "--dtype",
        default="BF16",
        metavar="DTYPE",
        help="BF16 or FLOAT16; INT8 or FLOAT8_E4M3FN for quantized products (default: %(default)s)",
    )


def write_json(path: Path, content: object) -> None:
    """Writes a file of indented JSON. Raises OpAtlasError if it cannot be written."""
    write_text(path, _json_text(content))


def write_or_print_json(path: Path | None, content: object) -> bool:
    """Writes JSON to a file, or to the terminal for the file "-"; nothing for None.

    Returns:
        Whether the terminal got it, which then gets nothing else.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    if path is not None and str(path) == _STDOUT:
        sys.stdout.write(_json_text(content))
        return True
    if path is not None:
        write_json(path, content)
    return False


def _json_text(content: object) -> str:
    return msgspec.json.format(msgspec.json.encode(content)).decode() + "\n"
