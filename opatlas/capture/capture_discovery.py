"""The kinds of captures, and how their files are found: kernel_details*.csv of torch_npu.profiler, op_summary*.csv of
msprof, databases of both, traces of torch.profiler.

Files are identified by their bytes, so that a capture counts once under any name. msprof writes folders
PROF_{number}_{time}_{hash}/mindstudio_profiler_output/op_summary_*.csv.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from opatlas.capture.capture_reader import read_capture
from opatlas.capture.launches import CaptureReader
from opatlas.capture.nsys import nsys_launches, read_nsys
from opatlas.capture.nvbench import read_nvbench
from opatlas.capture.single_launches import Launches, read_launches
from opatlas.capture.torch_launches import read_torch_trace, torch_launches
from opatlas.data.header import expect_columns, read_header
from opatlas.data.manifest import IngestManifest
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import files_below
from opatlas.grouping import grouped

_BLOCK_BYTES = 1 << 20
_NO_CSV = "named like captures, but not CSV files: unpack them, or save them as CSV"
#: `op_summary_20240102030405.csv`, `op_summary_slice_0_20240102030405.csv`, or a renamed file.
_SUMMARY = re.compile(r"(?P<what>.*op_summary.*?)(?:_(?P<exported>\d{14,}))?\.csv", re.IGNORECASE)
_ALIKE = re.compile(r".*(kernel_details|op_summary).*", re.IGNORECASE)
_JSON = re.compile(r".*\.json(\.gz)?", re.IGNORECASE)
#: A profile may have both: that of msprof lacks the steps.
_OF_FRAMEWORK = re.compile(r"ascend_(pytorch|mindspore)_profiler.*\.db", re.IGNORECASE)
_OF_TORCH_NPU = ("ASCEND_PROFILER_OUTPUT", "FRAMEWORK")
_ANALYSE = "Run `torch_npu.profiler.profiler.analyse({!r}, export_type='text')`, where CANN is installed"
_OUTPUT = "mindstudio_profiler_output"


@dataclass(frozen=True)
class FoundCaptures:
    """What profilers left at a path.

    Attributes:
        files: the capture files, sorted.
        not_read: files that are named like captures and are not among `files`, by reason.
        unparsed: a sentence for each result of a profiler that no capture is of, with the remedy.
    """

    files: list[Path]
    not_read: list[tuple[str, list[Path]]] = field(default_factory=list)
    unparsed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CaptureKind:
    """A kind of capture. A further kind is a file with a `CaptureReader`, and an entry in `KINDS`.

    Attributes:
        names: a pattern of the names of its files, in any case.
        read: reads a file.
        launches: reads the launches of a file one by one.
        last: returns those files that count, where later ones replace earlier ones; sorted.
    """

    name: str
    names: re.Pattern[str]
    read: CaptureReader = read_capture
    launches: Callable[[Path], Launches] = read_launches
    last: Callable[[Iterable[Path]], list[Path]] = sorted


def kind_of_capture(file: Path) -> CaptureKind:
    """Returns the kind of a capture by its name; for a name of none a trace if it is JSON, else the first kind."""
    named = (kind for kind in KINDS if kind.names.fullmatch(file.name))
    return next(named, TRACE if _JSON.fullmatch(file.name) else KINDS[0])


def find_captures(path: Path) -> FoundCaptures:
    """Finds the captures at a path: the file itself, or those of the folder and the folders below it.

    A folder's captures are those of the first kind that it has.

    Raises:
        OpAtlasError: the path does not exist, a folder below it cannot be read, or there is no capture.
    """
    try:
        path.stat()
    except OSError as error:
        raise TableError(path, f"cannot be read ({error.strerror})", "Check the path and its permissions") from None
    if not path.is_dir():
        return FoundCaptures([path])
    patterns = (_ALIKE, *(kind.names for kind in KINDS))
    named = sorted(files_below(path, lambda name: any(pattern.fullmatch(name) for pattern in patterns)))
    found = {kind: [file for file in named if kind.names.fullmatch(file.name)] for kind in KINDS}
    first = next((kind for kind, of_kind in found.items() if of_kind), KINDS[0])
    files = first.last(found[first])
    if first is not DATABASE:
        with_csv = set(map(_profile, files))
        files = sorted([*files, *(file for file in DATABASE.last(found[DATABASE]) if _profile(file) not in with_csv)])
    not_read = [
        (
            f"{kind.name} files of earlier exports" if kind is first else f"{kind.name} files beside {first.name}",
            [file for file in of_kind if file not in files],
        )
        for kind, of_kind in found.items()
    ]
    no_csv = [file for file in named if _ALIKE.fullmatch(file.name) and file.suffix.lower() != ".csv"]
    not_read.append((_NO_CSV, no_csv))
    not_read = [(why, others) for why, others in not_read if others]
    unparsed = _unparsed(path, files)
    if files:
        return FoundCaptures(files, not_read, unparsed)
    problems = [*unparsed, *(f"{what}: {other}" for what, others in not_read for other in others)]
    if _is_database(path):
        remedy = (
            "Name the folder that the profiler wrote; `opatlas show` and `opatlas query` read a database, and "
            "`opatlas combine` joins two"
        )
        raise TableError(path, "a database of OpAtlas, and no capture", remedy)
    kinds = ", ".join(kind.name for kind in KINDS)
    problem = f"no capture ({kinds}) in this folder or below it"
    nothing = TableError(path, problem, "Name the folder that the profiler wrote, or one file")
    raise OpAtlasError("\n".join([str(nothing), *problems]))


def _unparsed(path: Path, captures: Sequence[Path]) -> list[str]:
    """Returns a sentence for each result of a profiler at or below a folder that no capture is of.

    These are results of torch_npu.profiler that nobody analysed, and msprof profiles without an op_summary file.
    torch_npu.profiler keeps such profiles beside its kernel_details.
    """
    results = {each for each in (path, *path.rglob("*/")) if _is_result_of_torch_npu(each)}
    alone = {result for result in results if not any(result in file.parents for file in captures)}
    problems = [str(TableError(each, "only raw data", _ANALYSE.format(str(each)))) for each in sorted(alone)]
    of_torch_npu = [file for file in captures if kind_of_capture(file) is not SUMMARY]
    return [*problems, *unparsed_profiles(path, captures, results.union(*(file.parents for file in of_torch_npu)))]


def _is_result_of_torch_npu(folder: Path) -> bool:
    return folder.is_dir() and (
        folder.name.endswith("_ascend_pt") or any((folder / name).is_dir() for name in _OF_TORCH_NPU)
    )


def _is_database(path: Path) -> bool:
    """Returns whether a CSV in a folder has the columns of a database."""
    for file in sorted(path.glob("[!.]*.csv")):
        with suppress(TableError):
            expect_columns(file, read_header(file).names)
            return True
    return False


@dataclass
class CaptureInput:
    """A capture file before it is read.

    Attributes:
        changed_ns: time of the last change, in nanoseconds since the epoch.
        sha256: digest of the bytes, in hexadecimal digits.
        same_bytes: further files with the same bytes.
    """

    path: Path
    size_bytes: int
    changed_ns: int
    sha256: str
    same_bytes: list[Path] = field(default_factory=list)


def distinct_captures(paths: Iterable[Path], problems: list[str]) -> list[CaptureInput]:
    """Returns the files with different bytes, in their order.

    Args:
        problems: receives a sentence for each file that cannot be read.
    """
    found: dict[str, CaptureInput] = {}
    for path in paths:
        try:
            # Taken before reading, so that a later change is noticed.
            state = path.stat()
            sha256 = _digest(path) if stat.S_ISREG(state.st_mode) else None
        except OSError as error:
            wrong = TableError(path, f"cannot be read ({error.strerror})", "Check the path and its permissions")
            problems.append(str(wrong))
            continue
        if sha256 is None:
            # A capture is read twice, which a pipe does not allow.
            problems.append(str(TableError(path, "not a regular file", "Save the capture as a file")))
            continue
        if sha256 in found:
            found[sha256].same_bytes.append(path)
        else:
            found[sha256] = CaptureInput(path, state.st_size, state.st_mtime_ns, sha256)
    return list(found.values())


def check_unchanged(given: CaptureInput) -> None:
    """Checks that a file has not changed while it was read. Raises OpAtlasError."""
    try:
        state = given.path.stat()
    except OSError as error:
        raise TableError(given.path, f"was removed while it was read ({error.strerror})", "Run again") from None
    if (state.st_size, state.st_mtime_ns) != (given.size_bytes, given.changed_ns):
        remedy = "Wait until the profiler has finished, then run again"
        raise TableError(given.path, "changed while it was read, so nothing was ingested", remedy)


def earlier_ingests(
    files: Sequence[CaptureInput], earlier: Sequence[IngestManifest], *, replace: bool
) -> Mapping[str, IngestManifest]:
    """Returns the earlier ingests of files that need not be ingested again, by sha256. With `replace` the result has
    all files or no file: all files, if the last ingest replaced with exactly these files or is the only ingest.
    """
    if not replace:
        return {file.sha256: manifest for manifest in earlier for file in manifest.files}
    if earlier and (earlier[-1].replace or len(earlier) == 1):
        last = earlier[-1]
        if {file.sha256 for file in last.files} == {given.sha256 for given in files}:
            return {file.sha256: last for file in last.files}
    return {}


def _digest(path: Path) -> str:
    """Returns the SHA-256 digest of a file. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def profile_folders(folder: Path) -> list[Path]:
    """Returns the PROF_* folders below a folder, or the folder itself if it is one; oldest first by name."""
    if folder.name.startswith("PROF_"):
        return [folder]
    return sorted(path for path in folder.rglob("PROF_*") if path.is_dir())


