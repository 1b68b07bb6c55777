"""A stand-in for msprof: runs a program, and writes its launches into a PROF_ folder in msprof's layout.

It gets the launches of the program from stand_in_npu.py. It fails in the ways that STAND_IN_FAULTS
names: `{"1": "cut"}` cuts the summary of the first profile of the session short, and `{"1/rank0": "cut"}` that of the
first rank of the first group.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

FAULTS = "STAND_IN_FAULTS"
LAUNCHES = "STAND_IN_LAUNCHES"
BASE = (
    *("Input Shapes", "Input Data Types", "Input Formats"),
    *("Output Shapes", "Output Data Types", "Output Formats"),
)
COUNTERS = ("aicore_time(us)", "aic_total_cycles", "aic_mac_ratio")


def main(words: list[str]) -> int:
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    if set("'\"\\%><|&$;`") & set(options.get("output", "")) or len(options.get("output", "")) > 1024:
        # Of the runtime's validation of parameters.
        print("[ERROR] Argument --output is invalid because of containing illegal characters", file=sys.stderr)
        return 1
    print("[INFO] Start profiling....")
    if options.get("export") == "on":
        profile = Path(options["output"])
        if fault_of(profile.parent) in ("no-export", "slow"):
            print("[ERROR] export failed", file=sys.stderr)
            return 1
        write_summary(profile, "", options)
        return 0
    first = next(place for place, word in enumerate(words) if not word.startswith("--"))
    output = Path(options["output"])
    fault = fault_of(output)
    if fault == "no-start":
        print("[ERROR] msprof cannot start", file=sys.stderr)
        return 1
    profile = output / "PROF_000001_20261121203158123_ABCDEFGH"
    (profile / "host").mkdir(parents=True)
    launches = profile / "host" / "launches.jsonl"
    # As msprof does: descriptors stay open, and the caller's environment is handed on.
    process = subprocess.Popen(words[first:], env={**os.environ, LAUNCHES: str(launches)}, close_fds=False)
    if fault == "killed":
        # As the system does for want of memory, in the first row.
        while not (launches.exists() and '"Neg"' in launches.read_text()):
            time.sleep(0.01)
        process.kill()
    code = process.wait()
    if fault == "hang":
        time.sleep(1000)
    if fault == "slow":
        time.sleep(3)
    if fault not in ("exit-1", "no-export"):
        write_summary(profile, fault, options)
    return 1 if fault in ("exit-1", "exit-1-with-summary", "no-export") else code


def write_program(folder: Path) -> Path:
    """Writes the program `msprof` into a folder, so that PATH may name it."""
    path = folder / "msprof"
    script = Path(__file__).resolve()
    path.write_text(f"#!{sys.executable}\nimport runpy\n\nrunpy.run_path({str(script)!r}, run_name='__main__')\n")
    path.chmod(0o755)
    return path


def fault_of(output: Path) -> str:
    """The fault of the profiles written there: below the folder of a session, perhaps in one for each rank."""
    faults = json.loads(os.environ.get(FAULTS, "{}"))
    if output.name.startswith("rank"):
        return faults.get(f"{int(output.parent.name)}/{output.name}", faults.get("all ranks", ""))
    return faults.get(str(int(output.name)), faults.get("all", ""))


def write_summary(profile: Path, fault: str, options: dict[str, str]) -> None:
    folder = profile / "mindstudio_profiler_output"
    folder.mkdir()
    path = profile / "host" / "launches.jsonl"
    launches = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    older = fault == "older-header"
    first = ("Model ID",) if older else ("Device_id", "Model ID")
    blocks = ("Block Dim", "Mix Block Dim") if older else ("Block Num", "Mix Block Num")
    header = [*first, "Task ID", "Stream ID", "Op Name", "OP Type", "OP State", "Task Type", "Task Start Time(us)"]
    header += ["Task Duration(us)", "Task Wait Time(us)", *blocks, "HF32 Eligible", *BASE, "Context ID", *COUNTERS]
    rows = []
    start_us = 1791629758426053
    for number, launch in enumerate(launches):
        # One kernel after the other, as a stream runs them.
        started_us, start_us = start_us, start_us + 10 + round(launch["us"])
        shapes = launch["cells"].get("Input Shapes", "")
        if launch["type"] == "Neg" and fault == "older-marks":
            # CANN's name of the kernel where a graph was captured.
            launch["type"] = "NegAiCore"
        if fault == "lost" and shapes.startswith("7;"):
            continue
        cells = {name: launch["cells"].get(name, "N/A") for name in BASE}
        cells["Input Shapes"] = f'"{shapes}"' if shapes else "N/A"
        rows.append(
            cells
            | {
                **({} if older else {"Device_id": "0"}),
                "Model ID": "4294967295",
                "Task ID": str(number),
                "Stream ID": "2",
                "OP Type": launch["type"],
                "Op Name": launch.get("name") or f"aclnn{launch['type']}_{launch['type']}AiCore_{launch['type']}",
                "OP State": "dynamic",
                "Task Type": "AI_VECTOR_CORE",
                # msprof ends this cell with a tab.
                "Task Start Time(us)": f"{started_us}.{number % 1000:03d}\t",
                "Task Duration(us)": f"{launch['us']:.3f}",
                "Task Wait Time(us)": "0",
                blocks[0]: "20",
                blocks[1]: "0",
                "HF32 Eligible": "NO",
                "Context ID": "N/A",
                "aicore_time(us)": "N/A" if launch["us"] == 1.4 else f"{launch['us'] / 2:.3f}",
                "aic_total_cycles": f"{launch['us'] * 1800:.0f}",
                "aic_mac_ratio": "0.5",
            }
        )
    stamp = "20261121203200"
    parts = {f"op_summary_{stamp}.csv": rows}
    if fault == "slices":
        third = len(rows) // 3
        parts = {
            f"op_summary_slice_{n}_{stamp}.csv": part
            for n, part in enumerate((rows[2 * third :], rows[:third], rows[third : 2 * third]))
        }
    if fault == "two-devices":
        others = [{**row, "Device_id": "1", "Task Duration(us)": "77777"} for row in rows if row["OP Type"] != "Neg"]
        parts[f"op_summary_1_{stamp}.csv"] = others
    for name, part in parts.items():
        with open(folder / name, "w", newline="") as file:
            writer = csv.DictWriter(file, header, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(part)
    if fault == "cut":
        path = folder / f"op_summary_{stamp}.csv"
        text = path.read_text()
        path.write_text(text[: int(len(text) * 0.6)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
