"""Arguments that several commands have, and output as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from opatlas.model.named_databases import named_folder
from opatlas.store.csv_files import write_text
from opatlas.text import parse_whole, show
from opatlas.theory.model_calls import Phase

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


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --json; `what` says what it writes."""
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help=f"also write {what} as JSON; - for the terminal, and nothing else there (default: not written)",
    )


_STEP_SIZES = ("tp", "ep", "batch", "context")


@dataclass(frozen=True)
class StepArgument:
    """A step of a model as --step names it.

    Attributes:
        text: what was written.
        model: a model's name, or its config.json or the folder of that.
        settings: `tp`, `ep`, `batch`, `context`, `phase` and `dtype`, as far as they were written.
    """

    text: str
    model: str
    settings: dict[str, Any]


def read_step_argument(text: str) -> StepArgument:
    """Reads `MODEL,batch=64,context=4096,tp=8,phase=prefill`."""
    model, *settings = [word.strip() for word in text.split(",")]
    found: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name in _STEP_SIZES and parse_whole(value):
            found[name] = parse_whole(value)
        elif (name == "phase" and value in get_args(Phase)) or (name == "dtype" and value):
            found[name] = value
        else:
            raise argparse.ArgumentTypeError(
                f"{setting!r}: give tp=N, ep=N, batch=N, context=N, phase=decode, phase=prefill or dtype=NAME"
            )
    return StepArgument(text, model, found)


def add_product_dtype(parser: argparse.ArgumentParser) -> None:
    """Adds --dtype, the dtype of a model's products."""
    parser.add_argument(
        "--dtype",
        default="",
        metavar="DTYPE",
        help="BF16 or FLOAT16; INT8 or FLOAT8_E4M3FN for quantized products (default: that of the model's weights)",
    )


def is_terminal(path: Path | None) -> bool:
    """Returns whether --json names the terminal, which then gets nothing else."""
    return path is not None and str(path) == _STDOUT


def write_or_print_json(path: Path | None, content: object) -> bool:
    """Writes JSON to a file, or to the terminal for the file "-"; nothing for None.

    Returns:
        Whether the terminal got it, which then gets nothing else.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    if is_terminal(path):
        sys.stdout.write(_json_text(content))
        return True
    if path is not None:
        write_text(path, _json_text(content))
    return False


def teller(path: Path | None) -> Callable[[str], None]:
    """Returns what prints a command's text: nothing where --json has the terminal."""
    return (lambda text: None) if is_terminal(path) else show


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON")


def _json_text(content: object) -> str:
    return msgspec.json.format(msgspec.json.encode(content, enc_hook=_plain)).decode() + "\n"