def unparsed_profiles(folder: Path, files: Sequence[Path], raw_data_of: Collection[Path] = ()) -> list[str]:
    """Returns a sentence for each msprof profile at or below a folder without one of the op_summary files.

    Args:
        raw_data_of: folders whose profiles are left out.
    """
    profiles = profile_folders(folder)
    # The folder itself may be a profile under another name.
    if not profiles and (folder / "host").is_dir():
        profiles = [folder]
    remedy = "Run `msprof --export=on --output={}`, where CANN is installed"
    return [
        str(TableError(profile, "a profile without op_summary*.csv", remedy.format(shlex.quote(str(profile)))))
        for profile in profiles
        if profile.parent not in raw_data_of and not any(profile in file.parents for file in files)
    ]


def op_summaries(folder: Path) -> list[Path]:
    """Returns the op_summary files of the last export below a folder, all slices, each once. Raises OpAtlasError."""
    return _last_exports(files_below(folder, lambda name: _SUMMARY.fullmatch(name) is not None))


def _last_exports(files: Iterable[Path]) -> list[Path]:
    """Returns the op_summary files of the last exports among some files, sorted.

    Each export of msprof adds files beside those of earlier exports. Of files that differ only in the time of their
    export, the last counts, as in msprof itself. In a PROF_* folder with the output folder of current versions, files
    of older versions in other folders (device_0/summary) are copies and do not count.
    """
    exports: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    found = [(path, match) for path in sorted(files) if (match := _SUMMARY.fullmatch(path.name))]
    in_output = {_profile_of(path) for path, _ in found if path.parent.name == _OUTPUT}
    for path, match in found:
        if path.parent.name == _OUTPUT or _profile_of(path) not in in_output:
            exports[path.parent, match["what"]][match["exported"] or ""] = path
    return sorted(by_time[max(by_time)] for by_time in exports.values())


