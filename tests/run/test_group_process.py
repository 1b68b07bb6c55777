"""Groups of two ranks over gloo: the outcome of a row, and of the others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import group_replays
import pytest
import wrong_exchanges
from replaying import cells_of, replay_of
from sample_rows import BACK, LAYER, LAYER_BITS, LAYER_INT8, TOLD, WITH_WEIGHTS
from sessions import UNUSED_PORT, wait_for
from tiny_models import CONFIG, DENSE

from opatlas.row.columns import STEP, STEP_LAUNCH, STEP_LAYERS
from opatlas.row.errors import DeviceGone, GroupTimeout
from opatlas.row.quality import Quality
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group import RANK_SPREAD, GroupSpec
from opatlas.run.implementation import KernelSource
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Against, Job
from opatlas.run.process import ranks as module
from opatlas.run.process.device_process import GroupProcess

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc"),
    pytest.mark.usefixtures("forks"),
]
SETTINGS = MeasureSettings(repeat_count=3, cache="warm", threads=1)
MARK = "OPATLAS_TEST_GROUP"
TWO = GroupSpec(2)


def group_of(spec: GroupSpec, opener: str = "") -> GroupProcess:
    return GroupProcess(spec, [DeviceSpec("cpu", opener=opener)] * spec.local_ranks, SETTINGS)


def job(size: int, spec: GroupSpec = TWO, timeout_s: float = 60) -> Job:
    cells = cells_of(f"{size};{size} | FLOAT;FLOAT -> {size} | FLOAT")
    return Job("group_replays", group_replays.__file__, "test_sum", "Sum", cells, timeout_s, spec)


def marked(mark: str) -> list[str]:
    """Command lines of the processes that inherited a mark."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(directory.name) != os.getpid() and mark.encode() in (directory / "environ").read_bytes():
                found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture(scope="module")
def group(forks: None) -> Iterator[GroupProcess]:
    """One group for the whole module, launched anew whenever a row has cost it its ranks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(MARK, str(os.getpid()))
        group = group_of(TWO)
        yield group
        group.close()
        assert wait_for(lambda: not marked(f"{MARK}={os.getpid()}"), seconds=300), marked(f"{MARK}={os.getpid()}")


def test_a_rank_that_hangs_is_named_and_its_stack_shown(group: GroupProcess, capfd: pytest.CaptureFixture[str]) -> None:
    """The first test of the group: ranks print where this process printed when they were launched."""
    assert group.run(job(group_replays.GOOD)).status is Status.MEASURED
    outcome = group.run(job(group_replays.HANGS, timeout_s=2))
    assert (outcome.status, outcome.measurement) == (Status.TIMEOUT, None)
    assert "rank 1 of 2" in outcome.reason
    assert "rank 0" not in outcome.reason
    # The stack of the rank that hangs, with the GIL held, and of the one that waits for it.
    shown = capfd.readouterr().err
    assert "in misbehave" in shown
    assert "in sum_of_shares" in shown
    assert not marked(f"{MARK}={os.getpid()}")


def test_rows_follow_each_other_in_one_group(group: GroupProcess) -> None:
    first = group.run(job(group_replays.GOOD))
    ranks = {line for line in marked(f"{MARK}={os.getpid()}") if "--meeting=" in line and "keeper" not in line}
    assert (group.describe().facts["ranks"], group.describe().facts["threads"], len(ranks)) == (2, 1, 2)
    again = group.run(job(group_replays.OTHER_GOOD))
    assert [outcome.status for outcome in (first, again)] == [Status.MEASURED] * 2
    assert first.measurement is not None
    assert len(first.measurement.samples_us) == 3
    assert first.measurement.counters[RANK_SPREAD] >= 0
    # Both ranks have checked all of their own results.
    assert first.measurement.checked_elements == 2 * group_replays.GOOD
    assert {line for line in marked(f"{MARK}={os.getpid()}") if "--meeting=" in line and "keeper" not in line} == ranks


@pytest.mark.parametrize(
    ("mood", "status", "words"),
    [
        (group_replays.REFUSED, Status.INVALID, "bad size"),
        (group_replays.RAISES, Status.FAILED, "rank 1 of 2: ValueError"),
        (group_replays.EXITS, Status.CRASHED, "rank 1 of 2 .*exit code 0"),
        (group_replays.WRITES, Status.CRASHED, "rank 1 of 2: "),
    ],
)
def test_a_rank_costs_its_row_and_no_other(
    group: GroupProcess, monkeypatch: pytest.MonkeyPatch, mood: int, status: Status, words: str
) -> None:
    monkeypatch.setattr("opatlas.run.process.device_process._OTHERS_FAIL_WITHIN_S", 0.5)
    outcome = group.run(job(mood))
    assert (outcome.status, outcome.measurement) == (status, None)
    assert re.search(words, outcome.reason)
    if status is not Status.INVALID:
        assert not marked(f"{MARK}={os.getpid()}")
    assert group.run(job(group_replays.GOOD)).status is Status.MEASURED


def test_a_row_says_that_another_rank_than_the_first_was_throttled(group: GroupProcess) -> None:
    measurement = group.run(job(group_replays.HOT)).measurement
    assert measurement is not None
    assert measurement.throttled == "rank 1 of 2: too hot"
    assert measurement.verdict.quality is Quality.THROTTLED
    assert "rank 1 of 2: too hot" in measurement.verdict.reason


def test_a_fork_of_a_rank_answers_nobody(group: GroupProcess) -> None:
    """Its stack goes through the runner, as that of the rank does."""
    ran = [group.run(job(mood)) for mood in (group_replays.RETURNS_TWICE, group_replays.GOOD)]
    assert [outcome.status for outcome in ran] == [Status.MEASURED] * 2


#: A kernel that is right, of a user's folder.
RIVAL = """
import torch
from torch import distributed

