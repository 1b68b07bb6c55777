"""The commands of `opatlas`, in groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """`opatlas NAME ...`, a function that returns a Result, or a session of pytest.

    Attributes:
        group: the heading in the help, which says what a person wants.
        about: what the command does, in a line.
        function: `module:name`; "" for a session of pytest.
        tests: what a session of pytest collects, such as "bench/test_collectives.py".
    """

    group: str
    about: str
    function: str = ""
    tests: str = ""


#: In the order of the help.
COMMANDS = {
    "ingest": Command("Rows", "bring captures, and lengths of attention, into a database", "ingest:ingest"),
    "shapes": Command("Rows", "add theory rows of models to the database", tests="shapes"),
    "combine": Command("Rows", "combine databases that were measured separately", "combine:combine"),
    "export": Command("Rows", "write the rows for other tools: Parquet, CSV, aiconfigurator", "export:export"),
    "doctor": Command("Measure", "examine whether this machine can measure rows", "doctor:doctor"),
    "bench": Command("Measure", "replay the rows of the database on a device", tests="bench"),
    "collectives": Command("Measure", "measure collectives between devices", tests="bench/test_collectives.py"),
    "show": Command("Look", "show the databases, one of them, or the kernel types", "show:show"),
    "check": Command("Look", "test the data of a database", "check:check"),
    "history": Command("Look", "show the durations of each run, and which changed; restore rows", "history:history"),
    "report": Command("Look", "write a site that shows a database in a browser", "report:report"),
    "query": Command("Ask", "the duration of a call, measured or predicted", "query:query"),
    "model": Command("Ask", "the cost of a step of a model, and which rows to measure next", "model:model"),
    "compare": Command("Ask", "which implementation or database is faster, row by row", "compare:compare"),
    "diagnose": Command("Ask", "why kernels are slow; which scopes a SuperKernel may fuse", "diagnose:diagnose"),
    "implementations": Command(
        "Kernels", "list implementations of kernels; begin one of your own", "implementations:implementations"
    ),
    "score": Command("Kernels", "score kernels that a suite or an experiment judged", "score:score"),
}
