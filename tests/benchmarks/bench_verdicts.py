"""How often sessions call the same code FAST or SLOW, and how often they find planted extra work.

    python -m tests.benchmarks.bench_verdicts [--sessions N] [--busy N] [--extra SHARE] [--device cpu|cuda] [OPTIONS]
    python -m tests.benchmarks.bench_verdicts --history [--sessions N] [--busy N]

A session is `pytest bench/ --implementation torch,FOLDER` in a new database, with OPTIONS of pytest. The functions of
FOLDER are those of `opatlas implementations --new`, which call the functions of torch that the rows time. With --extra
they take that share longer: on a CPU by a loop that waits for the clock, on a GPU by a kernel that adds numbers. A
history has ten sessions of torch alone, in which --busy processes run during the fifth to the seventh.

Rows of a session share the state of the machine, so that intervals of few sessions are too narrow. Targets: no more
than 1 % of definite verdicts without, and 85 % SLOW with extra work, in rows of 100 us and more; steps in no more than
0.4 % of the rows of histories.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from opatlas.formats import percent
from opatlas.outer.generation.experiment import wilson_interval
from opatlas.row.rounds import PairVerdict
from tests.benchmarks.children import ROOT, run_benchmark, run_session
from tests.benchmarks.databases import write_rows
from tests.benchmarks.gpu_rows import cells_by_type

MOST_FALSE, LEAST_FOUND, MOST_STEPS = 0.01, 0.85, 0.004
#: Shorter rows are counted apart: the planted wait is coarse beside them.
LONG_US = 100.0
RUNS, BUSY_RUNS = 10, range(4, 7)
#: By device: the dtype, and the sizes of products (M, K, N) and of matrices; about 20 us to 50 ms on two cores of an
#: AMD EPYC, in and out of the caches, one thread and more; and 10 us to some ms on an H200.
_SIZES: Mapping[str, tuple[str, Sequence[tuple[int, int, int]], Sequence[tuple[int, int]]]] = {
    "cpu": (
        "FLOAT",
        ((1, 512, 512), (16, 512, 512), (64, 1024, 1024), (128, 1024, 2048), (256, 2048, 2048), (1024, 2048, 2048)),
        ((32, 1024), (128, 1024), (256, 2048), (1024, 2048), (2048, 2048), (2048, 4096)),
    ),
    "cuda": (
        "DT_BF16",
        (
            *((1024, 4096, 4096), (2048, 4096, 4096), (4096, 4096, 4096), (4096, 8192, 4096)),
            *((8192, 4096, 8192), (8192, 8192, 8192)),
        ),
        ((4096, 4096), (8192, 4096), (16384, 4096), (16384, 8192), (32768, 8192), (65536, 8192)),
    ),
}
#: What makes a function longer by a share of its own time.
_WAIT = {
    "cpu": """
from time import perf_counter


def longer(function):
    def call(*arguments, **named):
        start = perf_counter()
        results = function(*arguments, **named)
        end = perf_counter()
        end += (end - start) * {extra}
        while perf_counter() < end:
            pass
        return results

    return call
""",
    "cuda": '''
from statistics import median

#: The work that is added, whose time grows with the number of elements: a GPU's instruments take torch.cuda._sleep for
#: their own mark.
_MOST = 1 << 29


def milliseconds(call):
    """The median time of a call on a GPU whose cache holds other data."""
    other, times = torch.ones(2**26, device="cuda"), []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        other.sum()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return median(times)


def longer(function):
    work = {{}}

    def added_to(arguments, named):
        scratch = torch.ones(_MOST, device="cuda")

        def both():
            function(*arguments, **named)
            scratch[:count].add_(1)

        own, empty = milliseconds(lambda: function(*arguments, **named)), milliseconds(lambda: None)
        wanted, count = (own - empty) * {extra}, 1 << 20
        for _ in range(4):
            count = max(1, min(_MOST, int(count * wanted / max(milliseconds(both) - own, wanted / 100))))
        return scratch[:count].clone()

    def call(*arguments, **named):
        shapes = tuple(tuple(each.shape) for each in arguments if isinstance(each, torch.Tensor))
        if shapes not in work:
            work[shapes] = added_to(arguments, named)
        results = function(*arguments, **named)
        work[shapes].add_(1)
        return results

    return call
''',
}


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        sessions: sessions, or histories.
        busy: processes that keep a core busy.
        extra: share of planted extra work, such as 0.1.
        device: cpu or cuda.
        rows: rows of each of four kernel types.
        history: count steps of ten sessions of unchanged code.
        work: a new folder that keeps the databases (default: none is kept).
    """

    sessions: int = 1
    busy: int = 0
    extra: float = 0.0
    device: Literal["cpu", "cuda"] = "cpu"
    rows: int = 6
    history: bool = False
    work: Path | None = None


