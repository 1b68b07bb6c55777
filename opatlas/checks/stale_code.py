"""Each run was measured by the code that is here now.

A finding is a run whose manifest has another digest of the code (opatlas/store/manifest.py). Any change of the code
changes
the digest, most of them change no duration, and a database that ships is older than the code that it ships with: so
these findings are advisory.
"""

from __future__ import annotations

from opatlas.checks.check import Check, CheckedDatabase, Finding
from opatlas.text import counted

_DIGITS = 12


def _find(database: CheckedDatabase) -> list[Finding]:
    rows = database.rows_of_runs
    code = database.code[:_DIGITS]
    found = []
    for run_id, manifest in database.manifests.items():
        if rows[run_id] and manifest.code != database.code:
            reason = f"{counted(rows[run_id], 'row')} of code {manifest.code[:_DIGITS]}, the code is {code} now"
            path = str(database.database.runs_dir / f"{run_id}.json")
            found.append(Finding(path, None, "", run_id, manifest.code[:_DIGITS], reason, rows[run_id]))
    return found


STALE_CODE = Check(
    "stale-code",
    "runs that other code measured",
    "measure again where what changed bears on durations (git log)",
    of_database=_find,
    advisory=True,
    applies=lambda database: "" if database.code else "the digest of the code is not known",
)
