"""Plugins of others: those that run a row again, with or without an outcome of their own."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from moods import Mood
from sessions import Sessions, row

#: What pytest-rerunfailures does: a test that failed runs again, and its earlier reports get another outcome.
AGAIN = """
import pytest
from _pytest.runner import runtestprotocol


def pytest_addoption(parser):
    parser.addoption("--earlier", default="again")


def pytest_runtest_protocol(item, nextitem):
    for left in (2, 1, 0):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = any(report.failed for report in reports)
        for report in reports:
            if failed and left and report.when == "call":
                report.outcome = item.config.option.earlier
            item.ihook.pytest_runtest_logreport(report=report)
        if not failed:
            break
    return True


def pytest_report_teststatus(report):
    if report.outcome == "again":
        return "again", "A", ("AGAIN", {"yellow": True})
"""


@pytest.mark.parametrize("earlier", ["again", "failed"])
def test_a_row_that_a_plugin_runs_again_counts_once_as_it_ended(sessions: Sessions, earlier: str) -> None:
    (sessions.folder / "again.py").write_text(AGAIN)
    sessions.write("Moody", [row(1), row(Mood.BETTER_NEXT_TIME), row(Mood.RAISE), row(2)])
    done = sessions.run_in_process("-p", "again", f"--earlier={earlier}", "--junitxml=junit.xml")
    assert done.code == 1
    assert "INTERNALERROR" not in done
    assert "DO NOT ADD UP" not in done
    assert done.ledger() == {"measured": 3, "failed": 1}
    assert sessions.statuses("Moody") == {
        1: "measured",
        Mood.BETTER_NEXT_TIME: "measured",
        Mood.RAISE: "failed",
        2: "measured",
    }
    if earlier == "again":
        assert done.outcomes() == {"passed": 3, "failed": 1, "again": 3}
    for case in ElementTree.parse(sessions.folder / "junit.xml").iter("testcase"):
        names = [each.get("name") for each in case.iter("property")]
        assert len(names) == len(set(names))


def test_a_device_whose_runtime_fails_ends_a_session_in_process(sessions: Sessions) -> None:
    (sessions.folder / "broken.py").write_text("def Broken(*_):\n    raise RuntimeError('no driver')\n")
    conftest = sessions.folder / "conftest.py"
    devices = "\n\ndef pytest_opatlas_devices():\n    return [DeviceSpec('cpu', opener='broken:Broken')]\n"
    conftest.write_text(conftest.read_text() + devices)
    sessions.write("Toy", [row(1)])
    done = sessions.run_in_process()
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in done
    assert "no driver" in done


def test_ordinary_tests_in_workers_need_no_device(sessions: Sessions) -> None:
    conftest = sessions.folder / "conftest.py"
    without_fixtures = tuple(f"opatlas.plugins.{name}" for name in ("options", "theory", "hooks"))
    conftest.write_text(conftest.read_text().replace('("opatlas.plugins",)', str(without_fixtures)))
    (sessions.folder / "test_others.py").write_text("def test_other(): pass\n")
    done = sessions.run("-n", "1", "--device=NO_SUCH_DEVICE", "test_others.py")
    assert (done.code, done.outcomes()) == (0, {"passed": 1}), done.output
    assert "INTERNALERROR" not in done


def test_a_test_without_a_mark_is_told_of_it(sessions: Sessions) -> None:
    (sessions.folder / "test_unmarked.py").write_text("def test_unmarked(row, replay): pass\n")
    done = sessions.run_in_process("test_unmarked.py")
    assert done.outcomes() == {"error": 1}
    assert done.has_line("test_unmarked", "@replays")


#: Notes how much text pytest holds of what each row printed.
HELD = """
import json
from pathlib import Path

held = {}


def pytest_runtest_logreport(report):
    held[report.nodeid] = max(held.get(report.nodeid, 0), sum(len(text) for _, text in report.sections))


def pytest_sessionfinish(session):
    for item in session.items:
        held[item.nodeid] = max(held[item.nodeid], sum(len(text) for _, _, text in item._report_sections))
    Path("held.json").write_text(json.dumps(list(held.values())))
