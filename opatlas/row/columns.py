"""The columns of the CSVs, in their groups, and the values of the Status column (database/README.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """The groups of columns, in their order in a new file; columns of no group precede REPLAYED."""

    SLOTS = "the tensors of the row"
    MEAN = "the duration of a replay"
    MESSAGE = "the message of a collective"
    TRANSFER = "the duration of a message"
    COUNTERS = "counters of a replay"
    CAPTURED = "the durations of captures"
    CAPTURED_COUNTERS = "counters of captures"
    EXPERTS = "the group of devices"
    RUNTIME = "lengths of attention"
    SUITE = "the call of a suite"
    TASK = "the task"
    STEP = "the step of a model"
    REPLAYED = "the samples of a replay"
    LAUNCHES = "the launches of captures"
    CONDITIONS = "how a replay measured"
    QUALITY = "how good a replay is"
    EXECUTION = "what a replay ran"
    COMPARED = "a replay against the baseline"
    JUDGED = "the judgement of a candidate"
    STATUS = "the result of the last run"
    RUN = "the run of a replay"
    POOLED = "all runs together"


#: The meaning of each column; database/README.md prints it.
_MEANINGS: Mapping[ColumnGroup, Mapping[str, str]] = {
    ColumnGroup.SLOTS: {
        "OP State": "dynamic or static, from the profiler; may be missing",
        "Accelerator Core": "AI_CORE, AI_VECTOR_CORE, MIX_AIC, ...; may be missing",
        "Input Shapes": "[slots](#slots); required",
        "Input Data Types": "one for each slot; required",
        "Input Formats": "one for each slot; may be missing",
        "Output Shapes": "as for inputs; required",
        "Output Data Types": "as for inputs; required",
        "Output Formats": "as for inputs; may be missing",
    },
    ColumnGroup.MEAN: {
        "Average Duration(us)": "mean of the samples without [outliers](../docs/measurement.md#how-good-a-duration-is);"
        " the databases that ship have the mean of all samples",
    },
    ColumnGroup.MESSAGE: {
        "message_bytes": "all_reduce: the tensor of each device; all_gather: the chunk that each device gives; "
        "reduce_scatter: the chunk that each device keeps; all_to_all: all that one device sends; broadcast: the "
        "tensor of the first device",
        "num_devices": "number of devices in the group",
        "dtype": "DT_BF16, ...",
        "topology_tier": "the outermost level that links the devices: 0 inter_pod, 1 intra_pod, 2 die_level",
    },
    ColumnGroup.TRANSFER: {
        "Duration(us)": "median of the slowest device; other tools may write `Average Duration(us)`",
        "bandwidth_gbps": "message_bytes divided by the duration, in 10^9 bytes/s",
        "bus_bandwidth_gbps": "what the busiest link carries at least, in 10^9 bytes/s",
    },
    ColumnGroup.COUNTERS: {"MicroBench <counter>": "mean of a hardware counter over the samples"},
    ColumnGroup.CAPTURED: {
        "Profiling Average Duration(us)": "mean of the launches in the captures",
        "Profiling Median Duration(us)": "median of the launches",
        "Profiling Std Duration(us)": "standard deviation of the launches; empty for one launch",
    },
    ColumnGroup.CAPTURED_COUNTERS: {"Profiling Average <counter>": "mean of a hardware counter over the launches"},
    ColumnGroup.EXPERTS: {
        "EP Size": "number of devices that share the experts of a layer",
        "Expert Load": "how many rows of a grouped product each expert has: empty for equally many, `random`, "
        "`power law 1.2`, or their numbers, `12,0,5`",
    },
    ColumnGroup.RUNTIME: {
        "Runtime source_profile": "the captures of the row, and the files beside them; `theory` of a theory row",
        "Runtime actual_seq_lengths_shape": "shape of input slot 5",
        "Runtime actual_seq_lengths_values": "the values of slot 5, separated by commas",
        "Runtime actual_seq_lengths_kv_shape": "shape of input slot 6",
        "Runtime actual_seq_lengths_kv_values": "the values of slot 6",
        "Runtime avg_seq_len": "mean length of the sequences of keys",
        "Runtime block_table_shape": "shape of input slot 14",
        "Runtime block_table_valid_blocks": "number of blocks in each row of the block table",
        "Runtime num_heads": "heads of queries",
        "Runtime num_key_value_heads": "heads of keys and values",
        "Runtime sparse_mode": "the operator's argument",
        "Runtime input_layout": "TND, BSND, BNSD, ...",
        "Runtime block_size": "tokens in a block of the cache",
        "Runtime attn_state": "state of the step; only other tools write it",
        "Runtime kv_cache_mode": "state of the cache; only other tools write it",
        "Runtime operator_input_shapes_raw": "shapes of the operator; only other tools write them",
        "Runtime metadata_completeness": "`none`, `shapes-only`, `partial` or `complete`; `mean-lengths`: of a step; "
        "`no-lengths`: not replayed",
    },
    ColumnGroup.SUITE: {
        "Sample": "in a [suite](../docs/candidates.md#suites): torch's sample, with the digest of its arguments",
        "Arguments": "of such a row: the text of the arguments",
        "Functional": "of such a row: the operator of which the row's is a variant",
        "Trace Count": "of such a row: how often models make the call",
        "Sample Torch": "of such a row: the torch that listed it",
    },
    ColumnGroup.TASK: {
        "Task Digest": "in a [task](../docs/candidates.md): the digest of its file; another file is another row",
        "Task Inputs": "which inputs of the task the row has, from 0; a task with `get_inputs_dyn_list` has several",
    },
    ColumnGroup.STEP: {
        "Step": "of a [measured step](../docs/steps.md#measured-steps): model and sequences, as in `--step`",
        "Step Layers": "of such a row: the layers that were built: `4`, or `1 dense + 3 moe`",
        "Step Launch": "of such a row: `graph`, or `eager`",
        "Step Stack": "of such a row: the implementations besides the default, with the kernel types that they run",
    },
    ColumnGroup.REPLAYED: {
        "MicroBench Median Duration(us)": "median of all samples",
        "MicroBench Min Duration(us)": "minimum of all samples",
        "MicroBench Std Duration(us)": "standard deviation of all samples; empty for one sample",
        "MicroBench Samples": "number of all samples, outliers included",
        "MicroBench Device Kernels": "number of device kernels of a call; empty if unknown. On a GPU their durations "
        "are added; on an NPU the duration is that of the row's kernel",
        "MicroBench Helper Kernels": "[other kernels](../docs/npu.md#which-kernels-are-whose-samples) of a call",
    },
    ColumnGroup.LAUNCHES: {
        "Profiling Samples": "number of launches",
        "Profiling Populations": "sizes and medians of two modes, whose mean describes neither",
        "Profiling Run ID": "the [ingests](../docs/captures.md) of the launches, separated by `;`",
        "Profiling Kernel Names": "of a GPU: the device kernels of a call in order, at most five and their number; "
        "different ones separated by ` | `",
        "Profiling Source": "of a GPU: `eager`, `CUDA graph`, or both",
    },
    ColumnGroup.CONDITIONS: {
        "Cache State": "cold: the last-level cache was flushed before each sample; warm; unknown of a foreign profile",
        "Instrument": "the instrument ([measurement](../docs/measurement.md#instruments))",
    },
    ColumnGroup.QUALITY: {
        "Quality": "[how good](../docs/measurement.md#how-good-a-duration-is) the samples are: quiet, noisy, ...",
        "Quality Reason": "the reason, with numbers, and how many samples are outliers",
        "Assumptions": "values that the row does not state and the replay assumed, separated by `; `",
        "Checked Elements": "output elements that were compared with the formula, and all: `4096/1048576`",
        "Stand-In": "what was timed [instead of the kernel](../docs/measurement.md#stand-ins); empty for the kernel",
    },
    ColumnGroup.EXECUTION: {
        "Implementation": "name and version of what was [timed](../docs/implementations.md), or the call of an NPU",
        "Kernel Names": "the device kernels of a call in order, at most five and their number; empty if unknown",
        "Span Median(us)": "median time from the start of the first to the end of the last device kernel of a call",
        "Outputs Missing": "output slots of the row that the implementation does not compute, separated by `; `",
        "Conversions": "inputs and results that were converted outside the measured time, separated by `; `",
        "Max Error": "largest error of a checked element as a share of its tolerance; 1 is the limit",
        "Set-up Time(s)": "seconds of set-up and first call, compilation included; empty for torch itself",
    },
    ColumnGroup.COMPARED: {
        "Speed-up": "duration of the baseline / the row's, both sampled [in turn](../docs/compare.md#rounds); of "
        "several processes the one nearer to 1",
        "Speed-up Low": "lower end of the interval of 99.7 %, of all processes; the least ratio of fewer than ten "
        "rounds",
        "Speed-up High": "upper end of the interval, or the largest ratio",
        "Speed-up Rounds": "number of rounds in each process: `40;40`",
        "Speed-up Against": "the baseline, as in its `Implementation`",
        "Control Ratio": "duration of the baseline / that of the baseline called once more, in the same rounds",
    },
    ColumnGroup.JUDGED: {
        "Level": "of a [candidate](../docs/candidates.md): the highest level that the last run passed, `L0` to `L4`",
        "Error Class": "of such a row: `pass`, or the class and sub-class of the error (`mismatch/nan`)",
        "Within 1e-3": "of such a row: `yes` if all elements differ from the reference by less than 1e-3, else `no`",
        "Kernel Share": "of such a row: the share of the duration in kernels of the candidate",
    },
    ColumnGroup.STATUS: {
        "Status": "the result of the last run, see below; empty if the row never ran",
        "Status Reason": "the reason, in a line; for a measured row a remark about the duration (`ran as Add`)",
        "Crashes In A Row": "number of consecutive crashes and timeouts; after two it runs only with `--runxfail`",
        "Status Run ID": "the run of the status, as in `Run ID`",
    },
    ColumnGroup.RUN: {"Run ID": "the run of the duration: start in UTC and six digits; names the manifest"},
    ColumnGroup.POOLED: {
        "Pooled Median Duration(us)": "median over runs of each run's median",
        "Pooled Runs": "number of runs",
        "Pooled Machines": "number of machines: GPUs by serial number, other devices by host name",
        "Pooled Machine Spread(%)": "largest minus smallest median of a machine, in percent of the pooled median",
        "Pooled Run Durations(us)": "the run id and the median of each run: `20261121T120000-aaaaaa 10.0000; ...`",
    },
}


@dataclass(frozen=True, slots=True)
class RowColumn:
    """A column.

    Attributes:
        name: the name; `<counter>` in it is the name of any counter.
        meaning: what its cells say, in Markdown.
        group: the group, which is its place in a new file.
    """

    name: str
    meaning: str
    group: ColumnGroup


#: All columns that OpAtlas may write, in their order in a new file.
COLUMNS = tuple(RowColumn(name, text, group) for group, columns in _MEANINGS.items() for name, text in columns.items())


def columns_of(*groups: ColumnGroup) -> tuple[str, ...]:
    """Returns the names of the columns of some groups, in their order in a new file."""
    return tuple(column.name for column in COLUMNS if column.group in groups)


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
_REPLAYED = columns_of(ColumnGroup.REPLAYED)
MICROBENCH_MEDIAN, MICROBENCH_MIN, MICROBENCH_STD, MICROBENCH_SAMPLES = _REPLAYED[:4]
MICROBENCH_DEVICE_KERNELS, MICROBENCH_HELPER_KERNELS = _REPLAYED[4:]
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
OWN = columns_of(*list(ColumnGroup)[list(ColumnGroup).index(ColumnGroup.REPLAYED) :])

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

#: Runtime values that imply the lengths of the keys where the lengths themselves are empty.
LENGTHS_IN_SIGNATURE = (RUNTIME_PREFIX + "block_table_valid_blocks", RUNTIME_PREFIX + "avg_seq_len", LEGACY_AVG_SEQ_LEN)

#: Columns besides those of the tensors that belong to the signature of some kernel types.
EXTRA_IN_SIGNATURE = (*RUNTIME_IN_SIGNATURE, *LENGTHS_IN_SIGNATURE, *EXPERTS)

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

#: Kernels with a matrix for each expert, whose rows may have an Expert Load.
GROUPED = ("GroupedMatmul", "GroupedMatmulSwigluQuant")

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


_ORDER = {column.name: number for number, column in enumerate(COLUMNS)}


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
