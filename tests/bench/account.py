"""The outcomes of the rows of real captures: each is replayed once, on the CPU, in this process.

    python -m tests.bench.account [--max-bytes N] [--output FILE.jsonl] [--threads N] [--only WORD]

Prints for each source and kernel type how many rows were measured, refused and why, and for each source the share of
its device time. With --output
each row's fate is written as soon as it is known, and a further run with the same file goes on there
(and tries those that failed again).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from opatlas.row.communication import is_communication
from opatlas.row.errors import ReplayError
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.kernel_facts import WITHOUT_REPLAY, replays_of_bench
from opatlas.run.runner import Runner
from tests.bench.real_rows import RealRow, sources
from tests.bench.replaying import replay_functions

MEASURED, REFUSED, TOO_LARGE, FAILED = "measured", "refused", "too large", "failed"
NO_REPLAY, NOT_RECORDED, UNKNOWN = "no replay", "not recorded", "unknown"
FATES = (MEASURED, REFUSED, TOO_LARGE, NO_REPLAY, NOT_RECORDED, FAILED, UNKNOWN)

_NO_SHAPES = "no input shapes"
#: Of a message that names a cell, the cell.
_CELL = re.compile(r"^column '[^']*' is ('.*?'|\".*?\"): ", re.DOTALL)


@dataclass(frozen=True)
class Fate:
    """The outcome of a distinct row.

    Attributes:
        fate: one of FATES.
        reason: why it was not measured.
        bytes: of its tensors; 0 where its slots leave it open.
        seconds: that the replay took, with its check.
    """

    source: str
    kernel_type: str
    signature: str
    times: int
    fate: str
    reason: str = ""
    bytes: int = 0
    seconds: float = 0.0


def reason_for_no_replay(kernel_type: str) -> str | None:
    """Why rows of a kernel type are not replayed; "" if they are, None if nothing is known of the type."""
    if not kernel_type:
        return "the profiler did not record the kernel type"
    return "" if kernel_type in replays_of_bench() else WITHOUT_REPLAY.get(kernel_type)


def bytes_of(row: RealRow) -> int:
    """Of all tensors of a row; 0 where its slots leave it open, and the replay has to say so."""
    try:
        return ReplayRow(row.kernel_type, row.cells, torch.device("cpu")).bytes()
    except ReplayError:
        return 0


def fate_of(row: RealRow, max_bytes: int, runner: Runner) -> Fate:
    """Replays a row, unless it is too large."""
    why_not, size = reason_for_no_replay(row.kernel_type), bytes_of(row)

    def fate(word: str, reason: str = "", seconds: float = 0.0) -> Fate:
        return Fate(row.source, row.kernel_type, row.signature, row.times, word, reason, size, round(seconds, 3))

    if why_not is None:
        return fate(UNKNOWN, "neither a replay nor a reason for none")
    if why_not:
        return fate(NO_REPLAY, why_not)
    if size > max_bytes:
        return fate(TOO_LARGE, f"more than {max_bytes / 1e6:g} MB")
    module, _, name = _functions()[row.kernel_type].rpartition(".")
    start = time.monotonic()
    outcome = runner.run(Job(module, "", name, row.kernel_type, row.cells, timeout_s=600))
    seconds = time.monotonic() - start
    if outcome.status is Status.MEASURED:
        return fate(MEASURED, seconds=seconds)
    if outcome.status in (Status.INVALID, Status.UNSUPPORTED):
        return fate(REFUSED, outcome.reason, seconds)
    return fate(FAILED, f"{outcome.status}: {outcome.reason}", seconds)


def unrecorded_fates() -> list[Fate]:
    """Of the rows without shapes."""
    return [
        Fate(
            source.name, kernel_type or "(none)", "", times, UNKNOWN if why is None else NOT_RECORDED, why or _NO_SHAPES
        )
        for source in sources()
        for kernel_type, times in source.unrecorded.items()
        for why in [reason_for_no_replay(kernel_type)]
    ]


def problem_of(reason: str) -> str:
    """A reason without the cell and the numbers of its row: the same for all reasons of a kind."""
    text = _CELL.sub("", reason)
    return re.sub(r"\((?:#(?:, ?)?)+\)", "(...)", re.sub(r"\d+", "#", text))


def table(fates: Iterable[Fate]) -> str:
    """Markdown: a line for each source and kernel type, then the reasons."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    reasons: dict[tuple[str, str, str], list[Fate]] = defaultdict(list)
    for fate in fates:
        key = (fate.source, fate.kernel_type)
        counts[key][fate.fate] += 1
        counts[key]["rows"] += fate.times
        if fate.fate not in (MEASURED, TOO_LARGE):
            reasons[fate.kernel_type, fate.fate, problem_of(fate.reason)].append(fate)
    total: Counter[str] = sum(counts.values(), Counter())
    lines = [("source", "kernel type", "rows", *FATES), ("---",) * (3 + len(FATES))]
    for (source, kernel_type), of_key in [*sorted(counts.items()), (("all", ""), total)]:
        lines.append((source, kernel_type, str(of_key["rows"]), *(str(of_key[word] or "") for word in FATES)))
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    text += "\nColumns after `rows` count distinct rows. Why rows were not measured:\n\n"
    for (kernel_type, word, problem), group in sorted(reasons.items()):
        text += f"- {kernel_type}, {word}, {len(group)} (of {sum(fate.times for fate in group)} rows): {problem}\n"
    return text


