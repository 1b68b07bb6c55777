"""Turns public generated kernels into folders of tasks and candidates, and counts what the static rules say of them.

    python -m tests.benchmarks.public_kernels write SETS OUT     SETS holds checkouts named owner+name
    python -m tests.benchmarks.public_kernels count OUT          classes and notes of all candidates, from their sources
    python -m tests.benchmarks.public_kernels build OUT NAME     compiles the CUDA sources of one folder, in parallel

`write` makes OUT/tasks/NAME and OUT/candidates/NAME for each NAME, and OUT/claims.csv with the speed-ups that their
authors state. Then `pytest bench/ --tasks OUT/tasks/NAME --implementation OUT/candidates/NAME` measures them.
Nothing of the sets becomes part of this checkout. docs/generated-kernels.md has the results.

cuda_l1                       CUDA-L1, optimized_cuda_code/h100.json, with the tasks that it was made for
cuda_l1_without_fallbacks     the same; a handler that swallows an exception raises it instead
akg_ascend910b4               AKG, database/local/ascend910b4/triton_ascend, with CUDA-L1's copies of the tasks
akg_kernels_bench             AKG, benchmark/akg_kernels_bench/triton_ascend/impl
robust_kbench                 robust-kbench, highlighted/*/forward, wrapped into the module of its task
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opatlas.candidates.error_class import CandidateFailure, Phase, classify
from opatlas.candidates.judgement import ErrorClass
from opatlas.candidates.static_rules import is_installed, static_check, static_findings

CUDA_L1, KERNELBENCH = Path("deepreinforce-ai+CUDA-L1"), Path("ScalingIntelligence+KernelBench")
AKG, ROBUST = Path("mindspore-ai+akg", "akg_agents"), Path("SakanaAI+robust-kbench")
#: What the machine with the device has, beside what is installed here.
ON_DEVICE = frozenset({"torch", "triton", "numpy"})
#: Seconds for import, construction and first call of one candidate.
DEADLINE_S = 400.0


def write(sets: Path, out: Path) -> None:
    """Writes tasks, candidates and claims."""
    claims = [*_cuda_l1(sets, out), *_akg(sets, out), *_robust(sets, out)]
    with (out / "claims.csv").open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["folder", "task", "claimed speed-up", "device"])
        rows.writerows(claims)
    print(f"{out}: {len(claims)} claims")


def _cuda_l1(sets: Path, out: Path) -> Iterator[tuple[str, str, float, str]]:
    names = {
        (int(path.parent.name.removeprefix("level")), int(path.stem.partition("_")[0])): path.stem
        for path in (sets / KERNELBENCH / "KernelBench").glob("level*/*_*.py")
    }
    for line in (sets / CUDA_L1 / "optimized_cuda_code" / "h100.json").read_text("utf-8").splitlines():
        entry = json.loads(line)
        level, number = entry["level_id"], entry["task_id"]
        path = Path(f"level{level}", f"{names[level, number]}.py")
        folders = ["cuda_l1", "cuda_l1_without_fallbacks"]
        if level == 1:
            folders.append("akg_ascend910b4")
        for folder in folders:
            _put(out / "tasks" / folder / path, entry["ref_code"])
        if entry["custom_code"]:
            _put(out / "candidates" / "cuda_l1" / path, entry["custom_code"])
            _put(out / "candidates" / "cuda_l1_without_fallbacks" / path, without_fallbacks(entry["custom_code"]))
            yield "cuda_l1", path.with_suffix("").as_posix(), entry["score_default"], "H100"


def _akg(sets: Path, out: Path) -> Iterator[tuple[str, str, float, str]]:
    database = sets / AKG / "database"
    for path in sorted((database / "local" / "ascend910b4" / "triton_ascend").glob("*.py")):
        _put(out / "candidates" / "akg_ascend910b4" / "level1" / path.name, path.read_text("utf-8"))
    report = database / "test_report" / "ascend910b4" / "profiling_report_for_ascend910b4.md"
    for name, speed_up in re.findall(r"^\| \d+ \| (\w+) \| PASS \|.*\| ([\d.]+)x \|$", report.read_text("utf-8"), re.M):
        yield "akg_ascend910b4", f"level1/{name}", float(speed_up), "Ascend 910B4"
    bench = sets / AKG / "benchmark" / "akg_kernels_bench"
    implementations = bench / "triton_ascend" / "impl"
    for path in sorted(implementations.rglob("*.py")):
        within = path.relative_to(implementations)
        _put(out / "candidates" / "akg_kernels_bench" / within, path.read_text("utf-8"))
        _put(out / "tasks" / "akg_kernels_bench" / within, (bench / within).read_text("utf-8"))


def _robust(sets: Path, out: Path) -> Iterator[tuple[str, str, float, str]]:
    for source in sorted((sets / ROBUST / "highlighted").glob("*/forward/kernel.cu")):
        name = source.parents[1].name
        task = sets / ROBUST / "tasks" / name
        for file in ("func_forward.py", "config_forward.json"):
            _put(out / "tasks" / "robust_kbench" / "tasks" / name / file, (task / file).read_text("utf-8"))
        wrapped = _wrapped((task / "func_forward.py").read_text("utf-8"), source.read_text("utf-8"), name)
        _put(out / "candidates" / "robust_kbench" / name / "forward.py", wrapped)
    with (sets / ROBUST / "highlighted" / "results.csv").open(encoding="utf-8", newline="") as stream:
        csv.field_size_limit(1 << 24)
        for row in csv.DictReader(stream):
            if row["forward"] == "True":
                yield "robust_kbench", f"{row['task_name']}/forward", float(row["Speedup"]), "H100"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def without_fallbacks(source: str) -> str:
    """Returns a source whose exception handlers raise what they would swallow; one that is not Python as it is."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    lines = source.splitlines(keepends=True)
    first = [
        handler.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for handler in node.handlers
        if not any(isinstance(each, ast.Raise) for each in ast.walk(handler))
    ]
    for statement in sorted(first, key=lambda each: each.lineno, reverse=True):
        line = lines[statement.lineno - 1].encode()
        before, after = line[: statement.col_offset].decode(), line[statement.col_offset :].decode()
        lines[statement.lineno - 1] = f"{before}raise{'; ' if before.strip() else chr(10) + before}{after}"
    return "".join(lines)


