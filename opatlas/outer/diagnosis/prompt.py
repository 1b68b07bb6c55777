"""What a model is asked for: one kernel with counters, verdicts and code, and the constraints of the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from opatlas.capture.capture_reader import DURATION
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.formats import microseconds, percent
from opatlas.outer.diagnosis.advice import advice, is_gpu
from opatlas.outer.diagnosis.diagnosis import ROOFLINE, Diagnosis, RankedKernel
from opatlas.outer.generation.answers import ChatModel
from opatlas.outer.generation.endpoint import ChatMessage, ChatRequest
from opatlas.outer.judging.answer import read_answer
from opatlas.outer.judging.judgement import Judgement
from opatlas.row.columns import BASE, KERNEL_NAMES

#: Languages of code blocks, by the suffix of a source file.
_BLOCKS = {".py": "python", ".cpp": "cpp", ".cc": "cpp", ".asc": "cpp", ".cce": "cpp", ".cu": "cuda", ".cuh": "cuda"}
_CONSTRAINTS = """\
1. Answer with one Python file in one code block. Code in another language is text in that file, which compiles it when
   it is imported.
2. The function takes the arguments and returns the results of the interface, in its order, shapes and dtypes. It
   changes no argument, unless `Prepared(call, changes=...)` names it.
3. The results are compared with a formula in float64.
4. The kernel is written in {language}. It does the work itself, without a call of torch or of a library for it. Nothing
   is kept from one call to the next but what is compiled.
