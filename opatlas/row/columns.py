"""The columns of the CSVs, in their groups, and the values of the Status column (database/README.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum

RUNTIME_PREFIX = "Runtime "
#: Mean number of keys of a sequence, as older tools name the column.
LEGACY_AVG_SEQ_LEN = "avg_seq_len"
LEGACY_MICROBENCH = "MicroBench Duration(us)"
LEGACY_PROFILING_MEDIAN = "Median Duration(us)"
LEGACY_PROFILING_STD = "Std Duration(us)"
LEGACY_COUNTER = re.compile(r"Average (?!Duration\(us\)$)(?P<counter>.+)")

_MICROBENCH = "MicroBench "
_PROFILING = "Profiling "
_PROFILING_AVERAGE = "Profiling Average "
_ANY_COUNTER = "<counter>"
#: Most systems allow 255 bytes; ".csv" and the suffix of a temporary file need some.
_LONGEST_NAME_BYTES = 200


class ColumnGroup(Enum):
    """The names of the columns of each group, in their order in a new file; `<counter>` is that of any counter.

    Columns of no group precede REPLAYED. database/README.md has the meaning of each column.
    """

    SLOTS = (
        "OP State; Accelerator Core; Input Shapes; Input Data Types; Input Formats; Output Shapes; Output Data Types; "
        "Output Formats"
    )
    MEAN = "Average Duration(us)"
    MESSAGE = "message_bytes; num_devices; dtype; topology_tier"
    TRANSFER = "Duration(us); bandwidth_gbps; bus_bandwidth_gbps"
    COUNTERS = "MicroBench <counter>"
    CAPTURED = "Profiling Average Duration(us); Profiling Median Duration(us); Profiling Std Duration(us)"
    CAPTURED_COUNTERS = "Profiling Average <counter>"
    EXPERTS = "EP Size; Expert Load"
    RUNTIME = (
        "Runtime source_profile; Runtime actual_seq_lengths_shape; Runtime actual_seq_lengths_values; Runtime "
        "actual_seq_lengths_kv_shape; Runtime actual_seq_lengths_kv_values; Runtime avg_seq_len; Runtime "
        "block_table_shape; Runtime block_table_valid_blocks; Runtime num_heads; Runtime num_key_value_heads; Runtime "
        "sparse_mode; Runtime input_layout; Runtime block_size; Runtime pre_tokens; Runtime attn_state; Runtime "
        "kv_cache_mode; Runtime operator_input_shapes_raw; Runtime metadata_completeness"
    )
    SUITE = "Sample; Arguments; Functional; Trace Count; Sample Torch"
    TASK = "Task Digest; Task Inputs"
    STEP = "Step; Step Layers; Step Launch; Step Stack"
    REPLAYED = (
        "MicroBench Median Duration(us); MicroBench Min Duration(us); MicroBench Std Duration(us); MicroBench Samples; "
        "MicroBench Device Kernels; MicroBench Helper Kernels"
    )
    LAUNCHES = "Profiling Samples; Profiling Populations; Profiling Run ID; Profiling Kernel Names; Profiling Source"
    CONDITIONS = "Cache State; Instrument"
    QUALITY = "Quality; Quality Reason; Assumptions; Checked Elements; Stand-In"
    EXECUTION = "Implementation; Kernel Names; Span Median(us); Outputs Missing; Conversions; Max Error; Set-up Time(s)"
    COMPARED = "Speed-up; Speed-up Low; Speed-up High; Speed-up Rounds; Speed-up Against; Control Ratio"
    JUDGED = "Level; Error Class; Within 1e-3; Kernel Share"
    STATUS = "Status; Status Reason; Crashes In A Row; Status Run ID"
    RUN = "Run ID"
    POOLED = (
        "Pooled Median Duration(us); Pooled Runs; Pooled Machines; Pooled Machine Spread(%); Pooled Run Durations(us)"
    )


def columns_of(*groups: ColumnGroup) -> tuple[str, ...]:
    """Returns the names of the columns of some groups."""
    return tuple(name for group in groups for name in group.value.split("; "))


#: All columns that OpAtlas may write, in their order in a new file.
COLUMNS = columns_of(*ColumnGroup)


#: The first columns of every compute CSV. A CSV of communication has those of MESSAGE instead.
BASE = columns_of(ColumnGroup.SLOTS)
OP_STATE, ACCELERATOR_CORE, INPUT_SHAPES, INPUT_DTYPES, INPUT_FORMATS, *_OUTPUTS = BASE
OUTPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS = _OUTPUTS
#: The columns that describe tensor slots, of inputs and of outputs.
INPUT_SLOTS = (INPUT_SHAPES, INPUT_DTYPES, INPUT_FORMATS)
OUTPUT_SLOTS = (OUTPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS)
#: A compute CSV must have these. The other columns of BASE may be missing (older captures).
REQUIRED = (INPUT_SHAPES, INPUT_DTYPES, OUTPUT_SHAPES, OUTPUT_DTYPES)
(AVERAGE,) = columns_of(ColumnGroup.MEAN)
MESSAGE_BYTES, NUM_DEVICES, DTYPE, TOPOLOGY_TIER = MESSAGE = columns_of(ColumnGroup.MESSAGE)
DURATION, BANDWIDTH, BUS_BANDWIDTH = columns_of(ColumnGroup.TRANSFER)
PROFILING_AVERAGE, PROFILING_MEDIAN, PROFILING_STD = PROFILING_DURATIONS = columns_of(ColumnGroup.CAPTURED)
EP_SIZE, EXPERT_LOAD = EXPERTS = columns_of(ColumnGroup.EXPERTS)
RUNTIME = columns_of(ColumnGroup.RUNTIME)
SAMPLE, ARGUMENTS, FUNCTIONAL, TRACE_COUNT, SAMPLE_TORCH = SUITE = columns_of(ColumnGroup.SUITE)
TASK_DIGEST, TASK_INPUTS = TASK = columns_of(ColumnGroup.TASK)
STEP, STEP_LAYERS, STEP_LAUNCH, STEP_STACK = STEP_COLUMNS = columns_of(ColumnGroup.STEP)
MICROBENCH_MEDIAN, MICROBENCH_MIN, MICROBENCH_STD, MICROBENCH_SAMPLES, *_KERNELS = columns_of(ColumnGroup.REPLAYED)
MICROBENCH_DEVICE_KERNELS, MICROBENCH_HELPER_KERNELS = _KERNELS
_LAUNCHES = columns_of(ColumnGroup.LAUNCHES)
PROFILING_SAMPLES, PROFILING_POPULATIONS, PROFILING_RUN_ID, PROFILING_KERNEL_NAMES, PROFILING_SOURCE = _LAUNCHES
CACHE_STATE, INSTRUMENT = columns_of(ColumnGroup.CONDITIONS)
QUALITY, QUALITY_REASON, ASSUMPTIONS, CHECKED_ELEMENTS, STAND_IN = columns_of(ColumnGroup.QUALITY)
IMPLEMENTATION, KERNEL_NAMES, SPAN, OUTPUTS_MISSING, CONVERSIONS, MAX_ERROR, SET_UP = columns_of(ColumnGroup.EXECUTION)
SPEED_UP, SPEED_UP_LOW, SPEED_UP_HIGH, SPEED_UP_ROUNDS, SPEED_UP_AGAINST, CONTROL_RATIO = columns_of(
    ColumnGroup.COMPARED
)
LEVEL, ERROR_CLASS, WITHIN_1E3, KERNEL_SHARE = JUDGED = columns_of(ColumnGroup.JUDGED)
STATUS, STATUS_REASON, CRASHES_IN_A_ROW, STATUS_RUN_ID = columns_of(ColumnGroup.STATUS)
#: The result of the last run of the row.
STATUS_GROUP = (*columns_of(ColumnGroup.STATUS), *JUDGED)
(RUN_ID,) = columns_of(ColumnGroup.RUN)
#: Columns of `combine --pool`: statistics over all runs that measured the row.
POOLED = columns_of(ColumnGroup.POOLED)
POOLED_MEDIAN, POOLED_RUNS, POOLED_MACHINES, POOLED_SPREAD, POOLED_RUN_DURATIONS = POOLED
#: Columns about the samples of a replayed duration.
SAMPLE_COLUMNS = columns_of(ColumnGroup.QUALITY, ColumnGroup.EXECUTION, ColumnGroup.COMPARED)
#: Columns that only OpAtlas writes; new files have them at the end.
OWN = COLUMNS[COLUMNS.index(MICROBENCH_MEDIAN) :]

#: Runtime values that belong to the signature, because they change the work of an attention kernel.
RUNTIME_IN_SIGNATURE = tuple(
    RUNTIME_PREFIX + name
    for name in (
        "actual_seq_lengths_values",
        "actual_seq_lengths_kv_values",
        "num_heads",
        "num_key_value_heads",
        "sparse_mode",
        "input_layout",
        "block_size",
        "pre_tokens",
    )
)

#: Runtime values that imply the lengths of the keys where the lengths themselves are empty.
LENGTHS_IN_SIGNATURE = (RUNTIME_PREFIX + "block_table_valid_blocks", RUNTIME_PREFIX + "avg_seq_len", LEGACY_AVG_SEQ_LEN)

#: Columns besides those of the tensors that belong to the signature of some kernel types.
EXTRA_IN_SIGNATURE = (*RUNTIME_IN_SIGNATURE, *LENGTHS_IN_SIGNATURE, *EXPERTS)

#: Kernels that the ranks of a group run together, each rank with some experts of a layer.
EXPERT_PARALLEL = frozenset(
    {
        "DispatchFFNCombine",
        "DispatchFFNCombineBF16",
        *(f"MoeDistribute{part}{version}" for part in ("Combine", "Dispatch") for version in ("", "V2", "V3")),
    }
)

#: Kernels with a matrix for each expert.
GROUPED = ("GroupedMatmul", "GroupedMatmulSwigluQuant")
#: Kernels whose rows may have an Expert Load.
WITH_LOAD = EXPERT_PARALLEL.union(GROUPED)

#: A row of attention whose lengths nobody knows, and which is not replayed with assumed ones: (column, cell). And one
#: that has the mean lengths of a step.
WITHOUT_LENGTHS = (RUNTIME_PREFIX + "metadata_completeness", "no-lengths")
MEAN_LENGTHS = (RUNTIME_PREFIX + "metadata_completeness", "mean-lengths")
#: Kernels whose duration depends on lengths of sequences, which are in the Runtime columns.
ATTENTION_TYPES = frozenset({"FusedInferAttentionScore"})


def microbench_counter(counter: str) -> str:
    """Returns the column of a counter that a replay measured."""
    return f"{_MICROBENCH}{counter}"


def is_microbench_column(column: str) -> bool:
    """Returns whether a column describes a replayed duration: its statistics, how it was measured, its run."""
    return column in (AVERAGE, CACHE_STATE, INSTRUMENT, RUN_ID, *SAMPLE_COLUMNS) or column.startswith(_MICROBENCH)


def is_profiling_column(column: str) -> bool:
    """Returns whether a column describes captured durations: their statistics, and their ingests."""
    return column.startswith(_PROFILING)


def profiling_counter(counter: str) -> str:
    """Returns the column of a counter that is averaged over the samples of a capture."""
    return f"{_PROFILING_AVERAGE}{counter}"


_ORDER = {name: number for number, name in enumerate(COLUMNS)}


def ordered_columns(columns: Iterable[str]) -> list[str]:
    """Returns the columns of a new file, ordered by group; columns of no group precede the columns of OpAtlas."""
    return sorted(dict.fromkeys(columns), key=_place)


def _place(name: str) -> float:
    if name in _ORDER:
        return _ORDER[name]
    for prefix, last in (
        (_MICROBENCH, _MICROBENCH + _ANY_COUNTER),
        (_PROFILING_AVERAGE, _PROFILING_AVERAGE + _ANY_COUNTER),
        (RUNTIME_PREFIX, RUNTIME[-1]),
    ):
        if name.startswith(prefix):
            return _ORDER[last]
    return _ORDER[OWN[0]] - 0.5


def insert_columns(existing: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Returns `existing` in its order, with each missing column of `wanted` inserted at its group."""
    columns = list(existing)
    order = ordered_columns([*existing, *wanted])
    for number, name in enumerate(order):
        if name not in columns:
            before = set(order[:number])
            columns.insert(max((i + 1 for i, other in enumerate(columns) if other in before), default=0), name)
    return columns


def is_file_name(kernel_type: str) -> bool:
    """Returns whether a kernel type can name a CSV file on every system."""
    return (
        bool(kernel_type)
        and kernel_type.isprintable()
        and not set(kernel_type) & set('/\\:*?"<>|')
        and kernel_type[0] != "."
        and len(kernel_type.encode()) <= _LONGEST_NAME_BYTES
    )


#: The counters of the profiler's metric group PipeUtilization, which an NPU's captures usually have.
PIPE_UTILIZATION = (
    *("aicore_time(us)", "aic_total_cycles"),
    *(f"aic_{pipe}_{what}" for pipe in ("mac", "scalar", "mte1", "mte2", "fixpipe") for what in ("time(us)", "ratio")),
    *("aic_icache_miss_rate", "aiv_time(us)", "aiv_total_cycles"),
    *(f"aiv_{pipe}_{what}" for pipe in ("vec", "scalar", "mte2", "mte3") for what in ("time(us)", "ratio")),
    *("aiv_icache_miss_rate", "cube_utilization(%)"),
)
