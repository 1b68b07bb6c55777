"""Flattens a Chrome trace into CSV: a row for each complete event, a column for each arg.

Traces of torch.profiler and torch_npu.profiler (trace_view.json) of any size are read, packed by gzip or not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from opatlas.capture.traces import TableWriter, TraceCounts, TruncatedTraceError, read_events
from opatlas.cli.main import run_tool
from opatlas.errors import OpAtlasError, usage_errors
from opatlas.files import open_stream, size_mb
from opatlas.progress import Progress
from opatlas.store.csv_files import write_atomically
from opatlas.text import count_lines, print_problems, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "columns: op_name, kernel_type (an arg, or the last word of a name such as aclnnAdd_AddAiCore_Add), dur_us, "
        "shapes (136,7168;7168,3584), ts_us, pid, tid, category, then the args. "
        "exit status: 0 every complete event is in; 1 something was left out because of an error (a trace that "
        "was cut off keeps what is there), or the table cannot be written; 2 nothing was done: wrong usage"
    )
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="the trace: .json or .json.gz")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the table (default: beside the trace, with the ending .csv)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Flattens a trace and returns the exit status that the help explains. Raises OpAtlasError."""
    trace: Path = arguments.trace
    output: Path = arguments.output or _beside(trace)
    with usage_errors():
        total_mb = size_mb(trace)
        if output.exists() and output.samefile(trace):
            raise OpAtlasError(f"{output}: is the trace itself: name another file with --output")
        if output.is_dir():
            raise OpAtlasError(f"{output}: is a folder: name a file in it with --output")
        if not output.parent.is_dir():
            raise OpAtlasError(f"{output}: there is no folder {output.parent}: make it")
    problems: list[str] = []
    account = TraceCounts()

    def write(temporary: str) -> None:
        nonlocal account
        # Beside the table, where there is most likely room.
        with tempfile.TemporaryFile(dir=output.parent) as scratch, open(temporary, "wb") as target:
            writer = TableWriter(scratch)
            account = writer.account
            try:
                _read(trace, total_mb, writer)
            except TruncatedTraceError as error:
                problems.append(str(error))
            writer.finish(target)

    write_atomically(output, write)
    show(_summary(output, account))
    malformed = [f"{trace}: {problem}" for problem in account.malformed]
    print_problems(malformed, total=account.malformed_count, what="malformed events")
    print_problems(problems)
    return 1 if malformed or problems else 0


def _beside(trace: Path) -> Path:
    stem = trace.name.removesuffix(".gz")
    return trace.with_name(f"{stem.removesuffix('.json')}.csv")


def _read(trace: Path, total_mb: float, writer: TableWriter) -> None:
    with Progress(total_mb, "MB", label="read") as progress:

        def on_bytes(size: int) -> None:
            progress.advance(size / 1e6, f"{writer.account.rows:,} events")

        with open_stream(trace, on_bytes) as file:
            writer.add(read_events(trace, file))


def _summary(output: Path, account: TraceCounts) -> str:
    phases = ", ".join(f"{count:,} {phase}" for phase, count in account.other.most_common(6))
    counts = [
        ("rows", account.rows, "complete events (ph X)"),
        ("columns", len(account.columns), ""),
        ("other events", account.other.total(), f"by phase: {phases}" if phases else ""),
    ]
    return "\n".join([*count_lines(counts), "", "table:", f"  {output}"])


if __name__ == "__main__":
    sys.exit(run_tool("opatlas.cli.trace_to_csv"))