def rows_of(device: str, most: int) -> dict[str, list[str]]:
    """Returns rows by kernel type, `most` of each."""
    dtype, products, matrices = _SIZES[device]
    norms = [f"{m},{n};{n} | {dtype};{dtype} -> {m},{n};{m},1 | {dtype};FLOAT" for m, n in matrices]
    found = {
        "MatMulV2": [f"{m},{k};{n},{k} | {dtype};{dtype} -> {m},{n} | {dtype}" for m, k, n in products],
        "Mul": [f"{m},{n};{m},{n} | {dtype};{dtype} -> {m},{n} | {dtype}" for m, n in matrices],
        "RmsNorm": norms,
        "SoftmaxV2": [f"{m},{n} | {dtype} -> {m},{n} | {dtype}" for m, n in matrices],
    }
    return {kernel_type: of_type[:most] for kernel_type, of_type in found.items()}


def write_rival(folder: Path, kernel_types: Sequence[str], device: str, extra: float) -> None:
    """Writes a folder with functions that call those of torch, and take a share longer."""
    opatlas("implementations", "--new", folder, "--ops", ",".join(kernel_types))
    for path in folder.glob("*.py") if extra else ():
        head, mark, rest = path.read_text().partition("\n\n@implements")
        called = re.search(r"return (torch_functions\.\w+)\(", rest)
        if called is None:
            raise RuntimeError(f"{path}: calls no function of torch")
        wait = _WAIT[device].format(extra=extra)
        calls = rest.replace(called[1], "longer_function")
        path.write_text(f"{head}\n{wait}\n\nlonger_function = longer({called[1]})\n{mark}{calls}")