def kernel(x, y):
    total = x + y
    distributed.all_reduce(total)
    return total / distributed.get_world_size()
"""


def test_a_rival_takes_turns_with_the_baseline_on_all_ranks_and_in_another_group(
    group: GroupProcess, tmp_path: Path
) -> None:
    (tmp_path / "Sum.py").write_text(RIVAL)
    source = KernelSource("mine 1", "", str(tmp_path / "Sum.py"), "kernel")
    compared = replace(job(group_replays.GOOD), source=source, against=Against(control=True))
    outcome = group.run(compared)
    assert outcome.measurement is not None, outcome
    (rounds,) = outcome.measurement.rounds
    assert [len(rounds.kernel_us), len(rounds.baseline_us), len(rounds.control_us)] == [3, 3, 3]
    assert rounds.kernel_us == outcome.measurement.samples_us
    assert outcome.measurement.against.startswith("torch ")
    before = set(marked(f"{MARK}={os.getpid()}"))
    again = group.run(compared.again_elsewhere())
    assert again.measurement is not None, again
    assert [len(own) for own in astuple(again.measurement.rounds[0])] == [3, 3, 0]
    assert not before & set(marked(f"{MARK}={os.getpid()}"))


def test_a_baseline_that_fails_on_one_rank_leaves_the_rival_alone(group: GroupProcess, tmp_path: Path) -> None:
    (tmp_path / "Sum.py").write_text(RIVAL)
    source = KernelSource("mine 1", "", str(tmp_path / "Sum.py"), "kernel")
    (tmp_path / "baseline.py").write_text("import os\n\ndef kernel(x, y):\n    raise ValueError('not here')\n")
    baseline = KernelSource("other 1", "", str(tmp_path / "baseline.py"), "kernel")
    outcome = group.run(replace(job(group_replays.GOOD), source=source, against=Against(baseline)))
    assert (outcome.status, outcome.measurement and outcome.measurement.rounds) == (Status.MEASURED, ())
    assert "not compared in turn" in outcome.reason


class Interrupted(BaseException):
    """As a second Ctrl-C, or pytest-timeout, raises it in the middle of a wait."""


def test_an_interrupted_wait_ends_the_group(group: GroupProcess) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    group.run(job(group_replays.GOOD))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Interrupted):
            group.run(job(group_replays.HANGS))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not marked(f"{MARK}={os.getpid()}")
    assert group.run(job(group_replays.GOOD)).status is Status.MEASURED


#: Two ranks, each with three experts.
EXPERTS_OF_TWO = [
    ("DispatchFFNCombine", f"11,40;3,40,48;3,24,40;11,3;3,48;3,40;11,3 | {LAYER} -> 11,40;3 | DT_BF16;INT32"),
    ("DispatchFFNCombine", f"1,40;3,40,48;3,24,40;1,4;3,48;3,40;1,4 | {LAYER} -> 1,40;3 | DT_BF16;INT32"),
    ("DispatchFFNCombine", f"5,256;3,256,320;3,160,256;5,6;3,320;3,256;5,6 | {LAYER_INT8} -> 5,256;3 | DT_BF16;INT32"),
    (
        "DispatchFFNCombine",
        f"9,256;3,8,16,16,32;3,8,8,16,32;9,3;3,256;3,256;9,3 | {LAYER_BITS} -> 9,256;1,3 | DT_BF16;INT32",
    ),
    ("MoeDistributeDispatch", f"7,64;7,2 | DT_BF16;INT32 -> 28,64;28;14;3;6 | DT_BF16;{TOLD}"),
    ("MoeDistributeDispatch", f"7,64;7,2;6,64 | DT_BF16;INT32;FLOAT -> 28,64;28;14;3;6;1 | INT8;{TOLD};INT32"),
    (
        "MoeDistributeDispatch",
        f"7,64;7,2;;;7,2 | DT_BF16;INT32;;;FLOAT -> 28,64;28;14;3;6;0;28 | DT_BF16;{WITH_WEIGHTS}",
    ),
    # One token, and so no token for some experts.
    ("MoeDistributeDispatch", f"1,64;1,4 | DT_BF16;INT32 -> 8,64;8;4;5;10 | DT_BF16;{TOLD}"),
    ("MoeDistributeDispatchV2", f"7,64;7,2;;7 | DT_BF16;INT32;;BOOL -> 28,64;28;3584;3;6;1 | INT8;{TOLD};INT32"),
    ("MoeDistributeCombine", f"28,64;7,2;14;6;7,2 | DT_BF16;{BACK} -> 7,64 | DT_BF16"),
    ("MoeDistributeCombine", f"14,64;7,2;14;2;7,2 | DT_BF16;{BACK} -> 7,64 | DT_BF16"),
    ("MoeDistributeCombineV2", f"28,64;7,2;3584;6;7,2;1;7 | FLOAT16;{BACK};INT32;BOOL -> 7,64 | FLOAT16"),
    ("MoeDistributeDispatchV3", f"2052;7,64;7,2;;7 | INT32;DT_BF16;INT32;;BOOL -> 28,64;28;3584;3;6 | INT8;{TOLD}"),
    ("MoeDistributeCombineV3", f"2052;28,64;7,2;3584;6;7,2;;7 | INT32;FLOAT16;{BACK};INT32;BOOL -> 7,64 | FLOAT16"),
]
#: Of each kernel type one whose tokens choose experts at random, or by a power law.
DRAWN = [
    (kernel_type, f"{row} @ Expert Load = {load}")
    for load, (kernel_type, row) in (
        ("random", EXPERTS_OF_TWO[0]),
        ("power law 1.2", EXPERTS_OF_TWO[2]),
        ("power law 1.2", EXPERTS_OF_TWO[4]),
        ("random", EXPERTS_OF_TWO[8]),
        ("random", EXPERTS_OF_TWO[9]),
        ("power law 1.2", EXPERTS_OF_TWO[11]),
    )
]


def job_of_two(kernel_type: str, row: str) -> Job:
    module, _, function = replay_of(kernel_type).rpartition(".")
    cells = cells_of(f"{row} @ EP Size = 2")
    return replace(job(0), module=module, function=function, kernel_type=kernel_type, cells=cells)


@pytest.mark.parametrize(("kernel_type", "row"), [*EXPERTS_OF_TWO, *DRAWN])
def test_experts_are_shared_out_and_tokens_find_them(group: GroupProcess, kernel_type: str, row: str) -> None:
    """Checked on each rank against the experts of both, whose numbers run to 6, by the float64 reference."""
    outcome = group.run(job_of_two(kernel_type, row))
    assert outcome.status is Status.MEASURED, outcome
    assert outcome.measurement is not None
    assert ("equally often" in str(outcome.measurement.assumptions)) == ("Load" not in row)
    if "Dispatch" not in kernel_type or kernel_type == "DispatchFFNCombine":
        # Of a dispatch's results only the received tokens are checked, and not the room behind them.
        assert outcome.measurement.checked_elements == outcome.measurement.total_elements


@pytest.mark.parametrize(
    ("config", "settings", "layers", "reduced"),
    [
        (DENSE, "", "2", ("attention", "ffn")),
        (CONFIG, ",ep=2", "1 dense + 1 moe", ("attention", "ffn", "experts")),
        (CONFIG, ",phase=prefill", "1 moe", ("attention", "experts")),
    ],
)
def test_a_step_has_its_all_reduces(group: GroupProcess, tmp_path: Path, config, settings, layers, reduced) -> None:
    """The sum of each is checked by its formula; what reads it is right, too."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    step = f"{tmp_path},batch=2,context=16,tp=2,collectives=library{settings}"
    cells = {STEP: step, STEP_LAYERS: layers, STEP_LAUNCH: "eager"}
    outcome = group.run(Job("bench.test_listed", "", "test_parallel_step", "ParallelStep", cells, 60, TWO))
    assert outcome.status is Status.MEASURED, outcome
    assert outcome.measurement is not None
    assert all(outcome.measurement.counters[f"{part}_all_reduce alone(us)"] > 0 for part in reduced)
    assert not any("all_reduce reads no" in note for note in outcome.measurement.assumptions)