def _wrapped(task: str, source: str, name: str) -> str:
    """Returns the module of a task of robust-kbench with its function computed by a CUDA source."""
    tree = ast.parse(task)
    kept = [
        node
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef) and node.name in ("forward_fn", "get_inputs"))
    ]
    imports = [node for node in kept if isinstance(node, ast.Import | ast.ImportFrom)]
    rest = "\n\n".join(ast.unparse(node) for node in kept if node not in imports)
    rest = re.sub(r"\bModel\b", "ModelNew", rest)
    head = "\n".join(ast.unparse(node) for node in imports)
    return (
        f"{head}\nfrom torch.utils.cpp_extension import load_inline\n\n"
        f"_SOURCE = {source!r}\n"
        f"forward_fn = load_inline('robust_{name}', cpp_sources='', cuda_sources=_SOURCE).forward\n\n\n{rest}\n"
    )


def count(out: Path) -> None:
    """Prints how many candidates each rule fails and each note is told of; writes OUT/static.csv."""
    with (out / "static.csv").open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["folder", "candidate", "class", "rule", "text", "findings"])
        for folder in sorted((out / "candidates").iterdir()):
            classes: Counter[str] = Counter()
            found: Counter[str] = Counter()
            for path in sorted(folder.rglob("*.py")):
                source = path.read_text("utf-8")
                judgement = static_check(source, path, installed=_on_device)
                names = sorted({rule.name for rule, _ in static_findings(source, path, installed=_on_device)})
                found.update(names)
                verdict = f"{judgement.error_class}: {judgement.sub_class}" if judgement else "no rule fails it"
                classes[verdict] += 1
                error_class, _, rule = verdict.partition(": ") if judgement else ("", "", "")
                text = judgement.text if judgement else ""
                rows.writerow([folder.name, path.relative_to(folder), error_class, rule, text, " ".join(names)])
            print(f"{folder.name}: {sum(classes.values())} candidates")
            for title, counts in (("judged", classes), ("found", found)):
                print("".join(f"  {title} {n:4} {name}\n" for name, n in counts.most_common()), end="")


def _on_device(module: str) -> bool:
    return module in ON_DEVICE or is_installed(module)


