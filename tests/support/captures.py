"""Captures for tests, written as profilers write them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

BEFORE = ("Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core")
TIMES = ("Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible")
SLOTS = ("Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats")
COUNTERS = ("aicore_time(us)", "aic_mac_ratio")
KERNEL_DETAILS = (*BEFORE, *TIMES, *SLOTS, "Context ID", *COUNTERS)
LEVEL_0 = (
    "Step Id",
    "Name",
    "Type",
    "Accelerator Core",
    "Start Time(us)",
    "Duration(us)",
    "Wait Time(us)",
    "Block Dim",
)

#: A column of kernel_details by its name in op_summary.
OP_SUMMARY = {
    "Name": "Op Name",
    "Type": "OP Type",
    "Accelerator Core": "Task Type",
    "Start Time(us)": "Task Start Time(us)",
    "Duration(us)": "Task Duration(us)",
    "Wait Time(us)": "Task Wait Time(us)",
    "Block Dim": "Block Num",
    "Mix Block Dim": "Mix Block Num",
}

#: The same in an older generation of headers, which has no device either.
OLDER_OP_SUMMARY = {**OP_SUMMARY, "OP State": "Op State", "Block Dim": "Block Dim", "Mix Block Dim": "Mix Block Dim"}

#: A decoding step of three sequences, queries TND and keys in pages: its slots in a capture, absent ones after them
#: left out, and its record by the recorder of a serving process.
DECODE_SHAPES = ("3,4,128", "99,128,128", "99,128,128", "", "2048,2048", "3", "3", *[""] * 7, "3,16")
DECODE_RECORD = {
    "query_shape": [3, 4, 128],
    "key_shape": [99, 128, 128],
    "value_shape": [99, 128, 128],
    "atten_mask_shape": [2048, 2048],
    "block_table_shape": [3, 16],
    "actual_seq_lengths": [1, 2, 3],
    "actual_seq_lengths_kv": [300, 128, 7],
    "block_table_valid_blocks": [3, 1, 1],
    "num_heads": 4,
    "num_key_value_heads": 1,
    "sparse_mode": 3,
    "input_layout": "TND",
    "block_size": 128,
}

_LAUNCH = {
    "Step Id": "13",
    "Device_id": "0",
    "Model ID": "4294967295",
    "Type": "MatMulV3",
    "OP State": "dynamic",
    "Accelerator Core": "AI_CORE",
    "Start Time(us)": "1764246877073569.640\t",
    "Duration(us)": "10.0",
    "Input Shapes": '"16,32;64,32"',
    "Input Data Types": "DT_BF16;DT_BF16",
    "Input Formats": "ND;ND",
    "Output Shapes": '"16,64"',
    "Output Data Types": "DT_BF16",
    "Output Formats": "ND",
    "Context ID": "N/A",
    "aicore_time(us)": "8.0",
    "aic_mac_ratio": "0.5",
}

#: The cells of the profiler for a collective.
COLLECTIVE = {
    "Type": "hcom_allReduce_",
    "Accelerator Core": "COMMUNICATION",
    **dict.fromkeys((*SLOTS, *COUNTERS), "N/A"),
}


def launch(cells: Mapping[str, str] | None = None, **by_word: str) -> dict[str, str]:
    """One kernel launch: a BF16 matrix product of 10 us, but for `cells`.

    Keywords are column names in short: type, duration, shapes, dtypes, formats, out, out_dtypes,
    out_formats. Shapes get the quotes that profilers put around them.
    """
    short = {
        "type": "Type",
        "duration": "Duration(us)",
        "shapes": "Input Shapes",
        "dtypes": "Input Data Types",
        "formats": "Input Formats",
        "out": "Output Shapes",
        "out_dtypes": "Output Data Types",
        "out_formats": "Output Formats",
    }
    row = {**_LAUNCH, **(cells or {})}
    for word, text in by_word.items():
        row[short[word]] = f'"{text}"' if word in ("shapes", "out") and text != "N/A" else text
    return row


def cells(
    shapes: str = "16,32;64,32", out: str = "16,64", dtype: str = "DT_BF16", formats: str = "", **more: str
) -> dict[str, str]:
    """The slots of a row whose tensors all have one dtype, and the format ND where `formats` does not tell others."""
    count = shapes.count(";") + 1
    return {
        "Input Shapes": shapes,
        "Input Data Types": ";".join([dtype] * count),
        "Input Formats": formats or ";".join(["ND"] * count),
        "Output Shapes": out,
        "Output Data Types": dtype,
        "Output Formats": "ND",
        **more,
    }


def launched(kernel_type: str, us: float, row: dict[str, str] | None = None, **counters: str) -> dict[str, str]:
    """A launch of that row."""
    row = row or cells()
    return launch(
        {"Type": kernel_type, "Duration(us)": str(us), **row, **counters},
        shapes=row["Input Shapes"],
        out=row["Output Shapes"],
    )


def capture_text(launches: Sequence[Mapping[str, str]], columns: Sequence[str] = KERNEL_DETAILS) -> str:
    """A kernel_details file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(column, "0") for column in columns] for row in launches)
    return text.getvalue()


def write_capture(path: Path, launches: Sequence[Mapping[str, str]], columns: Sequence[str] = KERNEL_DETAILS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(capture_text(launches, columns), encoding="utf-8")
    return path


def summary_text(launches: Sequence[Mapping[str, str]], *, older: bool = False) -> str:
    """An op_summary file."""
    columns = [column for column in KERNEL_DETAILS if not (older and column == "Device_id") and column != "Step Id"]
    header, _, rows = capture_text(launches, columns).partition("\n")
    names = OLDER_OP_SUMMARY if older else OP_SUMMARY
    return ",".join(names.get(name, name) for name in header.split(",")) + "\n" + rows


def write_summary(path: Path, launches: Sequence[Mapping[str, str]], *, older: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(summary_text(launches, older=older), encoding="utf-8")
    return path


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
