"""Three rows of plain kernels for probes to measure, and texts for their outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from opatlas import formats
from opatlas.outer.doctor.probe import Fact
from opatlas.row.columns import INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS, OUTPUT_SHAPES
from opatlas.row.quality import relative_noise, typical_mean
from opatlas.row.status import Status
from opatlas.run.job import Job, RowOutcome
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.run.msprof.pending import KEPT

#: Samples of each row.
SAMPLES = 3
_ROW_S = 60.0


def _row(inputs: str, dtype: str, output: str) -> Mapping[str, str]:
    slots = inputs.count(";") + 1
    return {
        INPUT_SHAPES: inputs,
        INPUT_DTYPES: ";".join([dtype] * slots),
        INPUT_FORMATS: ";".join(["ND"] * slots),
        OUTPUT_SHAPES: output,
        OUTPUT_DTYPES: dtype,
        OUTPUT_FORMATS: "ND",
    }


#: By kernel type, a row for each way in which kernels compute: element by element, along an axis, a matrix product.
ROWS: Mapping[str, Mapping[str, str]] = {
    "Add": _row("16,64;16,64", "FLOAT", "16,64"),
    "SoftmaxV2": _row("16,256", "FLOAT", "16,256"),
    "MatMulV2": _row("64,128;128,64", "FLOAT16", "64,64"),
}


def job_of(kernel_type: str) -> Job:
    """Returns a new job that replays the row of a kernel type of ROWS."""
    function = replays_of_bench()[kernel_type]
    return Job(function.__module__, "", function.__name__, kernel_type, ROWS[kernel_type], _ROW_S)


def not_measured(outcomes: Mapping[str, RowOutcome]) -> list[str]:
    """Returns why rows have no duration: `Add, SoftmaxV2: crashed: ...`; `outcomes` are by kernel type."""
    types: dict[str, list[str]] = defaultdict(list)
    for kernel_type, outcome in outcomes.items():
        if outcome.status is not Status.MEASURED:
            types[f"{outcome.status}: {reason_of(outcome)}"].append(kernel_type)
    return [f"{', '.join(names)}: {fate}" for fate, names in types.items()]


def reason_of(outcome: RowOutcome) -> str:
    """Returns the reason of an outcome without the folder of its profile, which a probe removes."""
    return outcome.reason.partition(KEPT)[0]


def tracebacks(outcomes: Mapping[str, RowOutcome]) -> Fact:
    """Returns the tracebacks of rows that failed, by kernel type, for the report."""
    return {kernel_type: outcome.detail for kernel_type, outcome in outcomes.items() if outcome.detail}


def durations(outcomes: Mapping[str, RowOutcome]) -> str:
    """Returns `Add 1.90 us ±5.3 %, MatMulV2 (ran as MatMulV3) 3.10 us ±6.5 %`: means and noise of samples."""
    return ", ".join(
        f"{kernel_type}{f' (ran as {measured.ran_as.kernel_type})' if measured.ran_as else ''} "
        f"{formats.duration(typical_mean(measured.samples_us))} {formats.noise(relative_noise(measured.samples_us))}"
        for kernel_type, outcome in outcomes.items()
        if (measured := outcome.measurement) is not None
    )
