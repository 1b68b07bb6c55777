"""A kernel that writes records of other rows into the journals of its session changes no row."""

from __future__ import annotations

import pytest
from sessions import Sessions, row

#: All rows but the first two write copies of all records, with other durations, into each journal and into new ones.
FORGING = """
import json
from pathlib import Path

from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays

JOURNALS = Path(__file__).parent / "database" / "journal"


def forge():
    for path in list(JOURNALS.glob("*.jsonl")):
        lines = []
        for line in path.read_text().splitlines()[1:]:
            record = json.loads(line)
            if record.get("measurement"):
                record["measurement"]["samples_us"] = [0.123]
                lines.append(json.dumps(record) + "\\n")
        with open(path, "a") as file:
            file.write("".join(lines))
        if lines and "forged" not in path.name:
            forged = path.with_name(f"{path.stem}-forged.jsonl")
            forged.write_text(path.read_text())
            other = path.with_name("20260101T000000-aaaaaa.jsonl")
            other.write_text(path.read_text().replace(path.stem[:22], other.stem))


@replays("Toy", npu=None)
def test_toy(row, replay):
    if row.shape(0)[0] > 2:
        forge()
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_records_that_a_kernel_writes_into_journals_do_not_count_and_fail_the_session(
    sessions: Sessions, options: tuple[str, ...]
) -> None:
    (sessions.folder / "test_toys.py").write_text(FORGING)
    sizes = range(1, 9)
    sessions.write("Toy", [row(size) for size in sizes])
    done = sessions.run(*options)
    assert (done.code, done.ledger()) == (1, {"measured": 8})
    assert sessions.statuses("Toy") == dict.fromkeys(sizes, "measured")
    assert "0.1230" not in {each["Average Duration(us)"] for each in sessions.read("Toy")}
    journals = sessions.database / "journal"
    kept = sorted(journals.glob("*.refused*"))
    assert any("-forged" in path.name for path in kept)
    assert any(path.name.startswith("20260101") for path in kept)
    kept = [path for path in kept if "-forged" not in path.name and not path.name.startswith("20260101")]
    assert kept
    assert done.has_line(f"{kept[0].name.partition('.refused')[0]}:", "Toy")
    assert any(str(path) in done for path in kept)
    assert not list(journals.glob("*.jsonl"))
    # The next session has no trouble with what is kept.
    assert sessions.run_in_process("-k", "Toy-1_1").code == 0
