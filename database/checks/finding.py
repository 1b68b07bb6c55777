"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from database.checks.checked import CheckedDatabase, CheckedTable

#: The case of a check that looks at the database as a whole stands under this name.
WHOLE_DATABASE = "database"


@dataclass(frozen=True)
class Finding:
    """A row, or a run, that a check objects to.

    Attributes:
        file: the CSV, or the file in `runs/`.
        line: of the row in its file, the header being line 1; None where the finding is of no row.
        kernel_type: "" where the finding is of no row.
        row: what names the row: its input shapes, or its message; of a run the run id.
        value: what was found: `62.42 us`.
        reason: what is wrong with the value, with the numbers that it was compared with.
        weight: the larger, the worse; compares findings of one check.
    """

    file: str
    line: int | None
    kernel_type: str
    row: str
    value: str
    reason: str
    weight: float = 1.0

    @property
    def place(self) -> str:
        """`MatMulV2.csv:457`."""
        name = self.file.rpartition("/")[2]
        return name if self.line is None else f"{name}:{self.line}"


@dataclass(frozen=True)
class Check:
    """One data test.

    Attributes:
        name: in the names of cases, in known_findings.yaml and in JSON.
        about: what its findings are: "rows far above both neighbours".
        remedy: what the user can do about a finding.
        of_table: looks at the rows of one kernel type; None for a check of the whole database.
        of_database: looks at the database as a whole; None for a check of each kernel type.
        advisory: the findings are facts to know, and fail only with --strict.
        applies: says why the check cannot look at this database; "" where it can.
    """

    name: str
    about: str
    remedy: str
    of_table: Callable[[CheckedDatabase, CheckedTable], Sequence[Finding]] | None = None
    of_database: Callable[[CheckedDatabase], Sequence[Finding]] | None = None
    advisory: bool = False
    applies: Callable[[CheckedDatabase], str] = lambda database: ""

    def find(self, database: CheckedDatabase, kernel_type: str) -> list[Finding]:
        """Returns the findings of a kernel type, or of WHOLE_DATABASE, the worst first. Raises OpAtlasError."""
        if self.of_database is not None:
            found = self.of_database(database)
        else:
            assert self.of_table is not None
            found = self.of_table(database, database.table(kernel_type))
        return sorted(found, key=lambda finding: -finding.weight)