def coverage(fates: Iterable[Fate]) -> str:
    """Markdown: the device time of each capture by outcome, in milliseconds.

    Replays of `bench/` do not cover the time of collectives, and rows without shapes (MemSet, which other kernels
    bring along) describe no call: `covered` is the share of the rest that was measured, or is too large for this run.
    Rows that were not asked for (`--only`) are left out, and count as not covered.
    """
    word_of = {_key(fate): fate.fate for fate in fates}
    columns = ("collectives", "not recorded", MEASURED, TOO_LARGE, REFUSED, NO_REPLAY, FAILED, UNKNOWN, "left out")
    lines = [("source", "device time", *columns, "covered"), ("---",) * (len(columns) + 3)]
    for source in sources():
        spent: Counter[str] = Counter()
        for row in source.rows:
            word = "collectives" if is_communication(row.kernel_type) else word_of.get(_key(row), "left out")
            spent[word] += row.time_us
        for kernel_type, time_us in source.unrecorded_us.items():
            spent["collectives" if is_communication(kernel_type) else "not recorded"] += time_us
        described = sum(spent[word] for word in columns[2:])
        if described > spent["left out"]:
            covered = (spent[MEASURED] + spent[TOO_LARGE]) / described
            cells = [f"{spent[word] / 1e3:.3f}" if spent[word] else "" for word in columns]
            lines.append((source.name, f"{sum(spent.values()) / 1e3:.3f}", *cells, f"{100 * covered:.1f} %"))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--max-bytes", type=float, default=4e9, metavar="N", help="of a row's tensors; larger rows are counted only"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.jsonl", help="where each row's fate goes, and is read from"
    )
    parser.add_argument("--threads", type=int, default=1, help="more are slower where others compute too (default: 1)")
    parser.add_argument("--only", default="", metavar="WORD", help="sources or kernel types with this in their name")
    arguments = parser.parse_args(words)
    rows = [row for source in sources() for row in source.rows if arguments.only in f"{row.source} {row.kernel_type}"]
    if not rows:
        print("no real rows next to the checkout (shared/data), or none of that name", file=sys.stderr)
        return 1
    known = {} if arguments.output is None else _read(arguments.output)
    # Small ones first: most rows are known soon.
    rows.sort(key=bytes_of)
    left = [row for row in rows if not _is_known(known.get(_key(row)), arguments.max_bytes)]
    work = sum(map(bytes_of, left)) + len(left)
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm", threads=arguments.threads))
    start, done = time.monotonic(), 0
    for number, row in enumerate(left, 1):
        fate = fate_of(row, int(arguments.max_bytes), runner)
        known[_key(row)] = fate
        if arguments.output is not None:
            with arguments.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(fate)) + "\n")
        done += bytes_of(row) + 1
        if sys.stderr.isatty() or number % 100 == 0 or fate.seconds > 10 or fate.fate == FAILED:
            passed = time.monotonic() - start
            print(
                f"{number} of {len(left)} rows, {number / passed:.1f}/s, {done / passed / 1e6:.0f} MB/s, "
                f"{passed * (work - done) / done:.0f} s left: {row.kernel_type} {fate.fate} {fate.reason}"[:200],
                file=sys.stderr,
            )
    unrecorded = [fate for fate in unrecorded_fates() if arguments.only in f"{fate.source} {fate.kernel_type}"]
    print(table([*(known[_key(row)] for row in rows), *unrecorded]))
    print(coverage(known[_key(row)] for row in rows))
    return 0


def _functions() -> dict[str, str]:
    """Module and name of the replay of each kernel type."""
    names = {id(function): name for name, function in replay_functions().items()}
    return {kernel_type: names[id(function)] for kernel_type, function in replays_of_bench().items()}


def _key(row: RealRow | Fate) -> tuple[str, str, str]:
    return row.source, row.kernel_type, row.signature


def _is_known(fate: Fate | None, max_bytes: float) -> bool:
    """Whether another try is needless."""
    if fate is None or fate.fate in (FAILED, UNKNOWN):
        return False
    return fate.fate != TOO_LARGE or fate.bytes > max_bytes


def _read(path: Path) -> dict[tuple[str, str, str], Fate]:
    if not path.exists():
        return {}
    fates = (Fate(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}"))
    return {_key(fate): fate for fate in fates}


if __name__ == "__main__":
    raise SystemExit(main())
