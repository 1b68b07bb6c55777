"""Databases of Ascend's profilers, written after the published schema from the rows of a kernel_details."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from captures import KERNEL_DETAILS, SLOTS

_TASK = (
    "startNs, endNs, deviceId, connectionId, globalTaskId, globalPid, taskType, contextId, streamId, taskId, modelId"
)
_COMPUTE = (
    "name, globalTaskId, blockNum, mixBlockNum, taskType, opType, inputShapes, inputDataTypes, inputFormats, "
    "outputShapes, outputDataTypes, outputFormats, attrInfo, opState, hf32Eligible"
)
_COUNTERS = {"aicore_time(us)": "aic_total_time", "aiv_time(us)": "aiv_total_time"}


def write_database(path: Path, launches: Sequence[Mapping[str, str]], columns: Sequence[str] = KERNEL_DETAILS) -> Path:
    """Writes the database of a profile whose kernel_details has these launches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids: dict[str, int] = {}
    tasks, computed, values, messages = [], [], [], []

    def text(cell: str) -> int | None:
        return None if cell == "N/A" else ids.setdefault(cell, len(ids) + 1)

    steps: dict[str, int] = {}
    for number, row in enumerate(launches):
        whole, _, fraction = row["Start Time(us)"].strip().partition(".")
        start = int(whole) * 1000 + int((fraction + "000")[:3])
        end = start + round(float(row["Duration(us)"]) * 1000)
        if "Step Id" in columns:
            steps.setdefault(row["Step Id"], start)
        device = int(row.get("Device_id", "0"))
        if row["Input Shapes"] == "N/A" and row["Accelerator Core"] in ("HCCL", "COMMUNICATION"):
            messages.append((text(row.get("Name", "")), text(row["Type"]), start, end, device, number))
            continue
        # Not the order of time, and one more event of the device.
        tasks.insert(0, (start, end, device, number, number, 1, 1, 0, row.get("Stream ID", "0"), number, 0))
        tasks.append((start, end, device, number, 10**6 + number, 1, 2, 0, 7, number, 0))
        slots = [text(row[name]) for name in SLOTS]
        kernel = (text(row.get("Name", "")), number, row.get("Block Dim", "0"), row.get("Mix Block Dim", "0"))
        state = text(row.get("OP State", "N/A"))
        computed.append((*kernel, text(row["Accelerator Core"]), text(row["Type"]), *slots, 0, state, 0))
        for name in columns[columns.index("Context ID") + 1 :]:
            if row.get(name, "N/A") not in ("", "N/A") and name != "cube_utilization(%)":
                is_time = name.endswith("(us)")
                own = _COUNTERS.get(name, name.removesuffix("(us)"))
                values.append((number, text(own), float(row[name]) * (1000 if is_time else 1)))
    with sqlite3.connect(path) as database:
        for table, names, rows in (
            ("TASK", _TASK, tasks),
            ("COMPUTE_TASK_INFO", _COMPUTE, computed),
            ("TASK_PMU_INFO", "globalTaskId, name, value", values),
            ("COMMUNICATION_OP", "opName, opType, startNs, endNs, deviceId, connectionId", messages),
            ("STEP_TIME", "id, startNs, endNs", [(int(step), at, at + 1) for step, at in steps.items()]),
            ("STRING_IDS", "id, value", [(number, cell) for cell, number in ids.items()]),
        ):
            database.execute(f"CREATE TABLE {table} ({names})")
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names.split(',')))})", rows)
    database.close()
    return path
