"""Small databases: products with chosen durations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from opatlas.theory.model_calls import model_calls
from opatlas.theory.model_step import ModelCall
from opatlas.theory.sources import resolve_model

RUN = "20260101T000000-aaaaaa"


def product_rows(sizes: Sequence[tuple[int, int, int]], us: Sequence[float]) -> pd.DataFrame:
    """Returns rows of products of BF16, by M, N and K, with quiet samples."""
    rows: pd.DataFrame = pd.DataFrame(
        {
            "Input Shapes": [f"{m},{k};{n},{k}" for m, n, k in sizes],
            "Input Data Types": "DT_BF16;DT_BF16",
            "Input Formats": "ND;ND",
            "Output Shapes": [f"{m},{n}" for m, n, _ in sizes],
            "Output Data Types": "DT_BF16",
            "Output Formats": "ND",
            "Average Duration(us)": [f"{each:.4f}" for each in us],
            "MicroBench Std Duration(us)": [f"{each * 0.01:.4f}" for each in us],
            "MicroBench Samples": "25",
            "Quality": "quiet",
            "Status": "measured",
            "Run ID": RUN,
        }
    )
    return rows


def write_table(folder: Path, kernel_type: str, rows: pd.DataFrame) -> None:
    """Writes the CSV of a kernel type."""
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(folder / f"{kernel_type}.csv", index=False)


def attention(length: int) -> list[ModelCall]:
    """Returns the calls of a prompt, whose attention depends on its length."""
    return model_calls(resolve_model("Qwen/Qwen3-32B"), tp=2, batch=1, context=length, phase="prefill")
