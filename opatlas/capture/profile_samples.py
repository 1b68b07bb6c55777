"""Samples of rows from profiles of other programs: PROF_* folders of msprof.

Launches are grouped by signature, as in an ingest. A row has the samples of its signature. A row that was never
measured may borrow samples from a sibling (opatlas/row/slots.py), or from a product of the MatMul family that
differs only in what is transposed. Facts that a capture does not state (sequence lengths, EP Size) are ignored if only
one row fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opatlas.capture.capture_discovery import distinct_captures, op_summaries, unparsed_profiles
from opatlas.capture.capture_reader import read_capture_header
from opatlas.capture.cases import Aggregate, Case, Cases
from opatlas.capture.launches import SOURCE_PROFILE, LaunchCounts, source_cell
from opatlas.data.csv_files import text_table
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError, TableError, noted
from opatlas.row.columns import BASE, EP_SIZE, EXPERT_PARALLEL
from opatlas.row.record import LaunchedCase, Measurement
from opatlas.row.same_case import canonical_form
from opatlas.row.signature import signature, signatures_of
from opatlas.row.slots import MATMUL_FAMILY, siblings
from opatlas.row.table import RowTable

#: Profiles do not tell whether the cache was flushed between launches.
CACHE_UNKNOWN = "unknown"
MSPROF = "msprof"
_ASSUMPTION = "warm-up and set-up launches of the profiled program count as samples"
_INGEST = "Name the folder that msprof wrote; `opatlas ingest --profiling-path` reads captures of torch_npu.profiler"
_BY_TENSORS = "matched by its tensors: the summary tells no run-time values"


@dataclass(frozen=True)
class Profile:
    """The launches in the op_summary files at a path.

    Attributes:
        root: the absolute path.
        files: the op_summary files that were read.
        same_bytes: files with the bytes of another file; they were not read.
        cases: by kernel type.
        account: the rows by their outcome.
        problems: lines, files and folders that cannot be read, each with the remedy.
    """

    root: Path
    files: tuple[Path, ...]
    same_bytes: tuple[Path, ...]
    cases: Mapping[str, Cases]
    account: LaunchCounts
    problems: tuple[str, ...]


def read_profile(path: Path) -> Profile:
    """Reads an op_summary file, or all op_summary files of the PROF_* folders at or below a folder.

    Raises:
        OpAtlasError: no file can be read.
    """
    files = op_summaries(path) if path.is_dir() else [path]
    problems, summaries = unparsed_profiles(path, files) if path.is_dir() else [], []
    for file in files:
        with noted(problems, TableError):
            if not read_capture_header(file).of_msprof:
                raise TableError(
                    file, "a kernel_details file of torch_npu.profiler, not an op_summary of msprof", _INGEST
                )
            summaries.append(file)
    given = distinct_captures(summaries, problems)
    aggregate = Aggregate(path)
    problems += aggregate.add_files([file.path for file in given])
    if not aggregate.files:
        nothing = TableError(path, "no op_summary*.csv of msprof in this folder or below it", _INGEST)
        raise OpAtlasError("\n".join(problems or [str(nothing)]))
    problems += aggregate.problems
    return Profile(
        root=path.absolute(),
        files=tuple(aggregate.files),
        same_bytes=tuple(copy for file in given for copy in file.same_bytes),
        cases=aggregate.cases(),
        account=aggregate.account,
        problems=tuple(problems),
    )


@dataclass(frozen=True)
class RowSamples:
    """The samples of a row.

    Attributes:
        remark: how the samples were matched, if not by the row's own signature.
    """

    measurement: Measurement
    remark: str = ""


@dataclass(frozen=True)
class UnmatchedSamples:
    """Samples without a row.

    Attributes:
        cells: the cells of a row for these samples.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    measurement: Measurement


class _SignatureIndex:
    """The rows of a kernel type by signature.

    Attributes:
        exact: signatures of the rows.
        measured: signatures of the rows with a replayed duration.
        ep_sizes: EP Sizes of the rows with the same tensors, by the signature of the tensors alone; "" for none.
        by_tensors: number of these rows.
    """

    def __init__(self, table: RowTable) -> None:
        self.exact = frozenset(table.signatures)
        self.measured = {name for name, known in zip(table.signatures, table.replayed.known, strict=True) if known}
        columns = [column for column in BASE if column in table.columns]
        tensors = signatures_of(table.kernel_type, columns, table.cells)
        self.by_tensors = Counter(dict(zip(table.signatures, tensors, strict=True)).values())
        self.ep_sizes: dict[str, set[str]] = {}
        for text, ep_size in zip(tensors, table.cells(EP_SIZE), strict=True):
            self.ep_sizes.setdefault(text, set()).add(ep_size.strip())


