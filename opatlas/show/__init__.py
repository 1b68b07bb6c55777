"""What a command or a session found, and how it is shown: on a terminal, as Markdown, as CSV, as JSON.

row_summary.py      the numbers of rows as text and tables; rows whose replayed and captured durations differ
compared.py         the tables of a comparison
site/               the pages of `opatlas report`
"""

from opatlas.show.output import Format, print_error, print_note, print_problems, print_result
from opatlas.show.result import Column, Fields, Result, Table

__all__ = [
    "Column",
    "Fields",
    "Format",
    "Result",
    "Table",
    "print_error",
    "print_note",
    "print_problems",
    "print_result",
]
