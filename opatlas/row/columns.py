"""The columns of the CSVs, in their groups. database/README.md says what each means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

OP_STATE = "OP State"
ACCELERATOR_CORE = "Accelerator Core"
INPUT_SHAPES = "Input Shapes"
INPUT_DTYPES = "Input Data Types"
INPUT_FORMATS = "Input Formats"
OUTPUT_SHAPES = "Output Shapes"
OUTPUT_DTYPES = "Output Data Types"
OUTPUT_FORMATS = "Output Formats"
AVERAGE = "Average Duration(us)"
MESSAGE_BYTES = "message_bytes"
NUM_DEVICES = "num_devices"
DTYPE = "dtype"
TOPOLOGY_TIER = "topology_tier"
DURATION = "Duration(us)"
BANDWIDTH = "bandwidth_gbps"
BUS_BANDWIDTH = "bus_bandwidth_gbps"
PROFILING_AVERAGE = "Profiling Average Duration(us)"
PROFILING_MEDIAN = "Profiling Median Duration(us)"
PROFILING_STD = "Profiling Std Duration(us)"
EP_SIZE = "EP Size"
SAMPLE = "Sample"
ARGUMENTS = "Arguments"
FUNCTIONAL = "Functional"
TRACE_COUNT = "Trace Count"
SAMPLE_TORCH = "Sample Torch"
TASK_DIGEST = "Task Digest"
TASK_INPUTS = "Task Inputs"
MICROBENCH_MEDIAN = "MicroBench Median Duration(us)"
MICROBENCH_MIN = "MicroBench Min Duration(us)"
MICROBENCH_STD = "MicroBench Std Duration(us)"
MICROBENCH_SAMPLES = "MicroBench Samples"
MICROBENCH_DEVICE_KERNELS = "MicroBench Device Kernels"
MICROBENCH_HELPER_KERNELS = "MicroBench Helper Kernels"
PROFILING_SAMPLES = "Profiling Samples"
PROFILING_POPULATIONS = "Profiling Populations"
PROFILING_RUN_ID = "Profiling Run ID"
CACHE_STATE = "Cache State"
INSTRUMENT = "Instrument"
QUALITY = "Quality"
QUALITY_REASON = "Quality Reason"
ASSUMPTIONS = "Assumptions"
CHECKED_ELEMENTS = "Checked Elements"
STAND_IN = "Stand-In"
IMPLEMENTATION = "Implementation"
KERNEL_NAMES = "Kernel Names"
SPAN = "Span Median(us)"
OUTPUTS_MISSING = "Outputs Missing"
CONVERSIONS = "Conversions"
MAX_ERROR = "Max Error"
SET_UP = "Set-up Time(s)"
LEVEL = "Level"
ERROR_CLASS = "Error Class"
WITHIN_1E3 = "Within 1e-3"
KERNEL_SHARE = "Kernel Share"
STATUS = "Status"
STATUS_REASON = "Status Reason"
CRASHES_IN_A_ROW = "Crashes In A Row"
STATUS_RUN_ID = "Status Run ID"
RUN_ID = "Run ID"
POOLED_MEDIAN = "Pooled Median Duration(us)"
POOLED_RUNS = "Pooled Runs"
POOLED_MACHINES = "Pooled Machines"
POOLED_SPREAD = "Pooled Machine Spread(%)"
POOLED_RUN_DURATIONS = "Pooled Run Durations(us)"
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


#: The first columns of every compute CSV. A CSV of communication has those of MESSAGE instead.
BASE = (
    *(OP_STATE, ACCELERATOR_CORE, INPUT_SHAPES, INPUT_DTYPES, INPUT_FORMATS),
    *(OUTPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS),
)
MESSAGE = (MESSAGE_BYTES, NUM_DEVICES, DTYPE, TOPOLOGY_TIER)
#: A compute CSV must have these. The other columns of BASE may be missing (older captures).
REQUIRED = (INPUT_SHAPES, INPUT_DTYPES, OUTPUT_SHAPES, OUTPUT_DTYPES)
#: The columns that describe tensor slots, of inputs and of outputs.
INPUT_SLOTS = (INPUT_SHAPES, INPUT_DTYPES, INPUT_FORMATS)
OUTPUT_SLOTS = (OUTPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS)
PROFILING_DURATIONS = (PROFILING_AVERAGE, PROFILING_MEDIAN, PROFILING_STD)
SUITE = (SAMPLE, ARGUMENTS, FUNCTIONAL, TRACE_COUNT, SAMPLE_TORCH)
TASK = (TASK_DIGEST, TASK_INPUTS)
JUDGED = (LEVEL, ERROR_CLASS, WITHIN_1E3, KERNEL_SHARE)
#: How good a replayed duration is, and what ran.
_SAMPLES = (
    *(QUALITY, QUALITY_REASON, ASSUMPTIONS, CHECKED_ELEMENTS, STAND_IN),
    *(IMPLEMENTATION, KERNEL_NAMES, SPAN, OUTPUTS_MISSING, CONVERSIONS, MAX_ERROR, SET_UP),
)
_STATUS = (STATUS, STATUS_REASON, CRASHES_IN_A_ROW, STATUS_RUN_ID)
#: The result of the last run of the row.
STATUS_GROUP = (*_STATUS, *JUDGED)
#: Columns of `combine --pool`: statistics over all runs that measured the row.
POOLED = (POOLED_MEDIAN, POOLED_RUNS, POOLED_MACHINES, POOLED_SPREAD, POOLED_RUN_DURATIONS)
#: Columns that only OpAtlas writes; new files have them at the end.
OWN = (
    *(MICROBENCH_MEDIAN, MICROBENCH_MIN, MICROBENCH_STD, MICROBENCH_SAMPLES),
    *(MICROBENCH_DEVICE_KERNELS, MICROBENCH_HELPER_KERNELS),
    *(PROFILING_SAMPLES, PROFILING_POPULATIONS, PROFILING_RUN_ID, CACHE_STATE, INSTRUMENT),
    *(*_SAMPLES, *JUDGED, *_STATUS, RUN_ID, *POOLED),
)


def _of_runtime(names: str) -> tuple[str, ...]:
    return tuple(RUNTIME_PREFIX + name for name in names.split())


#: Lengths and arguments of attention.
RUNTIME = _of_runtime(
    "source_profile actual_seq_lengths_shape actual_seq_lengths_values actual_seq_lengths_kv_shape "
    "actual_seq_lengths_kv_values avg_seq_len block_table_shape block_table_valid_blocks num_heads num_key_value_heads "
    "sparse_mode input_layout block_size attn_state kv_cache_mode operator_input_shapes_raw metadata_completeness"
)
#: All columns that OpAtlas may write, in their order in a new file; `<counter>` is the name of any counter.
COLUMNS = (
    *(*BASE, AVERAGE, *MESSAGE, DURATION, BANDWIDTH, BUS_BANDWIDTH, _MICROBENCH + _ANY_COUNTER),
    *(*PROFILING_DURATIONS, _PROFILING_AVERAGE + _ANY_COUNTER, EP_SIZE, *RUNTIME, *SUITE, *TASK, *OWN),
)

#: Runtime values that belong to the signature, because they change the work of an attention kernel.
RUNTIME_IN_SIGNATURE = _of_runtime(
    "actual_seq_lengths_values actual_seq_lengths_kv_values num_heads num_key_value_heads sparse_mode input_layout "
    "block_size"
)

#: Runtime values that imply the lengths of the keys where the lengths themselves are empty.
LENGTHS_IN_SIGNATURE = (RUNTIME_PREFIX + "block_table_valid_blocks", RUNTIME_PREFIX + "avg_seq_len", LEGACY_AVG_SEQ_LEN)

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


def microbench_counter(counter: str) -> str:
    """Returns the column of a counter that a replay measured."""
    return f"{_MICROBENCH}{counter}"


def is_microbench_column(column: str) -> bool:
    """Returns whether a column describes a replayed duration: its statistics, how it was measured, its run."""
    return column in (AVERAGE, CACHE_STATE, INSTRUMENT, RUN_ID, *_SAMPLES) or column.startswith(_MICROBENCH)


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
_PIPES = """
aicore_time(us) aic_total_cycles aic_mac_time(us) aic_mac_ratio aic_scalar_time(us) aic_scalar_ratio aic_mte1_time(us)
aic_mte1_ratio aic_mte2_time(us) aic_mte2_ratio aic_fixpipe_time(us) aic_fixpipe_ratio aic_icache_miss_rate
aiv_time(us) aiv_total_cycles aiv_vec_time(us) aiv_vec_ratio aiv_scalar_time(us) aiv_scalar_ratio aiv_mte2_time(us)
aiv_mte2_ratio aiv_mte3_time(us) aiv_mte3_ratio aiv_icache_miss_rate cube_utilization(%)
"""
PIPE_UTILIZATION = tuple(_PIPES.split())
