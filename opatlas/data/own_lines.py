"""The lines of a journal that its process wrote: a kernel can find the file, and write records of any row.

Lines of others are taken out of the journal, and kept beside it. The journal of a killed process has nobody who knows
its lines: there, records that contradict each other are named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO

from opatlas.data.csv_files import write_bytes
from opatlas.errors import OpAtlasError
from opatlas.row.record import Record, RowName
from opatlas.text import pluralize, shortened
from opatlas.typed_json import DecodeError

#: The number of problems of one kind that are told, and of line numbers that are named.
_TOLD, _MOST_NUMBERS = 5, 20


@dataclass
class OwnLines:
    """The lines that a process wrote into its journal.

    Attributes:
        header: the first line.
        numbers: the number of each further line, by its digest.
        count: the number of lines that were written.
    """

    header: bytes
    numbers: dict[bytes, int] = field(default_factory=dict)
    count: int = 1

    def add(self, line: bytes) -> None:
        """Adds a line that the process wrote."""
        self.count += 1
        self.numbers.setdefault(_digest(line), self.count)

    def restore(self, file: BinaryIO, path: Path) -> list[str]:
        """Takes the lines of others out of a journal. Lines that are missing are named once.

        Args:
            file: the journal, unbuffered, open to be read and written; it is left at its end.
            path: its path; the lines of others are kept beside it.

        Returns:
            A sentence for each line of others, with the row that it claims, and one with the numbers of the lines of
            the process that were changed or removed.

        Raises:
            OSError: the file cannot be read or written.
        """
        file.seek(0)
        content = file.read()
        lines = content.splitlines(keepends=True)
        digests = list(map(_digest, lines))
        restored = b"".join([self.header, *(line for line, d in zip(lines, digests, strict=True) if d in self.numbers)])
        problems: list[str] = []
        if restored != content:
            numbered = zip(count(1), lines, digests, strict=False)
            others = [(n, line) for n, line, digest in numbered if digest not in self.numbers and line != self.header]
            problems = _keep(others, path) if others else []
            file.seek(0)
            write_whole(file, restored)
            os.ftruncate(file.fileno(), len(restored))
        lost = {number: digest for digest, number in self.numbers.items() if digest not in set(digests)}
        if lost:
            for digest in lost.values():
                del self.numbers[digest]
            numbers = ", ".join(map(str, sorted(lost)[:_MOST_NUMBERS])) + (", ..." if len(lost) > _MOST_NUMBERS else "")
            problems.append(
                f"{path}: another process changed or removed {pluralize(len(lost), 'record')} of this session (written "
                f"as line {numbers}), which {'is' if len(lost) == 1 else 'are'} lost: run the rows again"
            )
        return problems


def contradictions(path: Path, records: Iterable[Record], earlier: Iterable[Record] = ()) -> list[str]:
    """Names rows with records of which one must be wrong: the last of them counts.

    Args:
        path: the journal of a process that was killed.
        records: its records. A process measures a row once.
        earlier: records of other journals. Two records of one row in one run do not end at the same time.
    """
    ended = {(each.run_id, RowName(each.kernel_type, each.signature), each.finished_at): each for each in earlier}
    measured: dict[tuple[str, RowName], Record] = {}
    found: dict[RowName, None] = {}
    for record in records:
        row = RowName(record.kernel_type, record.signature)
        same_time = ended.setdefault((record.run_id, row, record.finished_at), record)
        if same_time != record:
            found[row] = None
        if record.measurement is not None:
            first = measured.setdefault((record.run_id, row), record).measurement
            if first is not None and first.samples_us != record.measurement.samples_us:
                found[row] = None
    return first_of(
        f"{path}: two records of {row.kernel_type} {shortened(row.signature)} in one run contradict each other; the "
        "later one counts: run this row again"
        for row in found
    )


def first_of(sentences: Iterable[str]) -> list[str]:
    """Returns the first of many sentences, and how many more there are."""
    sentences = list(sentences)
    more = len(sentences) - _TOLD
    return [*sentences[:_TOLD], f"and {more:,} more of this kind"] if more > 0 else sentences


def free_name(path: Path, ending: str) -> Path:
    """Returns the path of a file beside a journal that does not exist yet. Sessions ignore such files."""
    names = chain([f"{path.name}.{ending}"], (f"{path.name}.{ending}{number}" for number in count(2)))
    return next(free for free in map(path.with_name, names) if not free.exists())


def write_whole(file: BinaryIO, content: bytes) -> None:
    """Writes to an unbuffered file. Raises OSError: where only a part fits, the write of the rest names the reason."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _keep(others: Sequence[tuple[int, bytes]], path: Path) -> list[str]:
    """Keeps lines of others, with their numbers, beside a journal. Returns a sentence for each, and where it is."""
    problems = first_of(
        f"{path}:{number}: {_claim(line)}, which this session did not write: it does not count"
        for number, line in others
    )
    kept = free_name(path, "refused")
    try:
        write_bytes(kept, b"".join(line for _, line in others))
    except OpAtlasError as error:
        return [*problems, f"the refused lines could not be kept: {error}"]
    return [*problems, f"the refused lines are kept in {kept}: find the kernel or the program that wrote them"]


def _claim(line: bytes) -> str:
    try:
        record = Record.decode(line, "")
    except DecodeError:
        return "a line that is no record"
    return f"a record of {record.kernel_type} {shortened(record.signature)}"


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()