def test_a_sum_of_a_step_that_is_none_is_caught(group: GroupProcess, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    step = f"{tmp_path},batch=2,context=16,tp=2,collectives=library"
    cells = {STEP: step, STEP_LAYERS: "1", STEP_LAUNCH: "eager"}
    outcome = group.run(Job("wrong_exchanges", wrong_exchanges.__file__, "step", "ParallelStep", cells, 60, TWO))
    assert outcome.status is Status.FAILED, outcome


def test_a_step_whose_tokens_travel_is_unsupported(group: GroupProcess, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    cells = {
        STEP: f"{tmp_path},batch=2,context=16,ep=2,collectives=library",
        STEP_LAYERS: "1 moe",
        STEP_LAUNCH: "eager",
    }
    outcome = group.run(Job("bench.test_listed", "", "test_parallel_step", "ParallelStep", cells, 60, TWO))
    assert outcome.status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("function", "row"),
    [("dispatch", EXPERTS_OF_TWO[4]), ("combine", EXPERTS_OF_TWO[9]), ("dispatch", DRAWN[2]), ("combine", DRAWN[4])],
)
def test_an_exchange_with_the_wrong_rank_is_caught(group: GroupProcess, function: str, row: tuple[str, str]) -> None:
    outcome = group.run(
        replace(job_of_two(*row), module="wrong_exchanges", module_path=wrong_exchanges.__file__, function=function)
    )
    assert outcome.status is Status.FAILED, outcome
    assert "formula" in outcome.reason


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DeviceGone, match=str(port)):
            group_of(GroupSpec(2, master_port=port)).describe()


