"""--shard: parts of a collection that depend on the rows alone."""

from __future__ import annotations

import re

import pytest
from opatlas.plugins.choice import Choice, Shard
from plans import plan_of
from sessions import Sessions, row


def test_the_parts_are_disjoint_and_are_the_whole() -> None:
    digests = [f"{n * 2654435761 % 2**48:012x}" for n in range(1000)]
    parts = [{d for d in digests if Shard(i, 4).holds(d)} for i in range(1, 5)]
    assert set().union(*parts) == set(digests)
    assert sum(map(len, parts)) == len(digests)
    assert all(150 < len(part) < 350 for part in parts)


def test_a_row_stays_in_its_part_when_others_come_and_go(sessions: Sessions) -> None:
    def part(sizes: range) -> set[str]:
        sessions.write("Toy", [row(n) for n in sizes])
        plan = plan_of(sessions.database, Choice(shard=Shard(1, 2)))
        return {case.id for case in plan.tables["Toy"].to_run}

    first, later = part(range(1, 21)), part(range(40, 0, -3))
    both = part(range(19, 0, -3))
    assert 0 < len(both) < 7
    assert later & first == both


def test_a_part_without_rows_is_done_and_one_that_selects_nothing_is_not(sessions: Sessions) -> None:
    sessions.write("Toy", [row(7)])
    plan = plan_of(sessions.database, Choice(shard=Shard(1, 2)))
    empty = 1 + bool(plan.tables["Toy"].to_run)
    done = sessions.run_in_process(f"--shard={empty}/2", "test_toys.py")
    assert done.code == 0, done.output
    assert re.search(r"^nothing to do +1 ", done.output, re.MULTILINE)
    wrong = sessions.run_in_process(f"--shard={empty}/2", "-k", "nothing_of_this_name", "test_toys.py")
    assert wrong.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "nothing to do" not in wrong
