"""SIGKILL to each kind of process at random moments: what was measured is kept, and nothing else is changed.

Every run is drawn from a seed: a session is started, one of its processes is killed, the session is
run again, and the database is compared with one that nobody disturbed. OPATLAS_CHAOS_SEED=1000
draws other runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from processes import Process, Role, in_role, outlived, tree_of
from sessions import Finished, Running, Sessions, row, wait_for

from database import journal
from database.record import Record
from database.schema import AVERAGE, CRASHES_IN_A_ROW, MICROBENCH_MEDIAN, MICROBENCH_MIN, RUN_ID, STATUS, STATUS_REASON

#: Rows that take a while, so that most kills find one running.
SLOW_REPLAY = """
import time
from pathlib import Path

from bench import expected, impl
from bench.registry import replays


@replays("Slow", npu=None)
def test_slow(row, replay):
    Path(__file__).with_name(f"body-{row.shape(0)[0]}").touch()
    time.sleep(0.12)
    replay(impl.add, *row.inputs(), expected=expected.add)
"""
SIZES = {"Toy": (1, 2), "OtherToy": (3,), "Slow": tuple(range(101, 111)), "Moody": (1, 15, 2, 12, 3)}
#: Those whose replays leave a file when they begin.
TELLING = ("Slow", "Moody")
#: Moody rows that are never measured, with their status.
FAILING = {12: "crashed", 15: "failed"}
#: What a measurement sets, and what differs from one to the next.
VOLATILE = {AVERAGE, MICROBENCH_MEDIAN, MICROBENCH_MIN, RUN_ID, CRASHES_IN_A_ROW}
GIVEN_UP_AFTER = 2
MEASURE = ("--repeat-count=1", "--cache=warm", "--threads=1")
ROW_S = 0.12
#: Two cores: while one session waits, another has something to do.
AT_ONCE = 3
#: A session may end before its kill, when others leave it more of the machine than they did before.
TRIES = 4
#: Between two looks at a session; a merge takes some tens of milliseconds.
LOOK_S = 0.003

Key = tuple[str, int]


class Phase(str, Enum):
    STARTING = "starting"  # until the database is this session's
    PLANNING = "planning"  # until a process is started; for other processes than pytest: begins with them
    OPENING = "opening"  # until a row is in the journal
    RUNNING = "running"  # until all are
    MERGING = "merging"  # until the report is written; for other processes than pytest: until they end
    LEAVING = "leaving"

    def __str__(self) -> str:
        return self.value


PHASES = list(Phase)


@dataclass(frozen=True)
class Kill:
    """When to kill what: so far into a phase, as long as it takes in a session that nobody disturbs."""

    role: Role
    phase: Phase
    fraction: float

    def __str__(self) -> str:
        return f"{self.role}-{self.phase}-{self.fraction:.2f}"


@dataclass(frozen=True)
class Run:
    """A run, as its seed says.

    Attributes:
        kills: of as many sessions, one after the other.
        devices, devices_again: of the sessions that are killed, and of the last one.
        which: of several processes in the role of the first kill.
        moods: of Moody, which has the rows that fail.
    """

    seed: int
    kills: tuple[Kill, ...]
    devices: int
    devices_again: int
    which: int
    moods: tuple[int, ...]
    mode: str

    def __str__(self) -> str:
        return f"seed_{self.seed}-{self.devices}_devices-{'-then-'.join(map(str, self.kills))}"

    def rows(self) -> list[Key]:
        return keys_of({**SIZES, "Moody": self.moods})


def keys_of(sizes: Mapping[str, Sequence[int]]) -> list[Key]:
    return sorted(((kernel_type, size) for kernel_type in sizes for size in sizes[kernel_type]), key=lambda key: key[0])


def draw(seed: int, devices: int, *kills: tuple[Role, Phase]) -> Run:
    draws = random.Random(seed)
    return Run(
        seed,
        tuple(Kill(role, phase, draws.random()) for role, phase in kills),
        devices,
        devices_again=draws.choice([1, 1, 1, devices]),
        which=draws.randrange(devices),
        moods=draws.choice([(1, 2, 3), (1, 15, 2, 3), (1, 15, 2, 3), SIZES["Moody"]]),
        mode=draws.choice(["missing-only", "missing-only", "all"]),
    )


def runs() -> list[Run]:
    """Fifty: each role, in each phase of its life."""
    whole = [(Role.PYTEST, phase) for phase in PHASES]
    # The second kill finds the database taken over, and the journals of the first being merged.
    twice = [((Role.PYTEST, phase), (Role.PYTEST, Phase.PLANNING)) for phase in (Phase.RUNNING, Phase.MERGING)]
    # Other processes end before the report is written, or a moment after.
    parts = ([(role, phase) for phase in PHASES[2:-1]] for role in (Role.KEEPER, Role.DEVICE, Role.WORKER))
    keeper, device, worker = (part + part[1:2] for part in parts)
    one = [*((kill,) for kill in 2 * whole + keeper + device), *twice]
    two = [*((kill,) for kill in 2 * whole + keeper + device + worker + worker[:3]), twice[0]]
    kills = [(1, each) for each in one] + [(2, each) for each in two]
    first = int(os.environ.get("OPATLAS_CHAOS_SEED", "0"))
    return [draw(seed, devices, *each) for seed, (devices, each) in enumerate(kills, start=first)]


RUNS = runs()


class Life:
    """A session that nobody disturbs: how long its phases take, and what it leaves."""

    def __init__(self, folder: Path, devices: int) -> None:
        rows = keys_of(SIZES)
        sessions = toys(folder, rows)
        running = start(sessions, devices)
        roles = [role for role in Role if role is not Role.WORKER or devices > 1]
        views = {role: View(sessions, running, role, len(rows)) for role in roles}
        begins: dict[tuple[Role, Phase], float] = {}
        ends: dict[Role, float] = {}
        while running.process.poll() is None:
            now = time.monotonic()
            for role, view in views.items():
                begins.update({(role, p): now for p in PHASES if (role, p) not in begins and view.has_begun(p)})
            ends.update({process.role: now for process in tree_of(running.process.pid) if process.role is not None})
            time.sleep(LOOK_S)
        done = running.wait()
        assert (done.code, sum(done.ledger().values())) == (1, len(rows)), done.output
        self._lengths: dict[tuple[Role, Phase], float] = {}
        for role in roles:
            times = [min(begins[role, phase], ends[role]) for phase in PHASES] + [ends[role]]
            lengths = (after - before for before, after in itertools.pairwise(times))
            self._lengths.update({(role, phase): length for phase, length in zip(PHASES, lengths, strict=True)})
        self.table = read_table(sessions)

    def length_s(self, kill: Kill) -> float:
        return self._lengths[kill.role, kill.phase]


class View:
    """A session seen from outside, for a kill of some role."""

    def __init__(self, sessions: Sessions, running: Running, role: Role, rows: int) -> None:
        self._sessions = sessions
        self._running = running
        self._role = role
        self._rows = rows
        self._reports = self._count_reports()
        self._begun = {Phase.STARTING}

    def has_begun(self, phase: Phase) -> bool:
        """Whether a phase, or one after it, has begun."""
        if phase not in self._begun and any(self._sees(each) for each in PHASES[PHASES.index(phase) :]):
            self._begun.add(phase)
        return phase in self._begun

    def phase(self) -> Phase:
        """The one that it is in."""
        return [phase for phase in PHASES if self.has_begun(phase)][-1]

    def _sees(self, phase: Phase) -> bool:
        if phase is Phase.PLANNING:
            return self._holder().get("pid") == self._running.process.pid
        if phase is Phase.OPENING:
            roles = (Role.WORKER, Role.KEEPER) if self._role is Role.PYTEST else (self._role,)
            return any(process.role in roles for process in tree_of(self._running.process.pid))
        if phase is Phase.LEAVING:
            return self._count_reports() > self._reports
        return self.count_records() >= (1 if phase is Phase.RUNNING else self._rows)

    def count_records(self) -> int:
        """Of this session alone: journals of a killed one may still be there."""
        holder = self._holder()
        run_id = holder["run_id"] if holder.get("pid") == self._running.process.pid else "unknown"
        paths = (self._sessions.database / "journal").glob(f"{run_id}*.jsonl")
        count = 0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                # It may just have been merged.
                count += max(path.read_bytes().count(b"\n") - 1, 0)
        return count

    def _holder(self) -> dict[str, object]:
        try:
            holder: dict[str, object] = json.loads((self._sessions.database / "journal/session.json").read_text())
        except (OSError, ValueError):
            return {}
        return holder

    def _count_reports(self) -> int:
        return len(list((self._sessions.database / "reports").glob("replay_report_*.md")))


@dataclass(frozen=True)
class Found:
    """What is known of a row, be it from its CSV or from a journal."""

    status: str = ""
    duration: str = ""
    run_id: str = ""
    crashes: int = 0


def toys(folder: Path, keys: Sequence[Key]) -> Sessions:
    folder.mkdir(parents=True)
    sessions = Sessions(folder)
    (folder / "test_slow.py").write_text(SLOW_REPLAY)
    for kernel_type in SIZES:
        sessions.write(kernel_type, [row(size) for name, size in keys if name == kernel_type])
    return sessions


def start(sessions: Sessions, devices: int, *options: str) -> Running:
    simulated = str(devices if devices > 1 else 0)
    return sessions.start("-v", *options, measure=MEASURE, SIMULATED_DEVICES=simulated)


def read_table(sessions: Sessions) -> dict[Key, dict[str, str]]:
    """All rows. A row that stands twice is an error."""
    cells = [
        ((kernel_type, int(each["Input Shapes"].partition(";")[0])), each)
        for kernel_type in sorted(SIZES)
        for each in sessions.read(kernel_type)
    ]
    assert len(dict(cells)) == len(cells), [key for key, _ in cells]
    return dict(cells)


def unvarying(table: Mapping[Key, Mapping[str, str]]) -> dict[Key, dict[str, str]]:
    """What two sessions agree on. A file without a row that fails may lack a column, which is an empty one."""
    return {key: {n: cell for n, cell in cells.items() if cell and n not in VOLATILE} for key, cells in table.items()}


def records(sessions: Sessions) -> list[Record]:
    """Those in journals, oldest first."""
    found: list[Record] = []
    for path in sorted((sessions.database / "journal").glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):
            # It may just have been merged.
            found += journal.read(path).records
    return found


def known_rows(sessions: Sessions) -> dict[Key, Found]:
    """Every row: what its CSV says of it, or what a journal will have it say."""
    known = {
        key: Found(
            cells.get(STATUS, ""), cells.get(AVERAGE, ""), cells.get(RUN_ID, ""), int(cells.get(CRASHES_IN_A_ROW) or 0)
        )
        for key, cells in read_table(sessions).items()
    }
    for record in records(sessions):
        key = key_of(record)
        before = known[key]
        if record.run_id >= before.run_id:
            duration, run_id = before.duration, record.run_id
            if record.measurement is not None:
                duration = f"{record.measurement.summary.mean_us:.4f}"
            elif before.duration:
                run_id = before.run_id
            known[key] = Found(record.status.value, duration, run_id, record.crashes_in_a_row)
    return known


def key_of(record: Record) -> Key:
    return record.kernel_type, int(record.cells["Input Shapes"].partition(";")[0])


@dataclass(frozen=True)
class Killed:
    """What a kill has found.

    Attributes:
        victim: None where the session ended sooner.
        phase: the one that the session was in.
        known: every row, as the CSVs and the journals had it just before.
    """

    victim: Process | None
    phase: Phase
    known: Mapping[Key, Found]


def kill_at(sessions: Sessions, running: Running, order: Kill, which: int, rows: int, length_s: float) -> Killed:
    """Kills a process of a session, and sees that all below it go.

    Args:
        rows: how many the session has to run.
        length_s: of the phase in which it is to be killed.
    """
    view = View(sessions, running, order.role, rows)

    def ended() -> bool:
        return running.process.poll() is not None

    look_for(lambda: ended() or view.has_begun(order.phase))
    if order.phase is Phase.RUNNING:
        # Rows are what this phase is told in: some runs have one that takes longer than all others.
        done, in_row = divmod(order.fraction * rows, 1)
        look_for(lambda: ended() or view.has_begun(Phase.MERGING) or view.count_records() >= done)
        time.sleep(in_row * ROW_S)
    else:
        time.sleep(order.fraction * length_s)
    look_for(lambda: ended() or bool(in_role(running.process.pid, order.role)))
    phase, known = view.phase(), known_rows(sessions)
    victims = in_role(running.process.pid, order.role)
    if not victims:
        return Killed(None, phase, known)
    victim = victims[which % len(victims)]
    kill(victim)
    return Killed(victim, phase, known)


def look_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, "waited for 120 s"
        time.sleep(LOOK_S)


def carry_out(run: Run, folder: Path, life: Life) -> str:
    """One run; tells what was killed. Where the session ended too soon for that, it is begun anew."""
    story = ""
    for attempt in range(TRIES):
        sessions = toys(folder / str(attempt), run.rows())
        try:
            story = killed_and_run_again(run, sessions, life, sooner=2.0**-attempt)
        except Exception as error:
            outputs = "\n".join(path.read_text() for path in sorted(sessions.folder.glob("output-*.txt")))
            raise AssertionError(f"{run}\n{error}\n{outputs}") from error
        finally:
            sessions.end()
        if story:
            break
    return story or "nothing was killed: the sessions ended too soon"


def killed_and_run_again(run: Run, sessions: Sessions, life: Life, sooner: float) -> str:
    """Tells what was killed; "" where the first session was not."""
    rows = run.rows()
    story = []
    for number, order in enumerate(run.kills):
        running = start(sessions, run.devices, f"--update-mode={run.mode}")
        before = known_rows(sessions)
        killed = kill_at(sessions, running, order, run.which, len(rows), sooner * life.length_s(order))
        done = running.wait(120)
        assert sessions.left_behind() == []
        if killed.victim is None and number == 0:
            check_survived(order, killed, sessions, done)
            return ""
        new = sum(found.run_id != before[key].run_id for key, found in killed.known.items())
        who = f"{order.role} {killed.victim.pid}" if killed.victim else "nothing"
        story.append(f"killed {who} while {killed.phase}, with {new} of {len(rows)} rows in the journals or merged")
        if order.role is not Role.PYTEST:
            check_survived(order, killed, sessions, done)
        known = known_rows(sessions)
        assert list(read_table(sessions)) == rows
        check_kept(killed.known, known)
        if number == 0:
            check_in_vain(sessions, known, at_most=run.devices if order.role is Role.PYTEST else 1)
    for left in temporary(sessions):
        # Folders of a killed session go when they are a minute old.
        os.utime(left, (0, 0))
    before = known_rows(sessions)
    done = start(sessions, run.devices_again, f"--update-mode={run.mode}").wait(120)
    check_run_again(run, before, sessions, done, life)
    assert sessions.left_behind() == []
    if run.devices_again > 1:
        assert temporary(sessions) == []
    return "; ".join(story)


def check_in_vain(sessions: Sessions, known: Mapping[Key, Found], at_most: int) -> None:
    """No rows but those in flight were begun, and are not known of."""
    begun = {int(path.name.removeprefix("body-")) for path in sessions.folder.glob("body-*")}
    in_vain = [key for key, found in known.items() if key[0] in TELLING and key[1] in begun and not found.status]
    assert len(in_vain) <= at_most, in_vain


def check_survived(order: Kill, killed: Killed, sessions: Sessions, done: Finished) -> None:
    """A session that went on is right about what became of its rows, and at most the one in flight is lost."""
    assert leftovers(sessions) == []
    table = read_table(sessions)
    if order.role is Role.WORKER and "gateway_bootstrap" in done:
        # xdist greets a worker when it starts it, and gives up where that gets no answer.
        assert done.code == pytest.ExitCode.INTERNAL_ERROR
        assert not any(cells.get(STATUS) for cells in table.values())
        return
    statuses = Counter(cells.get(STATUS) or "not run" for cells in table.values())
    assert done.ledger() == statuses
    lost = {
        key: cells
        for key, cells in table.items()
        if cells.get(STATUS, "") != (FAILING[key[1]] if fails(key) else "measured")
    }
    assert len(lost) <= (killed.victim is not None), lost
    for cells in lost.values():
        if order.role is Role.WORKER:
            assert cells.get(STATUS, "") == ""
        else:
            assert cells[STATUS_REASON] == "the device process died: SIGKILL (signal 9)"
    bad = set(statuses) != {"measured"} or "crashed while running" in done
    assert done.code == bad


def check_kept(journaled: Mapping[Key, Found], known: Mapping[Key, Found]) -> None:
    """What was measured is there, to the digit, or something newer."""
    for key, found in journaled.items():
        if found.duration and known[key].run_id == found.run_id:
            assert known[key] == found
        elif found.duration:
            assert known[key].run_id > found.run_id
            assert known[key].duration


def check_run_again(run: Run, before: Mapping[Key, Found], sessions: Sessions, done: Finished, life: Life) -> None:
    """The session after the killed ones runs what is missing, and leaves what an undisturbed one would have left."""
    collected = [key for key in run.rows() if run.mode == "all" or not before[key].duration]
    expected = Counter(
        "measured" if not fails(key) else "xfailed" if before[key].status else FAILING[key[1]] for key in collected
    )
    if collected:
        assert done.ledger() == expected
    else:
        assert "nothing to do" in done
    assert done.code == (1 if set(expected) & set(FAILING.values()) else 0)
    table, known = read_table(sessions), known_rows(sessions)
    assert list(table) == run.rows()
    assert unvarying(table) == {key: cells for key, cells in unvarying(life.table).items() if key in table}
    check_kept(before, known)
    for key in run.rows():
        if fails(key):
            crashes = before[key].crashes
            if FAILING[key[1]] == "crashed" and crashes < GIVEN_UP_AFTER:
                crashes += 1
            assert (known[key].status, known[key].duration, known[key].crashes) == (FAILING[key[1]], "", crashes)
        else:
            assert known[key].duration
            assert (known[key].run_id > before[key].run_id) == (key in collected)
        assert (sessions.database / "runs" / f"{known[key].run_id}.json").exists()
    assert leftovers(sessions) == []


def fails(key: Key) -> bool:
    return key[0] == "Moody" and key[1] in FAILING


def leftovers(sessions: Sessions) -> list[str]:
    """Files that belong to no ended session."""
    expected = ("*.csv", "journal/*.lock", "runs/*.json", "reports/*.md", "reports/*.csv")
    names = [path.relative_to(sessions.database) for path in sessions.database.rglob("*") if path.is_file()]
    return [str(name) for name in names if not any(name.match(pattern) for pattern in expected)]


def temporary(sessions: Sessions) -> list[Path]:
    """What sessions have left in their folder for temporary files."""
    return list(sessions.temporary.glob("opatlas-session-*"))


class Ahead:
    """Carries out runs some time before they are asked for, so that the cores have something to do."""

    def __init__(self, folder: Path, order: Sequence[Run]) -> None:
        self._folder = folder
        self._order = order
        self._executor = ThreadPoolExecutor(AT_ONCE)
        self._lives = {n: self._executor.submit(Life, folder / f"undisturbed-{n}", n) for n in (2, 1)}
        self._begun: dict[Run, Future[str]] = {}

    def result(self, run: Run) -> str:
        """What was killed in a run. Raises what went wrong."""
        position = self._order.index(run)
        for each in self._order[position : position + AT_ONCE]:
            if each not in self._begun:
                life = self._lives[each.devices].result()
                self._begun[each] = self._executor.submit(carry_out, each, self._folder / str(each), life)
        return self._begun[run].result()

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def ahead(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead]:
    items = request.session.items
    parameters = [item.callspec.params for item in items if hasattr(item, "callspec")]
    order = [each["run"] for each in parameters if isinstance(each.get("run"), Run)]
    runs = Ahead(tmp_path_factory.mktemp("kills"), order)
    yield runs
    runs.close()


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_kill_costs_the_row_in_flight_at_most(run: Run, ahead: Ahead) -> None:
    print(ahead.result(run))


PAUSE = """

