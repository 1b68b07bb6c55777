"""`python -m opatlas.cli.trace_to_csv`: a Chrome trace as a table."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from opatlas.capture.traces import TableWriter, TraceCounts, TruncatedTraceError, read_events
from opatlas.cli.app import run_tool
from opatlas.data.csv_files import write_atomically
from opatlas.errors import OpAtlasError, usage_errors
from opatlas.files import open_stream, size_mb
from opatlas.progress import progress
from opatlas.show.result import Fields, Result


def trace_to_csv(*, trace: Path, output: Path | None = None) -> Result:
    """Flattens a Chrome trace into CSV: a row for each complete event, a column for each arg.

    Traces of torch.profiler and torch_npu.profiler (trace_view.json) of any size are read, packed by gzip or not. The
    columns: op_name, kernel_type (an arg, or the last word of a name such as aclnnAdd_AddAiCore_Add), dur_us, shapes
    (136,7168;7168,3584), ts_us, pid, tid, category, then the args.

    Exit status: 0 every complete event is in; 1 something was left out because of an error (a trace that was cut off
    keeps what is there), or the table cannot be written; 2 wrong usage.

    Args:
        trace: the trace: .json or .json.gz.
        output: the table (default: beside the trace, with the ending .csv).
    """
    output = output or trace.with_name(f"{trace.name.removesuffix('.gz').removesuffix('.json')}.csv")
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
                with (
                    progress("read, MB", total_mb) as advance,
                    open_stream(trace, lambda size: advance(size / 1e6)) as file,
                ):
                    writer.add(read_events(trace, file))
            except TruncatedTraceError as error:
                problems.append(str(error))
            writer.finish(target)

    write_atomically(output, write)
    problems += [f"{trace}: {problem}" for problem in account.malformed]
    if more := account.malformed_count - len(account.malformed):
        problems.append(f"{trace}: {more:,} more malformed events")
    counts = Fields(
        {
            "rows": account.rows,
            "columns": len(account.columns),
            "other events": account.other.total(),
            **{f"phase {phase}": count for phase, count in account.other.most_common(6)},
        }
    )
    return Result([counts, Fields({"table": str(output)})], problems=problems)


if __name__ == "__main__":
    sys.exit(run_tool(trace_to_csv, "python -m opatlas.cli.trace_to_csv"))
