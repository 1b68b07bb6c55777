"""How the implementations of a session compare, for its last lines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from opatlas.ask.compare.comparison import compare_databases
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.errors import OpAtlasError
from opatlas.show.compared import figures_table, rows_table
from opatlas.show.result import Part, Table

from .plan import Plan
from .settings import Settings

#: More implementations are left to `opatlas compare`.
_MOST_RIVALS = 3
#: The most rows with durations of two hosts that are named.
_MOST_NAMED = 3


def comparison_parts(
    settings: Settings, plan: Plan, measured: Collection[str], hosts: Mapping[str, str]
) -> Iterator[Part]:
    """Yields the speed-up of a few implementations over the default; nothing unless both have durations.

    Args:
        measured: ids of the cases that the session measured.
        hosts: the machine of a cluster that measured each of them; empty without a cluster.
    """
    default = next((each for each in settings.targets if each.implementation.is_default), None)
    suffixes = {each.implementation.suffix for each in settings.targets}
    by_suffix = {
        suffix: {
            case_id.removesuffix(suffix) for table in tables for case_id in table.cases.values() if case_id in measured
        }
        for suffix in suffixes
        if (tables := [table for table in plan.tables.values() if table.suffix == suffix])
    }
    rivals = [each for each in settings.targets if each is not default and by_suffix.get(each.implementation.suffix)]
    if default is None or not settings.writes or not 0 < len(rivals) <= _MOST_RIVALS:
        return
    databases = [
        ComparedDatabase(each.implementation.name, each.path, each.implementation.version, is_default=each is default)
        for each in (default, *rivals)
    ]
    try:
        found = compare_databases(databases, kernel_types=sorted({table.kernel_type for table in plan.tables.values()}))
    except OpAtlasError as error:
        yield str(error)
        return
    for number, rival in enumerate(databases[1:]):
        suffix = rivals[number].implementation.suffix
        ids = by_suffix[suffix]
        rows = replace(found, rows=[row for row in found.rows if row.case_id in ids])
        if any(rival.name in row.pairs for row in rows.rows):
            yield figures_table(rows, [rival])
            if (compared := rows_table(rows, rival)).rows:
                yield compared
            pairs = {
                row: (hosts.get(f"{row}{default.implementation.suffix}", ""), hosts.get(f"{row}{suffix}", ""))
                for row in sorted(ids)
            }
            yield from host_table(pairs, databases[0].label, rival.label)


def host_table(hosts: Mapping[str, tuple[str, str]], baseline: str, rival: str) -> Iterator[Table]:
    """Yields a table of the rows whose two durations are of different machines of a cluster.

    Args:
        hosts: the machines of the baseline and of the rival by row; "" where the session did not measure one.
    """
    differ = [(row, *pair) for row, pair in hosts.items() if all(pair) and pair[0] != pair[1]]
    if differ:
        shown = differ[:_MOST_NAMED]
        title = "durations of two hosts: the speed-up is also one of the hosts"
        yield Table(("row", baseline, rival), shown, title, left_out=len(differ) - len(shown))
