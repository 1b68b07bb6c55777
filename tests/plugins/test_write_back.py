"""From a row to its duration and back: what a session writes, and what it leaves alone."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from moods import Mood
from sessions import Sessions, row


def test_a_cause_is_told_in_the_words_of_its_first_row(sessions: Sessions) -> None:
    wide = {**row(Mood.REFUSE), "Input Shapes": "16,3;16,3", "Output Shapes": "16,3"}
    sessions.write("Moody", [row(Mood.REFUSE), wide, row(Mood.RAISE)])
    done = sessions.run_in_process()
    told = " ".join(done.output.split())
    assert re.findall(r" (\d) Moody (\w+): ", told) == [("2", "invalid"), ("1", "failed")]
    assert "'16;16'" in told


def test_equal_signatures_are_one_case_and_all_get_its_duration(sessions: Sessions) -> None:
    sessions.write("Toy", [row(2), {**row(2), "Input Data Types": "DT_FLOAT;DT_FLOAT"}, row(3)])
    done = sessions.run_in_process()
    assert done.outcomes() == {"passed": 2}
    assert re.search(r"^repeated rows +1 ", done.output, re.MULTILINE)
    assert len({r["Average Duration(us)"] for r in sessions.read("Toy")}) == 2


def test_rows_without_a_replay_are_told_with_their_share_of_the_time(sessions: Sessions) -> None:
    captured = {"Profiling Average Duration(us)": "30.0", "Profiling Samples": "1"}
    sessions.write("Toy", [{**row(1), **captured}])
    sessions.write("NoReplay", [{**row(1), **captured, "Profiling Samples": "2"}, {**row(2), **captured}])
    done = sessions.run_in_process("--co")
    assert done.output.count(" without a replay: ") == 1
    assert re.search(r"\b2 rows without a replay: NoReplay 2 \(75\.0 %", done.output)
    assert "docs/contributing.md" in done
    # The time of kernel types that are not asked for is not known: nothing is a share of it.
    some = sessions.run_in_process("--co", "--ops=NoReplay").output
    assert "NoReplay 2" in some
    assert "%" not in some


def test_a_similar_replay_is_told_only_where_nobody_knows_why_there_is_none(sessions: Sessions) -> None:
    (sessions.folder / "test_alike.py").write_text(
        "from opatlas.run.registry import replays\n@replays('MemSets', npu=None)\ndef test_alike(row, replay): ...\n"
    )
    for kernel_type in ("MemSet", "MemSetz"):
        sessions.write(kernel_type, [row(1)])
    output = sessions.run_in_process("--co").output
    assert re.findall(r"(MemSet\w?) 1 \(did you mean (\w+)", output) == [("MemSetz", "MemSets")]


def test_what_a_replay_assumed_is_in_the_database_junit_and_the_report(sessions: Sessions) -> None:
    (sessions.folder / "test_assuming.py").write_text(
        "from opatlas.bench import formulas\nfrom opatlas.bench.implementations import torch as impl\n"
        "from opatlas.run.registry import replays\n"
        "@replays('Assuming', npu='torch.add')\n"
        "def test_assuming(row, replay):\n"
        "    row.assume(f'{row.shape(0)[0]} tokens are one sequence')\n"
        "    replay(impl.add, *row.inputs(), expected=formulas.add)\n"
    )
    sessions.write("Assuming", [row(3), row(4)])
    done = sessions.run_in_process("-k", "Assuming", "--junitxml=junit.xml")
    assert done.code == 0, done.output
    assert [cells["Assumptions"] for cells in sessions.read("Assuming")] == [
        f"{n} tokens are one sequence" for n in (3, 4)
    ]
    properties = ElementTree.parse(sessions.folder / "junit.xml").iter("property")
    assumed = [each.get("value") for each in properties if each.get("name") == "assumptions"]
    assert sorted(map(str, assumed)) == ["3 tokens are one sequence", "4 tokens are one sequence"]
    (report,) = (sessions.database / "reports").glob("replay_report_*.md")
    # One line for both: they differ in a number.
    (line,) = [line for line in report.read_text().splitlines() if "one sequence" in line]
    assert line.startswith("| 2 | Assuming | ")
