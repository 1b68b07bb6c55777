"""The columns of the CSVs, in their groups, and the values of the Status column (database/README.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum

OP_STATE = "OP State"
ACCELERATOR_CORE = "Accelerator Core"
INPUT_SHAPES = "Input Shapes"
INPUT_DTYPES = "Input Data Types"
INPUT_FORMATS = "Input Formats"
OUTPUT_SHAPES = "Output Shapes"
OUTPUT_DTYPES = "Output Data Types"
OUTPUT_FORMATS = "Output Formats"

#: The first columns of every compute CSV, in this order.
BASE = (
    OP_STATE,
    ACCELERATOR_CORE,
    INPUT_SHAPES,
    INPUT_DTYPES,
    INPUT_FORMATS,
    OUTPUT_SHAPES,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
)

#: A compute CSV must have these. The other columns of BASE may be missing (older captures).
REQUIRED = (INPUT_SHAPES, INPUT_DTYPES, OUTPUT_SHAPES, OUTPUT_DTYPES)

#: The columns that describe tensor slots, of inputs and of outputs.
INPUT_SLOTS = (INPUT_SHAPES, INPUT_DTYPES, INPUT_FORMATS)
OUTPUT_SLOTS = (OUTPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS)

AVERAGE = "Average Duration(us)"
PROFILING_AVERAGE = "Profiling Average Duration(us)"
PROFILING_MEDIAN = "Profiling Median Duration(us)"
PROFILING_STD = "Profiling Std Duration(us)"
PROFILING_DURATIONS = (PROFILING_AVERAGE, PROFILING_MEDIAN, PROFILING_STD)

#: A CSV of communication has these columns instead of BASE.
MESSAGE_BYTES = "message_bytes"
NUM_DEVICES = "num_devices"
DTYPE = "dtype"
TOPOLOGY_TIER = "topology_tier"
MESSAGE = (MESSAGE_BYTES, NUM_DEVICES, DTYPE, TOPOLOGY_TIER)
#: The median of the slowest device.
DURATION = "Duration(us)"
BANDWIDTH = "bandwidth_gbps"
BUS_BANDWIDTH = "bus_bandwidth_gbps"

LEGACY_MICROBENCH = "MicroBench Duration(us)"
LEGACY_PROFILING_MEDIAN = "Median Duration(us)"
LEGACY_PROFILING_STD = "Std Duration(us)"
LEGACY_COUNTER = re.compile(r"Average (?!Duration\(us\)$)(?P<counter>.+)")

#: Most systems allow 255 bytes; ".csv" and the suffix of a temporary file need some.
_LONGEST_NAME_BYTES = 200

_MICROBENCH = "MicroBench "
_PROFILING = "Profiling "
MICROBENCH_MEDIAN = "MicroBench Median Duration(us)"
MICROBENCH_MIN = "MicroBench Min Duration(us)"
MICROBENCH_STD = "MicroBench Std Duration(us)"
MICROBENCH_SAMPLES = "MicroBench Samples"
MICROBENCH_DEVICE_KERNELS = "MicroBench Device Kernels"
#: Other kernels that the call launched, and their durations: "Cast 2.1000; TransQuantParamV2 1.2000".
MICROBENCH_HELPER_KERNELS = "MicroBench Helper Kernels"
PROFILING_SAMPLES = "Profiling Samples"
#: The two modes of a row's captured durations (opatlas/row/quality.py).
PROFILING_POPULATIONS = "Profiling Populations"
PROFILING_RUN_ID = "Profiling Run ID"
CACHE_STATE = "Cache State"
INSTRUMENT = "Instrument"
#: The quality of the samples, and the reason (opatlas/row/quality.py).
QUALITY = "Quality"
QUALITY_REASON = "Quality Reason"
#: Values that the row does not state, and that were assumed.
ASSUMPTIONS = "Assumptions"
#: Output elements that were compared with the reference, and all: "4096/1048576".
CHECKED_ELEMENTS = "Checked Elements"
#: The call that was timed instead of the row's kernel; empty for the kernel itself.
STAND_IN = "Stand-In"
#: The implementation that was timed ("flashinfer 0.5.3").
IMPLEMENTATION = "Implementation"
#: The device kernels of one call, in the order of their launches.
KERNEL_NAMES = "Kernel Names"
#: Median time from the start of the first to the end of the last device kernel of a call.
SPAN = "Span Median(us)"
#: Output slots that the implementation does not compute: "1; 2".
OUTPUTS_MISSING = "Outputs Missing"
#: Inputs and results that were converted outside the measured time.
CONVERSIONS = "Conversions"
#: Largest error of a checked element, as a share of its tolerance.
MAX_ERROR = "Max Error"
#: Seconds of set-up and first call, compilation included.
SET_UP = "Set-up Time(s)"
EXECUTION_COLUMNS = (IMPLEMENTATION, KERNEL_NAMES, SPAN, OUTPUTS_MISSING, CONVERSIONS, MAX_ERROR, SET_UP)
STATUS = "Status"
STATUS_REASON = "Status Reason"
#: Number of consecutive sessions in which the row crashed or timed out.
CRASHES_IN_A_ROW = "Crashes In A Row"
#: The run of the status.
STATUS_RUN_ID = "Status Run ID"
#: The run of the replayed duration.
RUN_ID = "Run ID"

#: Of a row of a suite (docs/candidates.md): the sample and its digest, the text of the arguments, the functional
#: operator of which the row's is a variant, how often models make the call, and the torch that listed the row.
SAMPLE = "Sample"
ARGUMENTS = "Arguments"
FUNCTIONAL = "Functional"
TRACE_COUNT = "Trace Count"
SAMPLE_TORCH = "Sample Torch"
SUITE = (SAMPLE, ARGUMENTS, FUNCTIONAL, TRACE_COUNT, SAMPLE_TORCH)
#: Of a row of a task (docs/candidates.md): the digest of the task's file, and which of its inputs the row has.
TASK_DIGEST = "Task Digest"
TASK_INPUTS = "Task Inputs"
TASK = (TASK_DIGEST, TASK_INPUTS)
#: The judgement of the last run of a task's row: the highest level that the candidate passed, its error class, whether
#: all elements differ from the reference by less than 1e-3, and the share of the time in its own kernels.
LEVEL = "Level"
ERROR_CLASS = "Error Class"
WITHIN_1E3 = "Within 1e-3"
KERNEL_SHARE = "Kernel Share"
JUDGED = (LEVEL, ERROR_CLASS, WITHIN_1E3, KERNEL_SHARE)

#: Columns about the samples of a replayed duration.
SAMPLE_COLUMNS = (QUALITY, QUALITY_REASON, ASSUMPTIONS, CHECKED_ELEMENTS, STAND_IN, *EXECUTION_COLUMNS)

#: Columns of `combine --pool`: statistics over all runs that measured the row.
POOLED_MEDIAN = "Pooled Median Duration(us)"
POOLED_RUNS = "Pooled Runs"
POOLED_MACHINES = "Pooled Machines"
#: The largest minus the smallest median of a machine, in percent of the pooled median; empty for one machine.
POOLED_SPREAD = "Pooled Machine Spread(%)"
#: Each run and its median: "20261121T120000-aaaaaa 10.0000; 20261122T120000-aaaaaa 11.0000".
POOLED_RUN_DURATIONS = "Pooled Run Durations(us)"
POOLED = (POOLED_MEDIAN, POOLED_RUNS, POOLED_MACHINES, POOLED_SPREAD, POOLED_RUN_DURATIONS)

#: Columns that only OpAtlas writes; new files have them at the end, in this order.
OWN = (
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_STD,
    MICROBENCH_SAMPLES,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_HELPER_KERNELS,
    PROFILING_SAMPLES,
    PROFILING_POPULATIONS,
    PROFILING_RUN_ID,
    CACHE_STATE,
    INSTRUMENT,
    *SAMPLE_COLUMNS,
    *JUDGED,
    STATUS,
    STATUS_REASON,
    CRASHES_IN_A_ROW,
    STATUS_RUN_ID,
    RUN_ID,
    *POOLED,
)

#: The result of the last run of the row.
STATUS_GROUP = (STATUS, STATUS_REASON, CRASHES_IN_A_ROW, STATUS_RUN_ID, *JUDGED)

EP_SIZE = "EP Size"
#: Kernels that the ranks of a group run together, each rank with some experts of a layer.
EXPERT_PARALLEL = frozenset(
    {
        "DispatchFFNCombine",
        "DispatchFFNCombineBF16",
        "MoeDistributeCombine",
        "MoeDistributeCombineV2",
        "MoeDistributeDispatch",
        "MoeDistributeDispatchV2",
    }
)

#: Kernels whose duration depends on lengths of sequences, which are in the Runtime columns.
ATTENTION_TYPES = frozenset({"FusedInferAttentionScore"})

RUNTIME_PREFIX = "Runtime "
RUNTIME = tuple(
    RUNTIME_PREFIX + name
    for name in (
        "source_profile",
        "actual_seq_lengths_shape",
        "actual_seq_lengths_values",
        "actual_seq_lengths_kv_shape",
        "actual_seq_lengths_kv_values",
        "avg_seq_len",
        "block_table_shape",
        "block_table_valid_blocks",
        "num_heads",
        "num_key_value_heads",
        "sparse_mode",
        "input_layout",
        "block_size",
        "attn_state",
        "kv_cache_mode",
        "operator_input_shapes_raw",
        "metadata_completeness",
    )
)

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
    )
)

#: Mean number of keys of a sequence, as older tools name the column.
LEGACY_AVG_SEQ_LEN = "avg_seq_len"
#: Runtime values that imply the lengths of the keys where the lengths themselves are empty.
LENGTHS_IN_SIGNATURE = (RUNTIME_PREFIX + "block_table_valid_blocks", RUNTIME_PREFIX + "avg_seq_len", LEGACY_AVG_SEQ_LEN)

#: Counters of the profiler's metric group PipeUtilization.
PIPE_UTILIZATION = (
    "aicore_time(us)",
    "aic_total_cycles",
    "aic_mac_time(us)",
    "aic_mac_ratio",
    "aic_scalar_time(us)",
    "aic_scalar_ratio",
    "aic_mte1_time(us)",
    "aic_mte1_ratio",
    "aic_mte2_time(us)",
    "aic_mte2_ratio",
    "aic_fixpipe_time(us)",
    "aic_fixpipe_ratio",
    "aic_icache_miss_rate",
    "aiv_time(us)",
    "aiv_total_cycles",
    "aiv_vec_time(us)",
    "aiv_vec_ratio",
    "aiv_scalar_time(us)",
    "aiv_scalar_ratio",
    "aiv_mte2_time(us)",
    "aiv_mte2_ratio",
    "aiv_mte3_time(us)",
    "aiv_mte3_ratio",
    "aiv_icache_miss_rate",
    "cube_utilization(%)",
)


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
    return f"{_PROFILING}Average {counter}"


class Status(str, Enum):
    """The result of the last run of a row; an empty cell means that the row never ran."""

    MEASURED = "measured"
    CHECKED = "checked"  # correct, and without a duration, since no kernel runs
    FAILED = "failed"  # raised an error, or returned a wrong result
    INVALID = "invalid"  # no call can be built from the row
    CRASHED = "crashed"  # the device process died
    TIMEOUT = "timeout"
    OOM = "oom"
    DEVICE_ERROR = "device-error"  # the device itself reported an error
    UNSUPPORTED = "unsupported"  # the device does not have the operator
    SKIPPED = "skipped"  # a stated precondition is missing

    def __str__(self) -> str:
        return self.value

    @property
    def expected_to_fail(self) -> bool:
        """Whether the next session marks the row as xfail."""
        return self in _EXPECTED_TO_FAIL

    @property
    def crash(self) -> bool:
        """Whether the device process died, or was killed."""
        return self in (Status.CRASHED, Status.TIMEOUT)

    @classmethod
    def from_cell(cls, cell: str) -> Status | None:
        """Returns the status in a cell; None for an empty cell or an unknown word."""
        try:
            return cls(cell.strip().lower())
        except ValueError:
            return None


_EXPECTED_TO_FAIL = frozenset(
    {Status.FAILED, Status.INVALID, Status.CRASHED, Status.TIMEOUT, Status.OOM, Status.DEVICE_ERROR}
)


def ordered_columns(columns: Iterable[str]) -> list[str]:
    """Returns the columns of a new file, ordered by group; columns of no group precede the columns of OpAtlas."""
    columns = list(dict.fromkeys(columns))
    rank = {name: i for i, name in enumerate((*BASE, AVERAGE, *MESSAGE, DURATION, BANDWIDTH, BUS_BANDWIDTH))}
    groups: list[list[str]] = [[], [], [], [], [], [], []]
    for name in columns:
        if name in rank:
            groups[0].append(name)
        elif name in OWN:
            groups[6].append(name)
        elif name in PROFILING_DURATIONS:
            groups[2].append(name)
        elif name.startswith(_MICROBENCH):
            groups[1].append(name)
        elif name.startswith("Profiling Average "):
            groups[3].append(name)
        elif name.startswith(RUNTIME_PREFIX) or name in (EP_SIZE, *SUITE, *TASK):
            groups[4].append(name)
        else:
            groups[5].append(name)
    groups[0].sort(key=rank.__getitem__)
    groups[6].sort(key=OWN.index)
    return [name for group in groups for name in group]


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
