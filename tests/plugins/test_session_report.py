"""What sessions print and write down, word by word: golden/sessions.txt and golden/report.md."""

from __future__ import annotations

import re
from collections.abc import Callable

from moods import Mood
from sessions import Sessions, row

from opatlas.model.location import cpu_device_name
from opatlas.model.schema import AVERAGE, PROFILING_AVERAGE

#: The load of this machine is not that of another one.
SAME_MACHINE = """

from opatlas.plugins import summary

summary.disturbances = lambda *_: ["load of others"]
"""
ASSUMING = """
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.engine.registry import replays


@replays("Assuming", npu="torch.add")
def test_assuming(row, replay):
    row.assume(f"{row.shape(0)[0]} tokens are one sequence")
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""
#: What differs between two runs, machines or versions, and what stands in its place.
CHANGING = (
    (r"\d{8}T\d{6}-[0-9a-f]{6}", "RUN"),
    (r"_\d{8}_\d{6}[-_\d]*", "_TIME"),
    (r"/torch/torch[\w.+-]+", "/torch/VERSION"),
    (r" in [\d.]+ s \([^)]*\)", " in N s (N rows/s)"),
    (r" in [\d.]+ s$", " in N s"),
    (r" *[\d,]+(?:\.\d+)? us\b", " N us"),
    (r" *[\d,.]+ to N us", " N to N us"),
    (r" *±? ?[\d.]+ %", " N %"),
    (r" *[\d.]+ x ", " N x "),
    # In an order of durations.
    (r"^ N us N % \(2\) .*", "N us N % (2)  ROW"),
    (r"^\| N us N % \(2\) \| .*", "| N us N % (2) | ROW |"),
    (r"^( N x N us N %, stored N us)  .*", r"\1  ROW"),
    (r"^(- CPU: |- Host: |- Versions: ).*", r"\1..."),
    # Columns are as wide as their numbers.
    (r"(?<=\S) {2,}", "  "),
    # The lines between, which depend on pytest's version.
    (r"^!+ .*\n|^(?=\n)\n", ""),
)


MOODS = (
    *(Mood.NEEDS_VARIABLE, Mood.REFUSE, Mood.RAISE, Mood.UNSUPPORTED, Mood.NO_REPLAY, Mood.MEMORY_ERROR),
    *(Mood.BETTER_NEXT_TIME, 101),
)


def replaced(text: str, sessions: Sessions) -> str:
    text = text.replace(str(sessions.folder), "FOLDER").replace(cpu_device_name(), "CPU")
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def own_lines(output: str) -> str:
    """What a session prints between pytest's header and pytest's last line."""
    lines = output.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("opatlas: "))
    return "\n".join(lines[first:-1])


def test_the_wording_of_sessions(sessions: Sessions, golden: Callable[[str, str], None]) -> None:
    with open(sessions.folder / "conftest.py", "a") as conftest:
        conftest.write(SAME_MACHINE)
    (sessions.folder / "test_assuming.py").write_text(ASSUMING)
    durations = dict.fromkeys((AVERAGE, PROFILING_AVERAGE), "")
    toy = [{**durations, **row(n)} for n in (1, 2, 3, 3, 4)]
    toy[0][PROFILING_AVERAGE], toy[1][AVERAGE] = "2.5", "nan"
    sessions.write("Toy", toy)
    sessions.write("Moody", [{**row(mood), "Average Duration": ""} for mood in MOODS])
    sessions.write("NoReplay", [{**row(n), PROFILING_AVERAGE: "3.75"} for n in (1, 2)])
    sessions.write("Assuming", [row(3), row(4)])
    unreadable = sessions.database / "OtherToy.csv"
    unreadable.touch()
    told = []

    def run(*options: str, **environment: str) -> None:
        mixed = () if "--read-only" in options else ("--mixed",)
        done = sessions.run_in_process("--tb=no", "-rN", *mixed, *options, COLUMNS="", **environment)
        command = " ".join(("$ pytest", *options))
        told.append(f"{command}\n{own_lines(done.output)}\nexit status {done.code}\n")

    run("--co", "-q")
    run("-v", MOOD="good")
    (report,) = (path.read_text() for path in (sessions.database / "reports").glob("*.md"))
    unreadable.unlink()
    run("-x", "-k", "Moody or Toy-1")
    run("--update-mode=missing-only", "--prune-empty-duration-rows")
    run("--update-mode=stale")
    run("--where=status == failed", "-rs")
    run("-k", "nothing_of_this_name")
    run("--read-only", "--ops=Toy", "-vv")
    golden("sessions.txt", "\n".join(replaced(text, sessions) for text in told))
    golden("report.md", replaced(report, sessions))
