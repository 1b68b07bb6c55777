"""Runs one probe, in the process that opatlas/doctor/isolation.py starts for it."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from opatlas.doctor.verdict import Target, failed
from opatlas.errors import OpAtlasError
from opatlas.isolation.process_end import die_with_parent
from opatlas.text import in_a_line


def main(module: str, name: str, target: str, verdict_file: str) -> None:
    """Runs probe `name` of a module on a target, as JSON; writes its verdict, as JSON, into a file."""
    die_with_parent()
    try:
        verdict = getattr(import_module(module), name)(Target.from_json(target))
    except OpAtlasError as error:
        # Its message ends with the remedy.
        verdict = failed(str(error))
    except Exception as error:  # whatever a library raises is what was to be found out
        verdict = failed(in_a_line(error), traceback=traceback.format_exc())
    Path(verdict_file).write_text(json.dumps(asdict(verdict)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