5. The file serves any row of this kernel type, or raises `Unsupported("why")` for a row that it cannot run.
6. Say before the code, in a few sentences, which verdict the change is for and what it changes."""


def prompt_text(
    diagnosis: Diagnosis, ranked: RankedKernel, *, interface: str = "", source: str = "", source_suffix: str = ".py"
) -> str:
    """Returns the question about one kernel of the ranking, as Markdown.

    Args:
        interface: a file to begin with, that has the arguments of the kernel; "" if nothing is known of them.
        source: the code of the kernel; "" to have it written anew.
        source_suffix: the suffix of its file.
    """
    return "\n".join(_lines(diagnosis, ranked, interface, source, source_suffix)).rstrip() + "\n"


def _lines(
    diagnosis: Diagnosis, ranked: RankedKernel, interface: str, source: str, source_suffix: str
) -> Iterator[str]:
    device = diagnosis.table.device
    where = device or ("an Ascend NPU" if diagnosis.table.is_capture else "this device")
    yield from (f"# Make the kernel {ranked.kernel_type} faster on {where}", "", "## The kernel", "")
    row = diagnosis.table.frame.iloc[ranked.line]
    which = "the longest" if diagnosis.table.is_capture else "the mean"
    yield f"- Duration: {microseconds(float(row[DURATION]))} us" + (
        f", {which} of {ranked.launches:,} equal launches" if ranked.launches > 1 else ""
    )
    yield f"- Roofline: {_roofline(diagnosis, ranked)}"
    if diagnosis.peaks.are_known:
        peak = diagnosis.peaks.peak
        rates = [f"{dtype} {rate:g} T/s" for dtype, rate in peak.tera_ops.items()]
        yield f"- Peaks: {', '.join([f'{peak.bandwidth_gbps or 0:g} GB/s', *rates])}"
    cores = {"cube": diagnosis.peaks.cube_cores, "vector": diagnosis.peaks.vector_cores}
    if any(cores.values()):
        yield f"- Cores: {', '.join(f'{number} {kind}' for kind, number in cores.items() if number)}"
    yield from (f"- {name}: `{cell}`" for name in (*BASE, KERNEL_NAMES) if (cell := str(row.get(name, ""))))
    if counters := diagnosis.counters(ranked.line):
        yield from ("", "## Counters", "", "| counter | value |", "| --- | --- |")
        yield from (f"| {name} | {value:g} |" for name, value in counters.items())
    yield from ("", "## Diagnosis", "")
    findings = diagnosis.findings(ranked.line)
    if not findings:
        yield "No rule holds of this kernel."
    for number, finding in enumerate(findings, 1):
        entry, rule = advice()[finding.rule.verdict], finding.rule
        cells = ", ".join(f"{name} {_value(name, cell)}" for name, cell in finding.cells.items())
        yield f"{number}. {rule.verdict}: {cells}."
        yield f"   - Rule: {rule.test}. Source: {rule.source}."
        yield f"   - What helps: {entry.what}."
        yield from (f"   - {language}: {api}." for language, api in entry.apis_of(device).items())
    yield from ("", "## Code", "")
    if source:
        yield from _block(source, _BLOCKS.get(source_suffix, ""))
    else:
        yield "The code is not given: write the kernel anew."
    if interface:
        yield from ("", "## Interface", "", "A file with this function, which computes the same by torch:", "")
        yield from _block(interface, "python")
    else:
        yield from ("", "## Interface", "", "A function `kernel` that takes the inputs in the order of the row.")
    yield from ("", "## Constraints", "")
    language = "the language of the code" if source else "Triton" if is_gpu(device) else "Triton-Ascend"
    yield _CONSTRAINTS.replace("{language}", language)


def _roofline(diagnosis: Diagnosis, ranked: RankedKernel) -> str:
    """Returns the share of the roofline of a kernel, and the time that its launches lose."""
    share, gbps = (float(each[ranked.line]) for each in (diagnosis.shares.share, diagnosis.shares.gbps))
    lost = f"time lost: {'' if ranked.lost_is_known else 'at most '}{microseconds(ranked.lost_us)} us"
    if math.isnan(share):
        return f"not known; {lost}"
    bound = "arithmetic" if diagnosis.shares.by_arithmetic[ranked.line] else "memory"
    return f"{percent(share)} of the peak of {bound}, {gbps:,.0f} GB/s; {lost}"


def _value(name: str, cell: str | float) -> str:
    if isinstance(cell, str):
        return cell
    return percent(cell) if name == ROOFLINE else f"{cell:.6g}"


def _block(code: str, language: str) -> Iterator[str]:
    """Yields code between fences that are longer than those within it."""
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall(r"`{3,}", code))])
    yield from (f"{fence}{language}", code.rstrip("\n"), fence)


def ask_for_candidate(
    model: ChatModel,
    name: str,
    prompt: str,
    folder: Path,
    kernel_type: str,
    former_source: str = "",
    *,
    max_tokens: int = ChatRequest.max_tokens,
) -> Path:
    """Asks a model, and stores its answer as `FOLDER/KERNEL_TYPE/{name}_{n}.py`, which --implementation measures.

    The whole answer is stored beside it, as `{name}_{n}.md`. An earlier answer stays.

    Args:
        name: the name of the model.
        former_source: the code that modifications change.
        max_tokens: the largest number of tokens of the answer.

    Returns:
        The path of the candidate.

    Raises:
        OpAtlasError: the endpoint has no answer, the answer holds no code, or a file cannot be written.
    """
    answer = model.ask(ChatRequest(name, (ChatMessage("user", prompt),), max_tokens=max_tokens))
    place = folder / kernel_type.lstrip("_")
    stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "answer"
    taken = {path.stem for path in place.glob(f"{stem}_*")} if place.is_dir() else set()
    number = next(each for each in range(1, len(taken) + 2) if f"{stem}_{each}" not in taken)
    path = place / f"{stem}_{number}.py"
    place.mkdir(parents=True, exist_ok=True)
    write_text(path.with_suffix(".md"), answer.text)
    source = read_answer(answer.text, former_source or None)
    if isinstance(source, Judgement):
        raise OpAtlasError(
            f"{path.with_suffix('.md')}: {source.text}: ask again, or take the code from the answer by hand"
        )
    write_text(path, source)
    return path