def pytest_runtest_setup(item):
    import os, pathlib, time
    folder = pathlib.Path(__file__).parent
    if os.environ["PAUSE"] in item.nodeid:
        (folder / f"paused-{os.environ.get('PYTEST_XDIST_WORKER', '')}").touch()
        until = time.monotonic() + 60
        while not (folder / "go").exists():
            assert time.monotonic() < until, "nobody said go"
            time.sleep(0.02)
"""


def pausing(sessions: Sessions, before: str, **environment: str) -> Running:
    """A session that stops before each row that has a word in its name, until the test says go."""
    with open(sessions.folder / "conftest.py", "a") as conftest:
        conftest.write(PAUSE)
    return sessions.start(PAUSE=before, measure=MEASURE, file_limit=None, **environment)


@pytest.mark.parametrize("role", [Role.KEEPER, Role.DEVICE])
def test_a_device_process_that_is_killed_between_two_rows_costs_none(sessions: Sessions, role: Role) -> None:
    sessions.write("Moody", [row(1), row(2), row(3)])
    running = pausing(sessions, before="Moody-2_2")
    assert wait_for((sessions.folder / "paused-").exists)
    (process,) = in_role(running.process.pid, role)
    kill(process)
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (0, {"measured": 3})
    assert sessions.left_behind() == []


@pytest.mark.parametrize("role", [Role.KEEPER, Role.DEVICE, Role.WORKER])
def test_a_process_that_is_killed_in_a_row_costs_that_row(sessions: Sessions, role: Role) -> None:
    sessions.write("Moody", [row(1), row(40), row(2), row(3)])
    running = sessions.start(*(("-n", "1") if role is Role.WORKER else ()))
    running.wait_for_body(40)
    (process,) = in_role(running.process.pid, role)
    kill(process)
    done = running.wait()
    cost = "not run" if role is Role.WORKER else "crashed"
    assert (done.code, done.ledger()) == (1, {"measured": 3, cost: 1})
    assert sessions.statuses("Moody")[40] == ("" if role is Role.WORKER else "crashed")
    assert sessions.left_behind() == []
    sessions.go()
    done = sessions.run("--update-mode=missing-only")
    assert (done.code, done.ledger()) == (0, {"measured": 1})


def test_the_worker_that_replaces_a_killed_one_takes_its_device(sessions: Sessions) -> None:
    sessions.write("Moody", [row(size) for size in range(101, 141)])
    running = pausing(sessions, before="Moody", SIMULATED_DEVICES="2")
    assert wait_for(lambda: len(list(sessions.folder.glob("paused-gw*"))) == 2)
    kill(in_role(running.process.pid, Role.WORKER)[1])
    assert wait_for((sessions.folder / "paused-gw2").exists), running.output.read_text()
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 39, "not run": 1})
    (manifest,) = (json.loads(path.read_text()) for path in (sessions.database / "runs").glob("*.json"))
    devices = [manifest["device"], *manifest["other_devices"]]
    assert {device["facts"]["id"] for device in devices} == {"0", "1"}


def kill(process: Process) -> None:
    """Kills it, and sees that all below it go."""
    tree = tree_of(process.pid)
    process.kill()
    assert outlived(tree) == [], "it lived on after the process that started it was killed"
