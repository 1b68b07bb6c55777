"""Sessions with --implementation: a database for each, rows of the base database, mistakes that cost their rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from sessions import Sessions, row
from stand_in_npus import StandInNpus

from opatlas.data.database import Database, SessionLock

SIZES = (3, 5, 8)
RIGHT = "def kernel(x, y):\n    return x + y\n"
#: Takes 30 ms longer, much more than a busy machine may take from the other, and tells its processes.
SLOW = """
import os, time
from pathlib import Path

def kernel(x, y):
    Path(__file__).with_name(f"in-{os.getpid()}").touch()
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end:
        pass
    return x + y
"""
#: A replay whose own kernel ends its process.
BOOM = """
import os
from opatlas.bench import formulas
from opatlas.run.registry import replays

def crash(x, y):
    os.abort()

@replays("Boom", npu=None)
def test_boom(row, replay):
    replay(crash, *row.inputs(), expected=formulas.add)
"""
PREPARED = """
from opatlas import Prepared, Unsupported

def kernel(x, y):
    if len(x) == 5:
        raise Unsupported("length 5: even more is there")
    def call():
        x.add_(y)
        return x
    return Prepared(call, changes=[x], converted=["nothing of note"])
"""


def kernels(sessions: Sessions, **files: str) -> Path:
    """A folder `mine` with a file for each name; "Toy__fast" becomes Toy/fast.py."""
    folder = sessions.folder / "mine"
    for name, source in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


def durations(sessions: Sessions, name: str, kernel_type: str = "Toy") -> dict[int, dict[str, str]]:
    """The rows of an implementation by their size."""
    (path,) = sessions.database.glob(f"implementations/{name}-????????/{kernel_type}.csv")
    with open(path, newline="") as file:
        return {int(cells["Input Shapes"].partition(";")[0]): cells for cells in csv.DictReader(file)}


@pytest.fixture
def toys(sessions: Sessions) -> Sessions:
    sessions.write("Toy", [row(size) for size in SIZES])
    return sessions


def test_each_implementation_has_its_durations_in_its_own_database(toys: Sessions) -> None:
    folder = kernels(toys, Toy=RIGHT, Toy__fast=PREPARED)
    done = toys.run(f"--implementation=torch,{folder}", "-n2")
    assert done.ledger() == {"measured": 3 * len(SIZES) - 1, "unsupported": 1}
    for cells in toys.read("Toy"):
        assert cells["Implementation"].startswith("torch ")
    # The comparison at the end has each row that both measured, of both rivals.
    assert sum("x " in line and " Toy-" in line for line in done.output.splitlines()) == 2 * len(SIZES) - 1
    mine, fast = durations(toys, "mine"), durations(toys, "mine-fast")
    for size in SIZES:
        assert float(mine[size]["Average Duration(us)"]) > 0
        assert mine[size]["Implementation"].startswith("mine ")
        assert mine[size]["Set-up Time(s)"]
    assert fast[5]["Status"] == "unsupported"
    assert fast[5]["Average Duration(us)"] == ""
    assert fast[8]["Conversions"] == "nothing of note"
    (manifest,) = toys.database.glob("implementations/mine-????????/runs/*.json")
    assert json.loads(manifest.read_text())["options"]["implementation"] == mine[3]["Implementation"]


@pytest.mark.parametrize("order", ["torch,{}", "{},torch"])
def test_a_kernel_takes_turns_with_the_baseline_and_a_difference_is_looked_for_in_another_process(
    toys: Sessions, order: str
) -> None:
    folder = kernels(toys, Toy=SLOW)
    toys.write("Toy", [row(3)])
    done = toys.run(f"--implementation={order.format(folder)}", measure=("--repeat-count=10", "--cache=warm"))
    assert done.ledger() == {"measured": 2}
    for cells in durations(toys, "mine").values():
        assert float(cells["Speed-up Low"]) <= float(cells["Speed-up"]) <= float(cells["Speed-up High"]) < 0.5
        assert (cells["Speed-up Rounds"], cells["MicroBench Samples"]) == ("10;10", "10")
        assert cells["Speed-up Against"].startswith("torch ")
        assert float(cells["Control Ratio"]) > 0
    assert len(list(folder.glob("in-*"))) == 2
    assert not any(cells.get("Speed-up") for cells in toys.read("Toy"))


def test_a_baseline_that_crashes_costs_the_rounds_and_not_the_row(sessions: Sessions) -> None:
    """Its own row was not selected, so nothing is known of it."""
    (sessions.folder / "test_boom.py").write_text(BOOM)
    sessions.write("Boom", [row(3)])
    done = sessions.run(f"--implementation=torch,{kernels(sessions, Boom=RIGHT)}", "-k", "mine")
    assert done.ledger() == {"measured": 1}
    cells = durations(sessions, "mine", "Boom")[3]
    assert float(cells["Average Duration(us)"]) > 0
    assert "crashed" in cells["Status Reason"]
    assert not cells.get("Speed-up")


def test_in_one_process_nothing_is_looked_for_in_another(toys: Sessions) -> None:
    done = toys.run_in_process(f"--implementation=torch,{kernels(toys, Toy=SLOW)}")
    assert done.ledger() == {"measured": 2 * len(SIZES)}
    assert {cells["Speed-up Rounds"] for cells in durations(toys, "mine").values()} == {"2"}


def test_a_kernel_type_without_rows_is_refused_with_the_database_that_lacks_it(toys: Sessions) -> None:
    done = toys.run_in_process(f"--implementation={kernels(toys, Toy=RIGHT, AddRmsNorm=RIGHT)}", "--ops=AddRmsNorm")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert f"in {toys.database};" in done.output
    assert "opatlas shapes --ops AddRmsNorm" in done.output


def test_rivals_of_a_row_are_measured_one_after_the_other(toys: Sessions) -> None:
    folder = kernels(toys, Toy=RIGHT)
    listed = toys.run(f"--implementation=torch,{folder}", "--collect-only", "-q")
    ids = [line for line in listed.output.splitlines() if "::" in line]
    assert len(ids) == 2 * len(SIZES)
    for default, own in zip(ids[::2], ids[1::2], strict=True):
        assert own == default.replace("]", "-mine]")
    assert not (toys.database / "implementations").exists()


MISTAKES = {
    "wrong": ("def kernel(x, y):\n    return x - y\n", "failed"),
    "changes_its_input": ("def kernel(x, y):\n    result = x + y\n    y.zero_()\n    return result\n", "failed"),
    "cannot_be_imported": ("import no_such_library\ndef kernel(x, y): ...\n", "failed"),
    # Memory that is not touched costs the machine nothing, and counts for the limit of the process.
    "allocates_for_ever_in_set_up": (
        "import torch\ndef kernel(x, y):\n    kept = []\n    while True:\n        kept.append(torch.empty(1 << 30))\n",
        "oom",
    ),
    "crashes": ("import os\ndef kernel(x, y):\n    os.abort()\n", "crashed"),
}


def test_a_mistake_costs_its_rows_and_no_others(toys: Sessions) -> None:
    folder = kernels(toys, **{f"Toy__{name}": source for name, (source, _) in MISTAKES.items()})
    done = toys.run(f"--implementation=torch,{folder}")
    each = len(SIZES)
    assert done.ledger() == {"measured": each, "failed": 3 * each, "oom": each, "crashed": each}
    for name, (_, status) in MISTAKES.items():
        for cells in durations(toys, f"mine-{name}").values():
            assert cells["Status"] == status
            assert cells["Status Reason"]
            assert not cells.get("Average Duration(us)")


def test_a_kernel_type_that_one_of_two_implementations_lacks_can_be_chosen(toys: Sessions) -> None:
    toys.write("OtherToy", [row(3)])
    chosen = f"--implementation=torch,{kernels(toys, Toy=RIGHT)}"
    assert toys.run_in_process(chosen, "--ops=Toy,OtherToy").ledger() == {"measured": 2 * len(SIZES) + 1}


def test_databases_are_taken_in_one_order_so_that_two_sessions_never_wait_for_each_other(toys: Sessions) -> None:
    folder = kernels(toys, Toy=RIGHT)
    lock = SessionLock(Database(toys.database), run_id="other", command="another session")
    lock.acquire()
    try:
        done = toys.run_in_process(f"--implementation={folder},torch")
    finally:
        lock.release()
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert done.has_line(toys.database, "another session")
    assert not (toys.database / "implementations").exists()


def test_an_implementation_on_an_npu_is_measured_with_all_its_kernels(toys: Sessions, npus: StandInNpus) -> None:
    """The stand-in for msprof tells the operators that the kernel runs as what the NPU launched."""
    folder = kernels(toys, Toy="def kernel(x, y):\n    return (x * 1) + y\n")
    assert npus.run(f"--implementation={folder}").ledger() == {"measured": len(SIZES)}
    for cells in durations(toys, "mine").values():
        assert cells["MicroBench Device Kernels"] == "2"
        assert len(cells["Kernel Names"].split(" + ")) == 2
        assert cells["Instrument"] == "msprof"
