"""Which files and classes of the project one CPU row visits.

    python -m tests.benchmarks.row_walk [--files]

Measures a row in a device process and one with `--in-process`, which shows what a device process runs. A file is
visited if one of its functions runs; an import does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.children import ROOT, run_benchmark

_ROW = {
    "OP State": "dynamic", "Accelerator Core": "AI_VECTOR_CORE", "Input Shapes": "8,16;8,16",
    "Input Data Types": "FLOAT;FLOAT", "Input Formats": "ND;ND", "Output Shapes": "8,16",
    "Output Data Types": "FLOAT", "Output Formats": "ND",
}  # fmt: skip
TARGET_FILES = 45


def main(*, files: bool = False) -> int:
    """Returns 1 if a target is missed.

    Args:
        files: list them.
    """
    with tempfile.TemporaryDirectory() as name:
        database, settings = Path(name, "database"), Path(name, "coveragerc")
        database.mkdir()
        quoted = (",".join(f'"{cell}"' for cell in cells) for cells in (_ROW, _ROW.values()))
        (database / "Add.csv").write_text("\n".join(quoted) + "\n", encoding="utf-8")
        settings.write_text(f"[run]\nparallel = true\nsource = {ROOT}\n")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "bench", "-q"]
        command += ["-p", "no:cacheprovider", f"--database-path={database}", "--repeat-count=3"]
        environment = {**os.environ, "COVERAGE_FILE": str(Path(name, ".coverage"))}
        for more in ([], ["--in-process"]):
            subprocess.run([*command, *more], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        for step in (["combine", "-q"], ["json", "-q", "-i", "-o", str(Path(name, "found.json"))]):
            subprocess.run([sys.executable, "-m", "coverage", step[0], f"--rcfile={settings}", *step[1:]], cwd=ROOT,
                           env=environment, check=True)  # fmt: skip
        found = json.loads(Path(name, "found.json").read_text())["files"]
    ran = {
        file: [function for function, of in regions["functions"].items() if function and of["executed_lines"]]
        for file, regions in found.items()
        if not file.startswith("tests")
    }
    visited = sorted(file for file, functions in ran.items() if functions)
    classes = {f"{file}:{function.rpartition('.')[0]}" for file in visited for function in ran[file] if "." in function}
    if files:
        print(*visited, sep="\n")
    print(f"{len(visited)} files (target: {TARGET_FILES}), {len(classes)} classes")
    return 0 if len(visited) <= TARGET_FILES else 1


if __name__ == "__main__":
    run_benchmark(main)
