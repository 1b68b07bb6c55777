"""Tables of pandas, written as OpAtlas writes CSVs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from opatlas.data.csv_files import text_column, write_table
from opatlas.data.database import Database
from opatlas.row.table import RowTable


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Writes text cells."""
    names = [str(name) for name in frame.columns]
    columns = [text_column(name, frame.iloc[:, at].tolist(), path) for at, name in enumerate(names)]
    write_table(pa.Table.from_arrays(columns, names=names), path)


def rewrite(database: Database, table: RowTable) -> None:
    """Writes the table of pandas of a table, whose cells a test has changed."""
    database.write(RowTable(table.kernel_type, table.path, table.frame))
