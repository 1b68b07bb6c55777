"""Known findings: `known_findings.yaml` in the folder of a database lists findings and the reason of each.

A known finding is reported and does not fail. An entry that matches no finding is reported too.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from opatlas.ask.checks.check import Check, Finding
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.text import suggest
from opatlas.yaml_file import YamlError, parse_yaml

KNOWN_FINDINGS = "known_findings.yaml"
#: The pattern that every kernel type and every row matches.
ANY = "*"
_LARGEST_BYTES = 4 << 20
_Text = Annotated[str, Meta(min_length=1)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    checks: Annotated[list[_Text], Meta(min_length=1)]
    reason: _Text
    date: datetime.date
    kernel_type: _Text = ANY
    row: _Text = ANY
    most: Annotated[int, Meta(ge=1)] | None = None


@dataclass(frozen=True)
class KnownFinding:
    """An entry of the file.

    Attributes:
        place: file and number of the entry, from 1.
        checks: names of the checks.
        kernel_type, row: patterns with `*` and `?` for the kernel type and the row of a finding.
        most: how many findings of each kernel type are known, the least severe ones; None for all.
        reason: the cause of the numbers.
        date: the day of the examination.
    """

    place: str
    checks: Sequence[str]
    kernel_type: str
    row: str
    most: int | None
    reason: str
    date: datetime.date

    def covers(self, check: Check, finding: Finding) -> bool:
        """Returns whether the entry matches a finding of a check."""
        return (
            check.name in self.checks
            and fnmatchcase(finding.kernel_type, self.kernel_type)
            and fnmatchcase(finding.row, self.row)
        )


@dataclass(frozen=True)
class SortedFindings:
    """The findings of a case.

    Attributes:
        new: findings that no entry matches, the worst first.
        known: the other findings, each with its entry.
    """

    new: Sequence[Finding]
    known: Sequence[tuple[Finding, KnownFinding]]


def split_findings(check: Check, findings: Sequence[Finding], entries: Sequence[KnownFinding]) -> SortedFindings:
    """Splits the findings of one check and kernel type into new and known ones; the first matching entry counts."""
    of_entry: dict[int, list[Finding]] = {}
    new: list[Finding] = []
    for finding in findings:
        number = next((i for i, entry in enumerate(entries) if entry.covers(check, finding)), None)
        if number is None:
            new.append(finding)
        else:
            of_entry.setdefault(number, []).append(finding)
    known = []
    for number, covered in of_entry.items():
        entry = entries[number]
        if entry.most is not None and len(covered) > entry.most:
            extra, covered = covered[: -entry.most], covered[-entry.most :]
            told = f"{entry.place} allows {entry.most} of {len(covered) + len(extra)}"
            new += [replace(finding, reason=f"{finding.reason}; {told}") for finding in extra]
        known += [(finding, entry) for finding in covered]
    return SortedFindings(sorted(new, key=lambda finding: -finding.weight), known)


def read_known(folder: Path, checks: Sequence[Check]) -> list[KnownFinding]:
    """Reads the entries of a database; an empty list if there is no file.

    Raises:
        OpAtlasError: the file cannot be read, links out of the folder, or is not a list of known findings.
    """
    path = folder / KNOWN_FINDINGS
    try:
        content = parse_yaml(read_safely(path, _LARGEST_BYTES), strict=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): make it readable, or remove it") from None
    except YamlError as error:
        raise OpAtlasError(f"{path}: not YAML ({error}): correct it") from None
    if content is None:
        return []
    if not isinstance(content, list):
        remedy = "begin each with `- checks: [NAME]` (docs/compare.md)"
        raise OpAtlasError(f"{path}: not a list of known findings: {remedy}")
    return [_known(f"{path}, entry {number}", entry, checks) for number, entry in enumerate(content, start=1)]


def _known(place: str, content: Any, checks: Sequence[Check]) -> KnownFinding:
    try:
        entry = msgspec.convert(content, _Entry)
    except msgspec.ValidationError as error:
        raise OpAtlasError(
            f"{place}: {error}: write checks, kernel_type, row, most, reason and date as in docs/compare.md"
        ) from None
    names = [check.name for check in checks]
    for name in entry.checks:
        if name not in names:
            raise OpAtlasError(
                f"{place}: there is no check {name!r}{suggest(name, names)}: give some of {', '.join(names)}"
            )
    return KnownFinding(
        place.rpartition("/")[2], entry.checks, entry.kernel_type, entry.row, entry.most, entry.reason, entry.date
    )