@pytest.mark.parametrize(
    ("opener", "words"),
    [
        ("broken_ranks:second_is_missing", "rank 1 of 2: OpAtlasError"),
        ("broken_ranks:second_dies", "rank 1 of 2 .*SIGKILL"),
    ],
)
def test_a_rank_that_cannot_join_is_named(monkeypatch: pytest.MonkeyPatch, opener: str, words: str) -> None:
    monkeypatch.setenv(MARK, "joining")
    with pytest.raises(DeviceGone, match=words) as gone:
        group_of(TWO, opener).describe()
    # It can be tried again: no rank waited for it.
    assert not isinstance(gone.value, GroupTimeout)
    assert wait_for(lambda: not marked(f"{MARK}=joining"), seconds=300)


def test_the_ranks_of_npus_see_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "meeting")
    specs = [
        DeviceSpec("npu", index, pinned=("ASCEND_RT_VISIBLE_DEVICES", str(index)), opener="broken_ranks:sees_all")
        for index in range(2)
    ]
    group = GroupProcess(TWO, specs, SETTINGS)
    assert group.run(job(group_replays.GOOD)).status is Status.MEASURED
    group.close()
    assert wait_for(lambda: not marked(f"{MARK}=meeting"), seconds=300)


def test_a_rank_that_crashes_after_its_last_row_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "crashing")
    group = group_of(TWO, "broken_ranks:dies_at_its_end")
    assert group.run(job(group_replays.GOOD)).status is Status.MEASURED
    group.close()
    assert wait_for(lambda: not marked(f"{MARK}=crashing"), seconds=300)


class Hurried:
    """A clock that is far ahead once the message that the test waits for is shown, however long that takes."""

    def __init__(self, awaited: str) -> None:
        self.messages: list[str] = []
        self._awaited = awaited

    def report(self, text: str) -> None:
        self.messages.append(text)

    def monotonic(self) -> float:
        return time.monotonic() + (1000 if any(text.startswith(self._awaited) for text in self.messages) else 0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.mark.parametrize(
    ("opener", "nodes", "waits_for", "late"),
    [
        ("broken_ranks:second_hangs", 1, "rank 1 of 2 to open a device", "rank 1 of 2 did not join within 180 s"),
        ("", 2, "node 1 at 127.0.0.1:{port}", r"no node 1 at 127.0.0.1:{port} within 300 s: .* --node-rank"),
    ],
)
def test_a_group_names_the_missing_nodes_and_gives_up(
    monkeypatch: pytest.MonkeyPatch, opener: str, nodes: int, waits_for: str, late: str
) -> None:
    port = UNUSED_PORT
    clock = Hurried(f"waiting for {waits_for.format(port=port)}, ")
    for name, value in (("SHOWN_AFTER_S", 0.0), ("SHOWN_EVERY_S", 0.2), ("time", clock)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setenv(MARK, "waiting")
    spec = GroupSpec(2, nnodes=nodes, master_port=port if nodes > 1 else None)
    devices = [DeviceSpec("cpu", opener=opener)] * spec.local_ranks
    with pytest.raises(GroupTimeout, match=f"did not start: {late.format(port=port)}") as gone:
        GroupProcess(spec, devices, SETTINGS, DeviceWaits(clock.report)).describe()
    assert gone.value.nodes is (nodes > 1)
    assert re.fullmatch(r".*, \d+ s left", clock.messages[-1]), clock.messages
    assert wait_for(lambda: not marked(f"{MARK}=waiting"), seconds=300)
