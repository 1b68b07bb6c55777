"""SIGKILL to each kind of process at random moments: measurements are kept, and nothing else is changed.

Every run is drawn from a seed (drawn_kills.py): a session is started, one of its processes is killed, the
session is run again, and the database is compared with one that nobody disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from drawn_kills import Kill, Run, runs
from killed_rows import FAILING, TELLING, Found, Key, fails, key_of, known_rows, read_table, start, toys, unvarying
from processes import Role
from sessions import Finished, Sessions
from watched_sessions import Killed, Life, kill_at

from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.row.columns import STATUS, STATUS_REASON

GIVEN_UP_AFTER = 2
#: Two cores: while one session waits, another has something to do.
AT_ONCE = 3
#: A session may end before its kill, when others leave it more of the machine than they did before.
TRIES = 4
RUNS, MORE_RUNS = runs()


def carry_out(run: Run, folder: Path, life: Life) -> str:
    """One run; returns the name of the killed process. Where the session ended too soon for that, it is begun anew."""
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
    """Returns the name of the killed process; "" where the first session was not killed."""
    rows = run.rows()
    story = []
    for number, order in enumerate(run.kills):
        running = start(sessions, run.devices, f"--update-mode={run.mode}")
        before = known_rows(sessions)
        killed = kill_at(sessions, running, order, run.which, len(rows), sooner * life.length_s(order))
        done = running.wait()
        assert sessions.left_behind() == []
        if killed.victim is None and number == 0:
            check_survived(order, killed, sessions, done)
            return ""
        new = sum(found.status_run_id != before[key].status_run_id for key, found in killed.known.items())
        who = f"{order.role} {killed.victim.pid}" if killed.victim else "nothing"
        story.append(f"killed {who} while {killed.phase}, with {new} of {len(rows)} rows in the journals or merged")
        if order.role is not Role.PYTEST:
            check_survived(order, killed, sessions, done)
        known = known_rows(sessions)
        assert list(read_table(sessions)) == rows
        check_kept(killed.known, known)
        if number == 0:
            check_in_vain(sessions, known, at_most=run.devices if order.role is Role.PYTEST else 1)
    left = set(temporary(sessions))
    before = known_rows(sessions)
    done = start(sessions, run.devices_again, f"--update-mode={run.mode}").wait()
    check_run_again(run, before, sessions, done, life)
    assert sessions.left_behind() == []
    assert set(temporary(sessions)) == left
    return "; ".join(story)


def check_in_vain(sessions: Sessions, known: Mapping[Key, Found], at_most: int) -> None:
    """No rows but those in flight were begun, and are not known of."""
    begun = {int(path.name.removeprefix("body-")) for path in sessions.folder.glob("body-*")}
    in_vain = [key for key, found in known.items() if key[0] in TELLING and key[1] in begun and not found.status]
    assert len(in_vain) <= at_most, in_vain


def check_survived(order: Kill, killed: Killed, sessions: Sessions, done: Finished) -> None:
    """A session that went on reports its rows rightly, and at most the one in flight is lost."""
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
            assert "SIGKILL" in cells[STATUS_REASON]
    bad = set(statuses) != {"measured"} or "crashed while running" in done
    assert done.code == bad


def check_kept(journaled: Mapping[Key, Found], known: Mapping[Key, Found]) -> None:
    """The measurements are there, to the digit, or newer ones."""
    for key, found in journaled.items():
        if found.duration and known[key].run_id == found.run_id:
            assert known[key] == found
        elif found.duration:
            assert known[key].run_id > found.run_id
            assert known[key].duration


def check_run_again(run: Run, before: Mapping[Key, Found], sessions: Sessions, done: Finished, life: Life) -> None:
    """The session after the killed ones runs the missing rows, and leaves the same as an undisturbed one."""
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
            # A row that fails without a crash is tried again for ever: sessions in a row are counted for crashes alone.
            crashed = FAILING[key[1]] == "crashed"
            crashes = min(before[key].crashes + 1, GIVEN_UP_AFTER) if crashed else 0
            assert (known[key].status, known[key].duration, known[key].crashes) == (FAILING[key[1]], "", crashes)
        else:
            assert known[key].duration
            assert (known[key].status_run_id > before[key].status_run_id) == (key in collected)
        assert (sessions.database / "runs" / f"{known[key].status_run_id}.json").exists()
    assert leftovers(sessions) == []
    check_history(sessions, known)


def check_history(sessions: Sessions, known: Mapping[Key, Found]) -> None:
    """The histories hold each duration of the CSVs, and no record twice."""
    database = Database(sessions.database)
    records = [entry for run_id in history.runs(database) for entry in history.read(database, run_id).records]
    times = Counter((entry.run_id, entry.kernel_type, entry.signature, entry.finished_at) for entry in records)
    assert set(times.values()) == {1}
    durations = {
        (key_of(entry), entry.run_id, f"{entry.measurement.summary.mean_us:.4f}")
        for entry in records
        if entry.measurement is not None
    }
    assert durations >= {(key, found.run_id, found.duration) for key, found in known.items() if found.duration}


def leftovers(sessions: Sessions) -> list[str]:
    """Files that belong to no ended session."""
    of_runs = ("runs/*.json", "runs/*.jsonl.gz", "runs/*.events.gz")
    expected = ("*.csv", "journal/*.lock", *of_runs, "reports/*.md", "reports/*.csv")
    names = [path.relative_to(sessions.database) for path in sessions.database.rglob("*") if path.is_file()]
    return [str(name) for name in names if not any(name.match(pattern) for pattern in expected)]


def temporary(sessions: Sessions) -> list[Path]:
    """The files of sessions in their folder for temporary files."""
    return list(sessions.temporary.glob("opatlas-tmp-session-*"))


class Ahead:
    """Carries out runs some time before they are asked for, so that the cores have something to do."""

    def __init__(self, folder: Path, order: Sequence[Run]) -> None:
        self._folder = folder
        self._order = order
        self._executor = ThreadPoolExecutor(AT_ONCE)
        self._lives = {
            n: self._executor.submit(Life, folder / f"undisturbed-{n}", n)
            for n in sorted({run.devices for run in order}, reverse=True)
        }
        self._begun: dict[Run, Future[str]] = {}

    def result(self, run: Run) -> str:
        """Returns the name of the killed process of a run. Raises its failure."""
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


@pytest.mark.parametrize("run", [*RUNS, *(pytest.param(run, marks=pytest.mark.slow) for run in MORE_RUNS)], ids=str)
def test_a_kill_costs_the_row_in_flight_at_most(run: Run, ahead: Ahead) -> None:
    print(ahead.result(run))
