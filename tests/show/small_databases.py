"""Databases with rows for every page of a site, and with HTML among their names."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from opatlas.theory.model_calls import ModelCall, model_calls
from opatlas.theory.sources import resolve_model
from tests.ask.tables import RUN, product_rows, write_table

#: Would open a dialog where it is read as HTML. No kernel type may have this name: the overview quotes it in a problem.
HOSTILE = "<img src=x onerror=alert(1)>"
#: The name of a kernel type, which means the same once it is read as HTML.
ENTITIES = "&lt;img src=x onerror=alert(1)&gt;"
SIZES = [(m, 256, k) for m in range(1, 71) for k in (512, 1024)]
FAILED, COMPOSED = 3, 5


def small_databases(root: Path) -> Path:
    """Returns a database with implementations, and next to it one with messages of the same device."""
    base = root / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    rows = product_rows(SIZES, [2 + m * k / 1e4 for m, _, k in SIZES])
    rows.loc[: FAILED - 1, ["Average Duration(us)", "Quality"]] = ""
    rows.loc[: FAILED - 1, "Status"] = "failed"
    rows.loc[: FAILED - 1, "Status Reason"] = HOSTILE
    rows.loc[FAILED : FAILED + COMPOSED - 1, "Quality"] = "composition"
    write_table(base, "MatMulV2", rows)
    write_table(base, ENTITIES, product_rows([(1, 2, 3)], [1.0]).assign(Quality=HOSTILE))
    write_table(base, HOSTILE, product_rows([(1, 2, 3)], [1.0]))
    faster = product_rows(SIZES, [(2 + m * k / 1e4) / 2 for m, _, k in SIZES])
    write_table(base / "implementations" / "flashinfer-0.5.3", "MatMulV2", faster)
    messages = pd.DataFrame(
        {
            "message_bytes": [1 << power for power in range(10, 20)],
            "num_devices": "2",
            "dtype": "DT_BF16",
            "topology_tier": "1",
            "Duration(us)": [f"{5 + power}" for power in range(10, 20)],
        }
    )
    write_table(root / "data" / "NVIDIA_H200" / "nccl" / "2.28.9", "hcom_allReduce_", messages)
    return base


def write_step(folder: Path) -> Path:
    """Returns a database with a row for each call of a decode step of Qwen3-0.6B: 64 sequences of 4,096 tokens."""
    rows: dict[str, list[ModelCall]] = {}
    for call in model_calls(resolve_model("Qwen/Qwen3-0.6B"), batch=64, context=4096):
        rows.setdefault(call.kernel_type, []).append(call)
    for kernel_type, calls in rows.items():
        measured = {"Average Duration(us)": "10.0", "Quality": "quiet", "Status": "measured", "Run ID": RUN}
        lines = {call.signature(): {**call.cells, **measured} for call in calls}
        write_table(folder, kernel_type, pd.DataFrame(lines.values()).fillna(""))
    return folder