def opatlas(*arguments: object) -> str:
    """Returns what a command prints. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", "opatlas", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def bench(database: Path, implementation: str, device: str, options: Sequence[str]) -> float:
    """Returns the seconds of a session. A row that fails costs itself."""
    start = time.perf_counter()
    done = run_session(database, f"--implementation={implementation}", f"--device={device}", *options)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout + done.stderr)
    return time.perf_counter() - start


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keeps cores busy during the block."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Compared:
    """A row of a session: its verdict, or None without one, and the duration of torch."""

    verdict: PairVerdict | None
    baseline_us: float

    @property
    def is_long(self) -> bool:
        """Whether the row is one of those that targets count."""
        return self.baseline_us >= LONG_US


def compared(database: Path) -> list[Compared]:
    """Returns the rows of a session."""
    found: dict[str, Any] = json.loads(opatlas("compare", database, "--json"))
    (name,) = (rival["name"] for rival in found["rivals"])
    pairs = [row["pairs"].get(name) for row in found["rows"]]
    return [
        Compared(PairVerdict(pair["verdict"]), pair["baseline_us"]) if pair else Compared(None, 0.0) for pair in pairs
    ]


def told(hits: int, count: int) -> str:
    """Returns `3 of 120, 2.5 % [0.9 %, 7.1 %]`."""
    low, high = wilson_interval(hits, count) or (0.0, 1.0)
    return f"{hits} of {count}, {percent(hits / max(count, 1))} [{percent(low)}, {percent(high)}]"


def verdicts(work: Path, options: Options, more: Sequence[str]) -> int:
    """Prints the verdicts of sessions. Returns the exit status."""
    rows = rows_of(options.device, options.rows)
    rival = work / "same"
    write_rival(rival, list(rows), options.device, options.extra)
    found, seconds = list[Compared](), list[float]()
    for number in range(options.sessions):
        database = work / f"database{number}"
        write_rows(database, cells_by_type(rows))
        with busy(options.busy):
            seconds.append(bench(database, f"torch,{rival}", options.device, more))
        of_session = compared(database)
        counts = Counter(str(each.verdict) for each in of_session)
        print(f"session {number + 1}: {seconds[-1]:.0f} s, {dict(counts)}", flush=True)
        found += of_session
    columns = [*map(str, PairVerdict), "None"]
    print("\n| rows | " + " | ".join(columns).replace("None", "not measured") + " | FAST or SLOW | SLOW |")
    print("| --- |" + " --- |" * (len(columns) + 2))
    for name, part in ((f"{LONG_US:g} us and more", [each for each in found if each.is_long]), ("all", found)):
        counts = Counter(str(each.verdict) for each in part)
        pairs = len(part) - counts["None"]
        definite = counts[PairVerdict.FAST.value] + counts[PairVerdict.SLOW.value]
        cells = [f"{counts[column]}" for column in columns]
        print(f"| {name} | {' | '.join(cells)} | {told(definite, pairs)} | {told(counts['SLOW'], pairs)} |")
    work_told = f"{percent(options.extra, 0)} extra work" if options.extra else "the same code"
    print(f"\n{work_told}, {options.busy} busy processes, {options.sessions} sessions of {median(seconds):.1f} s")
    if options.extra:
        long = [each for each in found if each.is_long and each.verdict is not None]
        share = sum(each.verdict is PairVerdict.SLOW for each in long) / max(len(long), 1)
        print(f"found: {percent(share)} of rows of {LONG_US:g} us and more (target: {percent(LEAST_FOUND, 0)})")
        return 0 if share >= LEAST_FOUND else 1
    known = [each.verdict for each in found if each.verdict is not None]
    share = sum(each.is_definite for each in known) / max(len(known), 1)
    print(f"false: {percent(share)} (target: {percent(MOST_FALSE, 0)})")
    return 0 if known and share <= MOST_FALSE else 1


def histories(work: Path, options: Options, more: Sequence[str]) -> int:
    """Prints the steps of ten sessions of unchanged code. Returns the exit status."""
    rows = rows_of(options.device, options.rows)
    stepped = searched = 0
    for number in range(options.sessions):
        database = work / f"database{number}"
        write_rows(database, cells_by_type(rows))
        start = time.perf_counter()
        for run in range(RUNS):
            with busy(options.busy if run in BUSY_RUNS else 0):
                bench(database, "torch", options.device, more)
        found: dict[str, Any] = json.loads(opatlas("history", database, "--json"))
        ids = {change["id"] for change in found["changes"]}
        stepped, searched = stepped + len(ids), searched + found["searched"]
        print(
            f"history {number + 1}: {time.perf_counter() - start:.0f} s, {found['searched']} of {found['rows']} rows "
            f"searched, {len(found['disturbed'])} runs disturbed, {found['left_out']} durations left out, "
            f"{len(found['shifts'])} changes of the machine, steps in {len(ids)} rows",
            flush=True,
        )
    print(f"\nrows with a step: {told(stepped, searched)} (target: {percent(MOST_STEPS)})")
    return 0 if searched and stepped <= MOST_STEPS * searched else 1


def main(
    *more: Annotated[str, Parameter(allow_leading_hyphen=True)],
    options: Annotated[Options, Parameter(name="*")] = Options(),
) -> int:
    """Returns 1 if a target is missed, or nothing was compared.

    Args:
        more: options of pytest.
    """
    measure = histories if options.history else verdicts
    if options.work is not None:
        options.work.mkdir(parents=True)
        return measure(options.work.absolute(), options, more)
    with tempfile.TemporaryDirectory() as name:
        return measure(Path(name), options, more)


if __name__ == "__main__":
    run_benchmark(main)
