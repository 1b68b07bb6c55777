"""Which files and classes of the project one CPU row visits.

    python -m tests.benchmarks.row_walk [--files]

Measures a row in a device process and one with `--in-process`, which shows what a device process runs. A file is
visited if one of its functions runs; an import does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.children import ROOT

_ROW = {
    "OP State": "dynamic", "Accelerator Core": "AI_VECTOR_CORE", "Input Shapes": "8,16;8,16",
    "Input Data Types": "FLOAT;FLOAT", "Input Formats": "ND;ND", "Output Shapes": "8,16",
    "Output Data Types": "FLOAT", "Output Formats": "ND",
}  # fmt: skip
TARGET_FILES = 45


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list them")
    arguments = parser.parse_args()
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
    files = sorted(file for file, functions in ran.items() if functions)
    classes = {f"{file}:{function.rpartition('.')[0]}" for file in files for function in ran[file] if "." in function}
    if arguments.files:
        print(*files, sep="\n")
    print(f"{len(files)} files (target: {TARGET_FILES}), {len(classes)} classes")
    return 0 if len(files) <= TARGET_FILES else 1


if __name__ == "__main__":
    sys.exit(main())