class ProfileMatcher:
    """Finds the samples of rows in a profile."""

    def __init__(self, profile: Profile, rows: Mapping[str, RowTable], ep_size: int | None = None) -> None:
        """Args:
        rows: rows of the database, by kernel type.
        ep_size: number of devices that shared the experts in the profiled run; None if unknown.
        """
        self.profile = profile
        self._no_sample = f"no sample in {profile.root.name}"
        self._ep_size = "" if ep_size is None else str(ep_size)
        self._tables = {kernel_type: _SignatureIndex(table) for kernel_type, table in rows.items()}

    def of_row(self, kernel_type: str, cells: Mapping[str, str]) -> RowSamples | str:
        """Returns the samples of a row, or the reason why it has none."""
        row_signature = signature(kernel_type, cells)
        table = self._tables.get(kernel_type, _NO_ROWS)
        own = self.profile.cases.get(kernel_type, _NONE)
        tensors = signature(kernel_type, {column: cells.get(column, "") for column in BASE})
        ep_sizes = table.ep_sizes.get(tensors, set())
        has_ep_size = kernel_type in EXPERT_PARALLEL and bool(self._ep_size or cells.get(EP_SIZE))
        # More rows than EP Sizes differ in their Expert Load, which no summary tells.
        if has_ep_size and tensors in own and table.by_tensors[tensors] <= len(ep_sizes):
            return self._of_ep_size(cells, own[tensors], ep_sizes)
        if row_signature in own:
            return RowSamples(_measurement(own[row_signature]))
        if tensors in own:
            if table.by_tensors[tensors] > 1:
                return (
                    f"samples in {self.profile.root.name} with its tensors, which {table.by_tensors[tensors]} rows "
                    f"have: no summary tells their run-time values"
                )
            return RowSamples(_measurement(own[tensors]), _BY_TENSORS)
        borrowed = self._of_family(kernel_type, row_signature, cells)
        if borrowed is None:
            return self._no_sample
        if row_signature in table.measured:
            return f"no sample of {kernel_type} in {self.profile.root.name}; it was measured before"
        return borrowed

    def has(self, kernel_type: str, cells: Mapping[str, str]) -> bool:
        """Returns whether the profile has launches that may be of a row, whether or not the row gets them."""
        return self.of_row(kernel_type, cells) != self._no_sample

    def _of_ep_size(self, cells: Mapping[str, str], case: Case, known: set[str]) -> RowSamples | str:
        """Returns the samples with a row's tensors, if the profiled run had its EP Size; otherwise the reason.

        Args:
            known: EP Sizes of all rows with these tensors.
        """
        ep_size = cells.get(EP_SIZE, "").strip()
        if not self._ep_size:
            return (
                f"samples in {self.profile.root.name} with its tensors, and no summary tells their {EP_SIZE}: "
                f"name that of the profiled run with --ep-size"
            )
        if ep_size != self._ep_size and (ep_size or self._ep_size in known):
            return f"samples in {self.profile.root.name} with its tensors, of {EP_SIZE} {self._ep_size} (--ep-size)"
        return RowSamples(_measurement(case), f"matched by its tensors and --ep-size {self._ep_size}")

    def unmatched(self) -> Iterator[UnmatchedSamples]:
        """Yields the samples of cases that no row of the database has."""
        for kernel_type, cases in self.profile.cases.items():
            table = self._tables.get(kernel_type, _NO_ROWS)
            for text, _, _ in cases.cells:
                ep_size = self._ep_size if kernel_type in EXPERT_PARALLEL else ""
                known = table.ep_sizes.get(text, {""}) if text in table.by_tensors else ()
                if known and not (ep_size and {"", ep_size}.isdisjoint(known)):
                    continue
                case = cases[text]
                source = {SOURCE_PROFILE: source_cell(case.sources)} if case.sources else {}
                row = {**source, **case.cells}
                if ep_size:
                    row[EP_SIZE] = ep_size
                yield UnmatchedSamples(
                    kernel_type, signature(kernel_type, row) if ep_size else text, row, _measurement(case)
                )

    def _of_family(self, kernel_type: str, row_signature: str, cells: Mapping[str, str]) -> RowSamples | None:
        for sibling in siblings(kernel_type):
            cases = self.profile.cases.get(sibling, _NONE)
            if row_signature in cases:
                return RowSamples(_measurement(cases[row_signature], sibling))
        form = canonical_form(cells) if kernel_type in MATMUL_FAMILY else None
        if form is None or form not in self._by_form:
            return None
        # The row's own kernel type comes first, then the case with the most launches.
        ran_as, text, _ = max(self._by_form[form], key=lambda case: (case[0] == kernel_type, case[2]))
        remark = "of the same canonical form (M,K; N,K -> M,N)"
        return RowSamples(_measurement(self.profile.cases[ran_as][text], ran_as), remark)

    @cached_property
    def _by_form(self) -> dict[str, list[tuple[str, str, int]]]:
        """Kernel type, signature and number of launches of products without a row, by canonical form."""
        tables = [self._tables[name] for name in MATMUL_FAMILY if name in self._tables]
        found: dict[str, list[tuple[str, str, int]]] = {}
        for kernel_type in MATMUL_FAMILY:
            for text, cells, launches in self.profile.cases.get(kernel_type, _NONE).cells:
                form = canonical_form(cells)
                if form is not None and not any(text in table.exact for table in tables):
                    found.setdefault(form, []).append((kernel_type, text, launches))
        return found


def fits(profile: Profile, database: Database) -> bool:
    """Returns whether a profile has launches of a row of a database.

    Returns:
        True also for a database without rows, and where a file that cannot be read may have such rows.
    """
    rows: dict[str, RowTable] = {}
    names = database.kernel_types()
    for name in names:
        family = {name, *siblings(name), *(MATMUL_FAMILY if name in MATMUL_FAMILY else ())}
        if family.isdisjoint(profile.cases):
            continue
        try:
            rows[name] = database.read(name)
        except TableError:
            return True
    matcher = ProfileMatcher(profile, rows)
    return not names or any(matcher.has(name, cells) for name, table in rows.items() for cells in table.rows())


_NONE = Cases("", {})
_NO_ROWS = _SignatureIndex(RowTable("", Path(), text_table(BASE)))


def _measurement(case: Case, ran_as: str = "") -> Measurement:
    """Returns the measurement of a case. `ran_as`: the kernel type of the case, where the row is another case."""
    return Measurement(
        samples_us=case.durations_us,
        instrument=MSPROF,
        cache_state=CACHE_UNKNOWN,
        assumptions=(_ASSUMPTION,),
        counters={name: mean for name, mean in case.counters.items() if mean is not None},
        ran_as=LaunchedCase(ran_as, case.cells) if ran_as else None,
    )
