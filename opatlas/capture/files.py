"""Which files an ingest is given.

A capture counts once, under whatever name it comes: files are known by their bytes.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opatlas.capture.manifest import IngestManifest
from opatlas.capture.profiles import all_op_summaries, op_summaries, unparsed_profiles
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import files_below

_BLOCK_BYTES = 1 << 20


def find_captures(path: Path) -> list[Path]:
    """The capture files at `path`: the file itself, or those below the folder, sorted.

    These are every `*kernel_details*.csv`; if there is none, the op_summary files, the last export of each. What else
    is named like a capture, `passed_over` tells.

    Raises:
        OpAtlasError: there is no such path, or no permission to look there or anywhere below it (a
            rank left out without a word would be worse), or the folder has no capture.
    """
    try:
        path.stat()
    except FileNotFoundError:
        raise OpAtlasError(f"{path}: no such file or folder: check --profiling-path") from None
    except OSError as error:
        raise OpAtlasError(
            f"{path}: cannot be read ({error.strerror}): check --profiling-path, and who may look there"
        ) from None
    if path.is_dir():
        found = sorted(files_below(path, _is_capture_name)) or op_summaries(path)
        if not found:
            problems = [
                *unparsed(path, ()),
                *(f"{what}: {other}" for what, others in passed_over(path, ()) for other in others),
            ]
            nothing = f"{path}: no CSV file named *kernel_details* or *op_summary* in this folder or below it"
            raise OpAtlasError(
                "\n".join([nothing, *problems])
                if problems
                else f"{nothing}: name the folder that the profiler wrote, or one file"
            )
        return found
    return [path]


def passed_over(path: Path, captures: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """The files below a folder that are named like captures and are not among those found: why, and which.

    Raises:
        OpAtlasError: a folder cannot be read.
    """
    if not path.is_dir():
        return []
    beside = any(_is_capture_name(capture.name) for capture in captures)
    summaries = [found for found in all_op_summaries(path) if found not in captures]
    found = [
        (_BESIDE if beside else _EARLIER, summaries),
        (_NO_CSV, sorted(files_below(path, _is_other_file_of_capture))),
    ]
    return [(why, files) for why, files in found if files]


def unparsed(path: Path, captures: Sequence[Path]) -> list[str]:
    """Returns a sentence for each profile of msprof below a folder that has no op_summary file.

    None where the captures are kernel_details: torch_npu.profiler keeps the profile beside what it made of it.
    """
    if not path.is_dir() or any(_is_capture_name(capture.name) for capture in captures):
        return []
    return unparsed_profiles(path, captures)


_BESIDE = "op_summary files beside kernel_details, usually of the same launches"
_EARLIER = "op_summary files of earlier exports"
_NO_CSV = "named like captures and no CSV files: unpack them, or save them as CSV"


def _is_other_file_of_capture(name: str) -> bool:
    name = name.lower()
    return ("kernel_details" in name or "op_summary" in name) and not name.endswith(".csv")


def _is_capture_name(name: str) -> bool:
    return "kernel_details" in name.lower() and name.lower().endswith(".csv")


@dataclass
class Given:
    """A capture as it is before it is read.

    Attributes:
        changed_ns: when it was last written, in nanoseconds since the epoch.
        sha256: of its bytes, in hexadecimal digits.
        same_bytes: further files that have the same bytes.
    """

    path: Path
    size_bytes: int
    changed_ns: int
    sha256: str
    same_bytes: list[Path] = field(default_factory=list)


def given_files(paths: Iterable[Path], problems: list[str]) -> list[Given]:
    """The files with different bytes, in their order.

    Args:
        problems: gets a sentence for each file that cannot be read.
    """
    found: dict[str, Given] = {}
    for path in paths:
        try:
            # Before the bytes are read, so that one written meanwhile is noticed.
            state = path.stat()
            sha256 = _digest(path) if stat.S_ISREG(state.st_mode) else None
        except OSError as error:
            wrong = TableError(path, f"cannot be read ({error.strerror})", "Check the path and its permissions")
            problems.append(str(wrong))
            continue
        if sha256 is None:
            # A capture is read twice, and a pipe gives its bytes once.
            problems.append(str(TableError(path, "no regular file", "Save the capture as a file")))
            continue
        if sha256 in found:
            found[sha256].same_bytes.append(path)
        else:
            found[sha256] = Given(path, state.st_size, state.st_mtime_ns, sha256)
    return list(found.values())


def expect_unchanged(given: Given) -> None:
    """Sees to it that a file that was read is the one that was given. Raises OpAtlasError."""
    try:
        state = given.path.stat()
    except OSError as error:
        raise OpAtlasError(f"{given.path}: gone while it was read ({error.strerror}): run again") from None
    if (state.st_size, state.st_mtime_ns) != (given.size_bytes, given.changed_ns):
        raise OpAtlasError(
            f"{given.path}: changed while it was read, so nothing was ingested: "
            f"wait until the profiler has written it, then run again"
        )


def already_ingested(
    files: Sequence[Given], earlier: Sequence[IngestManifest], *, replace: bool
) -> Mapping[str, IngestManifest]:
    """The files that would change nothing, by their sha256: the ingest that has each.

    With `replace` these are all of the files if the last ingest replaced with just these, or is the only one; and
    none otherwise.
    """
    if not replace:
        return {file.sha256: manifest for manifest in earlier for file in manifest.files}
    if earlier and (earlier[-1].replace or len(earlier) == 1):
        last = earlier[-1]
        if {file.sha256 for file in last.files} == {given.sha256 for given in files}:
            return {file.sha256: last for file in last.files}
    return {}


def _digest(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
