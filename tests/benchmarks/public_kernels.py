"""Turns public generated kernels into folders of tasks and candidates, and counts what the static rules say of them.

    python -m tests.benchmarks.public_kernels write SETS OUT     SETS holds checkouts named owner+name
    python -m tests.benchmarks.public_kernels count OUT          classes and notes of all candidates, from their sources
    python -m tests.benchmarks.public_kernels run OUT NAME       judges the candidates of one folder, in parallel
    python -m tests.benchmarks.public_kernels run OUT NAME --timed      measures those that passed
    python -m tests.benchmarks.public_kernels report OUT         counts by class, claimed against measured speed-up

`write` makes OUT/tasks/NAME and OUT/candidates/NAME for each NAME, and OUT/claims.csv with the speed-ups that their
authors state. Then `pytest bench/ --tasks OUT/tasks/NAME --implementation OUT/candidates/NAME` measures them.
Nothing of the sets becomes part of this checkout. docs/candidates.md has the results.

cuda_l1                       CUDA-L1, optimized_cuda_code/h100.json, with the tasks that it was made for
cuda_l1_without_fallbacks     the same; a handler that swallows an exception raises it instead, and modules are in
                              evaluation mode, as CUDA-L1 compares them
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
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from opatlas.outer.judging.failures import CandidateFailure, Phase, classify
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.judging.static_rules import is_installed, static_check, static_findings
from opatlas.typed_json import decode

#: The end of the name of a folder whose candidates raise what they would swallow.
WITHOUT = "_without_fallbacks"
CUDA_L1, KERNELBENCH = Path("deepreinforce-ai+CUDA-L1"), Path("ScalingIntelligence+KernelBench")
AKG, ROBUST = Path("mindspore-ai+akg", "akg_agents"), Path("SakanaAI+robust-kbench")
#: CUDA-L1 compares modules in evaluation mode, where normalizations use their running statistics.
_EVALUATION = """

def _in_evaluation_mode(initialize):
    def initialized(self, *arguments, **named):
        initialize(self, *arguments, **named)
        self.eval()

    return initialized


{0}.__init__ = _in_evaluation_mode({0}.__init__)
"""
#: Kernels that AKG has verified, below its folder.
ASCEND = Path("database", "local", "ascend910b4", "triton_ascend")
#: What the machine with the device has, beside what is installed here.
ON_DEVICE = frozenset({"torch", "triton", "numpy"})
#: Seconds for one candidate, compilation included.
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
    # Some tasks of level 1 had other names in KernelBench's first version, which both sets are made for.
    names |= {(1, int(path.stem.partition("_")[0])): path.stem for path in (sets / AKG / ASCEND).glob("*.py")}
    for line in (sets / CUDA_L1 / "optimized_cuda_code" / "h100.json").read_text("utf-8").splitlines():
        entry = json.loads(line)
        level, number = entry["level_id"], entry["task_id"]
        path = Path(f"level{level}", f"{names[level, number]}.py")
        for folder in ["cuda_l1", "akg_ascend910b4"] if level == 1 else ["cuda_l1"]:
            _put(out / "tasks" / folder / path, entry["ref_code"])
        _put(out / "tasks" / f"cuda_l1{WITHOUT}" / path, entry["ref_code"] + _EVALUATION.format("Model"))
        if source := entry["custom_code"]:
            _put(out / "candidates" / "cuda_l1" / path, source)
            changed = without_fallbacks(source)
            ending = _EVALUATION.format("ModelNew") if "class ModelNew" in source else ""
            _put(out / "candidates" / f"cuda_l1{WITHOUT}" / path, changed + ending)
            yield "cuda_l1", path.with_suffix("").as_posix(), entry["score_default"], "H100"


def _akg(sets: Path, out: Path) -> Iterator[tuple[str, str, float, str]]:
    for path in sorted((sets / AKG / ASCEND).glob("*.py")):
        _put(out / "candidates" / "akg_ascend910b4" / "level1" / path.name, path.read_text("utf-8"))
    report = sets / AKG / "database" / "test_report" / "ascend910b4" / "profiling_report_for_ascend910b4.md"
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


def run(out: Path, name: str, jobs: int, *, timed: bool) -> None:
    """Judges the candidates of one folder, each in a process of its own; writes OUT/judged/NAME.jsonl.

    The first pass compiles in parallel and measures nothing. The second pass, with `timed`, measures the candidates
    that passed, one at a time, while the others start.
    """
    folder, tasks = out / "candidates" / name, out / "tasks" / name
    tasks = tasks / "tasks" if (tasks / "tasks").is_dir() else tasks
    file = out / "judged" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    judged = _judged(file)
    wanted = [path for path in sorted(folder.rglob("*.py")) if _is_next(judged.get(_name(folder, path)), timed)]
    # The sources that a compiler of C++ reads take longest.
    wanted.sort(key=lambda path: "load_inline(" not in path.read_text("utf-8"))
    pool = ThreadPoolExecutor(jobs)
    lock = out / "device.lock" if timed else None
    futures = {pool.submit(_judge, out, tasks, folder, path, lock): path for path in wanted}
    try:
        with file.open("a", encoding="utf-8") as stream:
            for future in as_completed(futures):
                record = {"candidate": _name(folder, futures[future]), **asdict(future.result())}
                stream.write(json.dumps(record) + "\n")
                stream.flush()
    except KeyboardInterrupt:
        print("interrupted: run it again to go on")
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(_running):
            os.killpg(process.pid, signal.SIGKILL)
    report(out)
    sys.stdout.flush()
    # Threads whose processes were killed have nothing to tell.
    os._exit(0)


#: The processes of candidates. Each leads a group, with its compilers.
_running: set[subprocess.Popen[str]] = set()


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _judged(file: Path) -> dict[str, Judgement]:
    """Returns the last judgement of each candidate."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines]
    return {record.pop("candidate"): _judgement(record) for record in records}


