"""An export of nsys, written after the published schema."""

from __future__ import annotations

import sqlite3
from pathlib import Path

PROCESS, OTHER = 7 << 24, 8 << 24
NAMES = {1: "void gemm<float>(float*)", 2: "gemm", 3: "ncclDevKernel_AllReduce", 4: "aten::relu"}
SIZES = "aten::mm, seq = 12, op_id = 5, sizes = [[8, 16], [16, 4], [[3], [3]]]"
TABLES = {
    "StringIds": ("id, value", list(NAMES.items())),
    "TARGET_INFO_GPU": ("id, name", [(0, "NVIDIA H200")]),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        'start, "end", deviceId, streamId, correlationId, globalPid, shortName, demangledName',
        [
            (2000, 5000, 0, 7, 1, PROCESS, 2, 1),
            (5000, 6000, 0, 7, 2, PROCESS, 2, 1),
            (7000, 11000, 0, 8, 3, PROCESS, 3, 3),
            (12000, 13000, 0, 7, 9, OTHER, 2, 1),
        ],
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        'start, "end", deviceId, streamId, correlationId, globalPid, bytes, copyKind',
        [(11000, 11500, 0, 7, 4, PROCESS, 64, 1)],
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        'start, "end", globalTid, correlationId, nameId',
        [(1000, 1100, PROCESS + 1, 1, 0), (1500, 1600, PROCESS + 1, 2, 0), (6500, 6600, PROCESS + 1, 3, 0)],
    ),
    "NVTX_EVENTS": (
        'start, "end", eventType, globalTid, text, textId',
        [
            (100, 9000, 59, PROCESS + 1, "iteration 3", None),
            (900, 1200, 59, PROCESS + 1, "aten::linear, seq = 11, op_id = 4", None),
            (950, 1190, 59, PROCESS + 1, SIZES, None),
            (1400, 1700, 59, PROCESS + 1, None, 4),
            (1450, 1460, 59, PROCESS + 1, "aten::empty", None),
            (900, 2000, 59, PROCESS + 2, "aten::other", None),
        ],
    ),
}


def write_export(path: Path) -> Path:
    """Writes the export of one process on a GPU: four kernels and a copy, with ranges of operators."""
    with sqlite3.connect(path) as database:
        for table, (columns, rows) in TABLES.items():
            database.execute(f"CREATE TABLE {table} ({columns})")
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    database.close()
    return path
