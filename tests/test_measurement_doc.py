"""The instruments on the pages are those of the code."""

from __future__ import annotations

import re

from doc_commands import ROOT

from opatlas.run.devices.device import device_kinds


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def offered(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Instruments by kind, in their order, of (kind, instrument)."""
    found: dict[str, list[str]] = {}
    for kind, instrument in pairs:
        found.setdefault(kind.lower(), []).append(instrument)
    return found


OFFERED_BY_KIND = {name: list(kind.instruments) for name, kind in device_kinds().items()}


def test_the_table_of_instruments_has_each_the_best_one_first() -> None:
    table = page("measurement.md").partition("\n| instrument | device | what a duration is |\n| --- | --- | --- |\n")[2]
    rows = re.findall(r"^\| ([\w-]+) \| (\w+) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert offered([(kind, name) for name, kind in rows]) == OFFERED_BY_KIND


def test_the_option_lists_its_choices() -> None:
    (row,) = re.findall(r"^\| `--instrument` \|.*$", page("bench.md"), re.MULTILINE)
    lists = re.findall(r"(\w+): ((?:`[\w-]+`(?:, )?)+)", row)
    assert offered([(kind, name) for kind, names in lists for name in re.findall(r"`([\w-]+)`", names)]) == (
        OFFERED_BY_KIND
    )