def _judgement(record: dict[str, Any]) -> Judgement:
    found: Judgement = decode(json.dumps(record), Judgement, "judgement")
    return found


def _is_next(judgement: Judgement | None, timed: bool) -> bool:
    """Returns whether a pass tries a candidate. Where other processes took the memory, it is tried again."""
    if timed:
        return judgement is not None and judgement.passed and judgement.level is Level.CORRECT
    return judgement is None or judgement.error_class is ErrorClass.OOM


def _judge(out: Path, tasks: Path, folder: Path, path: Path, lock: Path | None) -> Judgement:
    if failed := static_check(path.read_text("utf-8"), path, installed=_on_device):
        return failed
    task = tasks / path.relative_to(folder)
    task = task if task.exists() else task.with_name(f"func_{task.name}")
    command = [sys.executable, "-m", "tests.benchmarks.kernel_trial", str(task), str(path)]
    command += ["--timed", str(lock)] if lock else []
    # Candidates give their extensions the same names.
    extensions = Path(os.environ.get("TORCH_EXTENSIONS_DIR", out / "extensions"), *path.relative_to(folder).parts)
    with subprocess.Popen(
        command,
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(extensions)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        _running.add(process)
        try:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return classify(CandidateFailure(Phase.FIRST_CALL, timed_out=True))
        finally:
            _running.discard(process)
    said = stdout.strip().rpartition("\n")[2]
    if said.startswith("{"):
        return _judgement(json.loads(said))
    number = max(0, -process.returncode)
    name = signal.Signals(number).name if number else ""
    code = None if number else process.returncode
    return classify(CandidateFailure(Phase.FIRST_CALL, stderr=stderr[-4000:], signal=name, exit_code=code))


def report(out: Path) -> None:
    """Prints for each folder the counts by class, and claimed against measured speed-ups."""
    with (out / "claims.csv").open(encoding="utf-8", newline="") as stream:
        claims = {(row["folder"], row["task"]): float(row["claimed speed-up"]) for row in csv.DictReader(stream)}
    for file in sorted((out / "judged").glob("*.jsonl")):
        judged = _judged(file)
        print(f"{file.stem}: {len(judged)} candidates")
        classes = Counter(f"{each.error_class} {each.sub_class}".strip() for each in judged.values())
        print("".join(f"  {n:4} {name}\n" for name, n in classes.most_common()), end="")
        passed = {name: each for name, each in judged.items() if each.passed}
        print(
            f"  of {len(passed)} that pass, {sum(each.within_1e3 is False for each in passed.values())} are beyond 1e-3"
        )
        pairs = [
            (claims[key], each.baseline_us / each.duration_us, each.kernel_share or 0.0)
            for name, each in passed.items()
            if each.duration_us and each.baseline_us and (key := (file.stem.removesuffix(WITHOUT), name)) in claims
        ]
        for title, some in (("all", pairs), ("own kernels > 50 %", [each for each in pairs if each[2] > 0.5])):
            if some:
                claimed, measured = (geometric_mean(each[place] for each in some) for place in (0, 1))
                faster = sum(each[1] > 1.01 for each in some), sum(each[0] > 1.01 for each in some)
                print(
                    f"  {title}: {len(some)} measured; geometric means {claimed:.2f} claimed, {measured:.2f} measured; "
                    f"faster than 1.01: {faster[1]} claimed, {faster[0]} measured"
                )


def main() -> None:
    """Runs the named step."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = arguments.add_subparsers(dest="step", required=True)
    for step, places in (("write", ["sets", "out"]), ("count", ["out"]), ("report", ["out"])):
        parser = steps.add_parser(step)
        for place in places:
            parser.add_argument(place, type=Path)
    parser = steps.add_parser("run")
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: all cores)")
    parser.add_argument("--timed", action="store_true", help="measure the candidates that passed (default: judge all)")
    given = arguments.parse_args()
    if given.step == "write":
        shutil.rmtree(given.out, ignore_errors=True)
        write(given.sets, given.out)
    elif given.step == "count":
        count(given.out)
    elif given.step == "report":
        report(given.out)
    else:
        run(given.out, given.name, given.jobs, timed=given.timed)


if __name__ == "__main__":
    main()
