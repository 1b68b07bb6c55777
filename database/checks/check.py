"""What a check is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from database.checks.checked import CheckedDatabase, CheckedTable
from database.checks.finding import Finding

#: The case of a check that looks at the database as a whole stands under this name.
WHOLE_DATABASE = "database"


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