"""


@pytest.mark.parametrize("options", [(), ("-rP", "--junitxml=junit.xml", "-o", "junit_logging=all")])
def test_pytest_does_not_hold_all_that_rows_print(sessions: Sessions, options: tuple[str, ...]) -> None:
    (sessions.folder / "held.py").write_text(HELD)
    sessions.write("Moody", [row(Mood.TALK_AND_RAISE), row(Mood.TALK)])
    done = sessions.run_in_process("-p", "held", *options)
    assert done.ledger() == {"measured": 1, "failed": 1}
    failed, passed = json.loads((sessions.folder / "held.json").read_text())
    assert 0 < failed < 100_000
    assert (0 < passed < 100_000) if options else passed == 0
    # The beginning and the end of what the row printed that failed.
    assert "beginxxx" in done
    assert "xxxend" in done


def test_rows_are_benchmarks(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    (sessions.folder / "test_more.py").write_text("def test_other():\n    assert True\n")
    before = files(sessions)
    assert sessions.run_in_process("--benchmark-skip").outcomes() == {"passed": 1, "skipped": 1}
    assert files(sessions) == before
    assert sessions.run_in_process("--benchmark-only").outcomes() == {"passed": 1, "skipped": 1}
    assert sessions.statuses("Toy") == {1: "measured"}


def files(sessions: Sessions) -> dict[str, bytes]:
    """The contents of all files of the database."""
    found = (path for path in sessions.database.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found if path.suffix != ".lock"}


#: Notes each call of a kernel that adds.
CALLS = """
from pathlib import Path

from opatlas.bench import formulas
from opatlas.run.registry import replays


def noted(x, y):
    with Path("calls").open("a") as calls:
        calls.write("call\\n")
    return x + y


@replays("Noted", npu=None)
def test_noted(row, replay):
    replay(noted, *row.inputs(), expected=formulas.add)
"""


@pytest.mark.parametrize("process", [(), ("--in-process",), ("-n1",)])
def test_disabled_benchmarks_are_called_once_and_checked(sessions: Sessions, process: tuple[str, ...]) -> None:
    (sessions.folder / "test_noted.py").write_text(CALLS)
    sessions.write("Noted", [row(3)])
    sessions.write("Moody", [row(1), row(Mood.WRONG_RESULT)])
    before = files(sessions)
    done = sessions.run("--benchmark-disable", *process, ".", measure=())
    assert (done.code, done.ledger()) == (1, {"checked": 2, "failed": 1}), done.output
    assert (sessions.folder / "calls").read_text().split() == ["call"]
    assert files(sessions) == before
    assert sessions.run_in_process("--benchmark-disable", "--repeat-count=3").code == pytest.ExitCode.USAGE_ERROR
    enabled = sessions.run_in_process("--benchmark-disable", "--benchmark-enable", "-k", "Noted", ".")
    assert enabled.ledger() == {"measured": 1}


#: The options of pytest-repeat and pytest-forked.
REPEAT = """
def pytest_addoption(parser):
    parser.addoption("--count", type=int, default=1)
    parser.addoption("--forked", action="store_true")
"""


@pytest.mark.parametrize(
    ("option", "workers"), [("--count=2", ()), ("--forked", ("-n1", "test_toys.py"))], ids=["alone", "worker"]
)
def test_a_plugin_that_makes_several_tests_of_a_row_is_refused(
    sessions: Sessions, option: str, workers: tuple[str, ...]
) -> None:
    (sessions.folder / "repeat_tests.py").write_text(REPEAT)
    sessions.write("Toy", [row(1), row(2)])
    without = [word for name in ("repeat", "pytest_forked") for word in ("-p", f"no:{name}")]
    done = sessions.run(*without, "-p", "repeat_tests", option, *workers)
    assert done.code not in (0, 1), done.output
    assert "leave it out" in " ".join(done.output.split())
    assert option.partition("=")[0] in done
    assert "DO NOT ADD UP" not in done
    assert set(sessions.statuses("Toy").values()) == {""}
