"""`opatlas report`: a site that shows a database in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.query.database import open as open_database
from opatlas.errors import UsageError
from opatlas.installation import require_extra
from opatlas.row.location import database_folder
from opatlas.show.parameters import Steps
from opatlas.show.result import Fields, Part, Result, Table
from opatlas.show.site.writer import write_site


def report(
    database: Annotated[str, Parameter(name="DB")],
    /,
    *,
    output: Path,
    against: str = "",
    step: Steps = (),
    superkernel: Path | None = None,
) -> Result:
    """Write a site that shows a database in a browser: kernel types, comparisons, costs of models, diagnosis.

    Open DIR/index.html from the disk, or copy DIR to any web server; no network is needed.

    Exit status: 0 done; 1 a file could not be read or written; 2 wrong usage.

    Args:
        database: folder of {KernelType}.csv files, or name of a device.
        output: folder of the site, made where it does not exist.
        against: a page that compares the rows with those of another database, or DB@STATE, as `opatlas compare` does.
        step: a page on what a step of a model costs: MODEL,batch=N,context=N and further tp=N, ep=N, phase=decode or
            prefill, dtype=NAME; may be given several times.
        superkernel: a page on the scopes of a capture that a SuperKernel may fuse, as `opatlas diagnose` tells.
    """
    require_extra("report", "`opatlas report`", "bokeh")
    place = database_folder(database)
    for each in step:
        if missing := [name for name in ("batch", "context") if name not in each.settings]:
            raise UsageError(f"--step {each.text} lacks {missing[0]}=N")
    if against and "@" not in against:
        against = str(database_folder(against))
    costs = [(each.text, open_database(place).model(each.model, **each.settings)) for each in step]
    site = write_site(place, output, against=against, costs=costs, capture=superkernel)
    parts: list[Part] = [
        Fields({"site": str(site.start), "kernel types": site.kernel_types}),
        Table(("of", "rows"), [*site.rows_of.items(), ("all", site.rows)], title="rows"),
    ]
    return Result(parts, problems=site.problems, status=1 if site.problems else 0)