def build(out: Path, name: str, jobs: int) -> None:
    """Runs import, construction and first call of the candidates with CUDA sources, each in a process; prints classes.

    The extensions go to the folder that TORCH_EXTENSIONS_DIR names, where later processes find them.
    """
    folder = out / "candidates" / name
    tasks = out / "tasks" / name
    tasks = tasks / "tasks" if (tasks / "tasks").is_dir() else tasks
    native = [path for path in sorted(folder.rglob("*.py")) if "load_inline(" in path.read_text("utf-8")]
    with ThreadPoolExecutor(jobs) as pool:
        ends = list(pool.map(lambda path: _first_call(tasks, folder, path), native))
    with (out / f"build_{name}.csv").open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["candidate", "class", "sub-class", "text"])
        for path, (verdict, text) in zip(native, ends, strict=True):
            rows.writerow([path.relative_to(folder), *verdict, text[:4000]])
    for (error_class, sub_class), n in Counter(verdict for verdict, _ in ends).most_common():
        print(f"{n:4} {error_class} {sub_class}")


def _first_call(tasks: Path, folder: Path, path: Path) -> tuple[tuple[str, str], str]:
    task = tasks / path.relative_to(folder)
    if not task.exists():
        task = task.with_name(f"func_{task.name}")
    command = [sys.executable, "-m", "tests.benchmarks.public_kernels", "call", str(task), str(path)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return (str(ErrorClass.TIMEOUT), ""), f"still running after {DEADLINE_S:g} s"
    said = ended.stdout.strip().rpartition("\n")[2]
    if said.startswith("{"):
        found = json.loads(said)
        if not found["exception"]:
            return (str(ErrorClass.PASS), ""), ""
        failure = CandidateFailure(Phase(found["phase"]), found["exception"], found["text"], tuple(found["functions"]))
    else:
        failure = CandidateFailure(Phase.FIRST_CALL, stderr=ended.stderr[-4000:], exit_code=ended.returncode)
    judgement = classify(failure)
    return (str(judgement.error_class), judgement.sub_class), judgement.text


def call(task_path: Path, candidate: Path) -> None:
    """Imports, constructs and calls one candidate on the GPU. The last line on stdout is a JSON object."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    phase = Phase.IMPORT
    found: Mapping[str, object] = {"exception": ""}
    try:
        task = _module(task_path)
        module = _module(candidate)
        phase = Phase.CONSTRUCTION
        configuration = task_path.with_name("config_forward.json")
        initial: dict[str, object] = {}
        wanted: dict[str, object] = {}
        if configuration.exists():
            content = json.loads(configuration.read_text("utf-8"))
            shared = content["single_shared_configs"][0]
            initial, wanted = (
                {**content["single_init_configs"][0], **shared},
                {**content["single_input_configs"][0], **shared},
            )
        arguments = task["get_init_inputs"]() if "get_init_inputs" in task else []  # type: ignore[operator]
        model = module["ModelNew"](*arguments, **initial).to(device)  # type: ignore[operator]
        inputs = [each.to(device) if isinstance(each, torch.Tensor) else each for each in task["get_inputs"](**wanted)]  # type: ignore[operator]
        phase = Phase.FIRST_CALL
        with torch.no_grad():
            model(*inputs)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        functions = [frame.name for frame in frames if frame.filename == str(candidate)]
        text = "".join(traceback.format_exception_only(error)).strip()[-20000:]
        found = {"phase": phase, "exception": type(error).__name__, "text": text, "functions": functions}
    print(f"\n{json.dumps(found)}", flush=True)
    os._exit(0)


def _module(path: Path) -> dict[str, object]:
    names: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), names)
    return names


def main() -> None:
    """Runs the named step."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = arguments.add_subparsers(dest="step", required=True)
    for step, places in (("write", ["sets", "out"]), ("count", ["out"]), ("call", ["task", "candidate"])):
        parser = steps.add_parser(step)
        for place in places:
            parser.add_argument(place, type=Path)
    parser = steps.add_parser("build")
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: all cores)")
    given = arguments.parse_args()
    if given.step == "write":
        shutil.rmtree(given.out, ignore_errors=True)
        write(given.sets, given.out)
    elif given.step == "count":
        count(given.out)
    elif given.step == "build":
        build(given.out, given.name, given.jobs)
    else:
        call(given.task, given.candidate)


if __name__ == "__main__":
    main()
