"""The two kinds of rows, calls of kernels and messages of collectives, and the differences between their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from opatlas.row.columns import (
    AVERAGE,
    BANDWIDTH,
    BASE,
    BUS_BANDWIDTH,
    DURATION,
    EP_SIZE,
    MESSAGE,
    MESSAGE_BYTES,
    NUM_DEVICES,
    OWN,
    PROFILING_AVERAGE,
    PROFILING_DURATIONS,
    REQUIRED,
    RUNTIME,
    STATUS_GROUP,
    SUITE,
    TASK,
    is_microbench_column,
)
from opatlas.row.communication import is_communication
from opatlas.row.quality import typical_mean


@dataclass(frozen=True)
class RowKind:
    """A kind of rows. All rows of a table have one kind.

    Attributes:
        table: noun for the tables of this kind.
        identity_columns: the columns of a new table.
        required_columns: a file without these columns is not a table of this kind.
        duration_columns: columns that may hold the duration of a row; replays write the first one.
        known_columns: candidates for a misspelt column. MicroBench columns may be named after any counter, and are not
            among the candidates.
        has_former_names: whether older tools wrote some columns under other names.
        stores_median: whether the stored duration is the median of the samples, and not their mean without outliers.
        starts_together: whether all ranks of a group begin a call at once, so that the slowest rank is the same in all
            samples.
    """

    table: str
    identity_columns: tuple[str, ...]
    required_columns: tuple[str, ...]
    duration_columns: tuple[str, ...]
    known_columns: tuple[str, ...]
    has_former_names: bool
    stores_median: bool
    starts_together: bool

    def duration_us(self, samples_us: Sequence[float]) -> float:
        """Returns the stored duration of a row in microseconds."""
        return median(samples_us) if self.stores_median else typical_mean(samples_us)

    def is_measured(self, column: str) -> bool:
        """Returns whether replays write a column: durations, how they were measured, status."""
        return column in STATUS_GROUP or self.is_replayed(column)

    def is_replayed(self, column: str) -> bool:
        """Returns whether a column is about the duration of a replay: statistics, how it was measured, its run."""
        if column in (DURATION, BANDWIDTH, BUS_BANDWIDTH):
            return column in self.known_columns
        # Other tools write the average of a message.
        is_captured_average = column == AVERAGE and self.stores_median
        return is_microbench_column(column) and not is_captured_average


#: Rows of kernels: the call of a kernel on tensors of some shapes and dtypes.
CALL = RowKind(
    table="compute",
    identity_columns=BASE,
    required_columns=REQUIRED,
    duration_columns=(AVERAGE, PROFILING_AVERAGE),
    known_columns=(
        *(*BASE, AVERAGE, *PROFILING_DURATIONS, EP_SIZE, *RUNTIME, *SUITE, *TASK),
        *(name for name in OWN if not name.startswith("Micro")),
    ),
    has_former_names=True,
    stores_median=False,
    starts_together=False,
)
#: Rows of collectives: a message between the devices of a group.
MESSAGE_ROW = RowKind(
    table="communication",
    identity_columns=MESSAGE,
    required_columns=(MESSAGE_BYTES, NUM_DEVICES),
    duration_columns=(DURATION, AVERAGE, PROFILING_AVERAGE),
    known_columns=(*MESSAGE, DURATION, BANDWIDTH, BUS_BANDWIDTH),
    has_former_names=False,
    stores_median=True,
    starts_together=True,
)


def row_kind(kernel_type: str) -> RowKind:
    """Returns the kind of the rows of a kernel type."""
    return MESSAGE_ROW if is_communication(kernel_type) else CALL
