"""Rows to prove NPU calls on, and the verdict of the child process on each."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_environment import REPOSITORY, run
from real_rows import sources
from replaying import cells_of
from sample_rows import ROWS

from opatlas.row.signature import signature
from opatlas.run.registry import KINDS, replay_spec, replays_of_bench


@dataclass(frozen=True)
class Case:
    """A row whose replay is to be proven.

    Attributes:
        is_sample: whether it is one of ours, which none may refuse; else a real one.
        function: module and name of the replay.
    """

    kernel_type: str
    cells: dict[str, str]
    is_sample: bool
    function: str

    def __str__(self) -> str:
        return f"{self.kernel_type} {signature(self.kernel_type, self.cells)}"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case: exactly one of proof, unsupported, invalid and refused is set.

    Attributes:
        proof: the function that took the arguments.
        unsupported: why the replay does not do this row on an NPU.
        invalid: why the replay refuses the row.
        refused: the mistake of the call.
    """

    case: Case
    proof: str = ""
    unsupported: str = ""
    invalid: str = ""
    refused: str = ""


def cases() -> list[Case]:
    """The sample rows of every kernel type that is replayed, and the captured ones at hand."""
    rows = [(name, cells_of(row), True) for name, rows in ROWS.items() for row in rows]
    captured = {(row.kernel_type, row.signature): row.cells for source in sources() for row in source.rows}
    rows += [(name, cells, False) for (name, _), cells in captured.items()]
    replays = {name: f"{function.__module__}.{function.__name__}" for name, function in replays_of_bench().items()}
    return [Case(*row, replays[row[0]]) for row in rows if row[0] in replays]


def verdicts(python: Path, folder: Path, cases: Sequence[Case]) -> list[Verdict]:
    """Makes the call of each case in a child process. One that ends the process is refused, the rest goes on.

    Args:
        python: of an environment with torch_npu.
        folder: for the files that are passed back and forth; empty.
    """
    found: list[Verdict] = []
    jobs, lines = folder / "jobs.json", folder / "verdicts.jsonl"
    while len(found) < len(cases):
        left = cases[len(found) :]
        jobs.write_text(json.dumps([[case.function, case.kernel_type, case.cells] for case in left]))
        lines.write_text("")
        ended = _run(python, jobs, lines)
        results = [json.loads(line) for line in lines.read_text().splitlines()]
        found += [Verdict(case, **values) for case, values in zip(left, results, strict=False)]
        if len(results) < len(left):
            if not results and not found:
                raise RuntimeError(f"no call was made: {ended}")
            found.append(Verdict(left[len(results)], refused=f"the process ended: {ended}"))
    return found


def _run(python: Path, jobs: Path, lines: Path) -> str:
    here = Path(__file__).parent
    path = [REPOSITORY, here, here.parent / "bench"]
    try:
        done = run(python, here / "npu_proof.py", jobs, lines, folder=jobs.parent, path=path)
    except subprocess.TimeoutExpired as error:
        return str(error)
    return f"exit status {done.returncode}: {done.stdout.strip()[-1000:]}"


def proofs(verdicts_by_type: Mapping[str, Sequence[Verdict]]) -> dict[str, str]:
    """Returns the weakest proof of each call by the sample rows, which every checkout has."""
    found: dict[str, set[str]] = defaultdict(set)
    for kernel_type, verdicts in verdicts_by_type.items():
        call = replay_spec(replays_of_bench()[kernel_type]).npu
        found[call] |= {verdict.proof for verdict in verdicts if verdict.proof and verdict.case.is_sample}
    return {call: max(kinds, key=list(KINDS).index) for call, kinds in found.items() if kinds}