def _last_databases(files: Iterable[Path]) -> list[Path]:
    """Returns the databases that count among some files, sorted: of each profile those of the framework, of each rank
    one; else the last export of msprof."""
    last: list[Path] = []
    for found in grouped((_profile(path), path) for path in sorted(files)).values():
        last += [path for path in found if _OF_FRAMEWORK.fullmatch(path.name)] or found[-1:]
    return sorted(last)


def _profile(path: Path) -> Path:
    """Returns the folder of the profile that a capture is of."""
    results = [folder for folder in path.parents if _is_result_of_torch_npu(folder)]
    return results[0] if results else _profile_of(path) or path.parent


def _profile_of(path: Path) -> Path | None:
    return next((folder for folder in path.parents if folder.name.startswith("PROF_")), None)


DETAILS = CaptureKind("kernel_details", re.compile(r".*kernel_details.*\.csv", re.IGNORECASE))
SUMMARY = CaptureKind("op_summary", _SUMMARY, last=_last_exports)
DATABASE = CaptureKind(
    "database", re.compile(rf"({_OF_FRAMEWORK.pattern}|msprof_\d+\.db)", re.IGNORECASE), last=_last_databases
)
#: SGLang also merges the traces of all ranks into one, and torch_npu.profiler has a trace without shapes.
TRACE = CaptureKind(
    "trace", re.compile(r"(?!merged-).*\.trace\.json(\.gz)?", re.IGNORECASE), read_torch_trace, launches=torch_launches
)
NSYS = CaptureKind("nsys", re.compile(r".*\.sqlite", re.IGNORECASE), read_nsys, launches=nsys_launches)
NVBENCH = CaptureKind("nvbench", re.compile(r".*nvbench.*\.json", re.IGNORECASE), read_nvbench)
#: The kinds of captures; of a folder the first one counts, and databases of profiles without a CSV.
KINDS = (DETAILS, SUMMARY, DATABASE, TRACE, NSYS, NVBENCH)
