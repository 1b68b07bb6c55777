"""A target: a parser, inputs that it takes, and the rules that must hold for any other input."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from opatlas.cli.app import run_tool
from opatlas.cli.main import main
from opatlas.data.op_mapping import MAPPING
from opatlas.errors import OpAtlasError


@dataclass(frozen=True)
class Target:
    """A parser to be fuzzed.

    Attributes:
        name: on the command line.
        about: the rules that hold for every input, in a line.
        seeds: gives inputs that the parser takes.
        check: reads an input, and raises if something does not hold. An OpAtlasError is the parser's answer to bad
            input, so `check` catches it. The folder is empty, and `check` may write there.
        words: written into inputs by mutations, in addition to the words that are bad for every parser.
        limit_s: an input that takes longer hangs. It takes milliseconds, on a loaded machine tenths of seconds.
    """

    name: str
    about: str
    seeds: Callable[[], Iterable[bytes]]
    check: Callable[[bytes, Path], None]
    words: tuple[bytes, ...] = ()
    limit_s: float = 30.0


def packed(seeds: Callable[[], Iterable[bytes]]) -> Callable[[], Iterator[bytes]]:
    """Returns seeds, also packed by gzip, and stored in its format, so that mutations reach the text."""

    def all_forms() -> Iterator[bytes]:
        for data in seeds():
            yield data
            yield gzip.compress(data, mtime=0)
            yield gzip.compress(data, 0, mtime=0)

    return all_forms


class Broken(AssertionError):
    """Something that must hold for every input does not hold for this one."""


def expect(holds: object, problem: str) -> None:
    """Raises Broken with the problem, unless it holds."""
    if not holds:
        raise Broken(problem)


@contextlib.contextmanager
def refusing(place: Path | str) -> Iterator[None]:
    """Lets an OpAtlasError pass that names its place. Every other exception is a finding."""
    try:
        yield
    except OpAtlasError as error:
        expect(str(place) in str(error), f"an error that does not name {place}: {error}")


def command(*arguments: object) -> tuple[int, str, str]:
    """Runs `opatlas ...`, or `python -m opatlas...`, in this process; returns exit status, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        program, *rest = [str(argument) for argument in arguments]
        if program.startswith("opatlas."):
            status = run_tool(getattr(import_module(program), program.rpartition(".")[2]), program, rest)
        else:
            status = main([program, *rest])
    expect(status in (0, 1, 2), f"exit status {status}")
    expect(status == 0 or err.getvalue(), f"exit status {status} without a word")
    return status, out.getvalue(), err.getvalue()


def files_of(folder: Path) -> dict[str, bytes]:
    """Each file below a folder, hidden ones too, with its bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def tables_of(folder: Path) -> dict[str, bytes]:
    """Each CSV of a database with its bytes; expects that no writer has left a temporary file.

    The mapping of operators, which an ingest writes, is not a table.
    """
    names = {path.name: path for path in folder.iterdir() if path.is_file() and path.name != MAPPING}
    expect(all(name.endswith(".csv") for name in names), f"files besides the tables: {sorted(names)}")
    return {name: path.read_bytes() for name, path in names.items()}


def emptied(folder: Path) -> None:
    """Removes the files of the last input from a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
