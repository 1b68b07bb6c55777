"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass


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
