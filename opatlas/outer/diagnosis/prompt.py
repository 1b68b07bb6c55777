"""What a model is asked for: one kernel with counters, verdicts and code, and the constraints of the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from opatlas.capture.capture_reader import DURATION
from opatlas.formats import microseconds, percent
from opatlas.row.columns import BASE, KERNEL_NAMES

from .diagnosis import ROOFLINE, Diagnosis, RankedKernel
from .verdicts import is_gpu

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
    device = diagnosis.table.device
    where = device or ("an Ascend NPU" if diagnosis.table.is_capture else "this device")
    language = "the language of the code" if source else "Triton" if is_gpu(device) else "Triton-Ascend"
    code = _block(source, _BLOCKS.get(source_suffix, "")) if source else "The code is not given: write the kernel anew."
    arguments = (
        f"A file with this function, which computes the same by torch:\n\n{_block(interface, 'python')}"
        if interface
        else "A function `kernel` that takes the inputs in the order of the row."
    )
    counters = diagnosis.counters(ranked.line)
    sections = {
        "The kernel": "\n".join(_facts(diagnosis, ranked)),
        "Counters": "\n".join(
            ["| counter | value |", "| --- | --- |", *(f"| {name} | {value:g} |" for name, value in counters.items())]
        )
        if counters
        else "",
        "Diagnosis": "\n".join(_findings(diagnosis, ranked)) or "No rule holds of this kernel.",
        "Code": code,
        "Interface": arguments,
        "Constraints": _CONSTRAINTS.replace("{language}", language),
    }
    title = f"# Make the kernel {ranked.kernel_type} faster on {where}"
    return "\n\n".join([title, *(f"## {name}\n\n{text}" for name, text in sections.items() if text)]) + "\n"


def _facts(diagnosis: Diagnosis, ranked: RankedKernel) -> Iterator[str]:
    row, peak = diagnosis.table.frame.iloc[ranked.line], diagnosis.peaks.peak
    which = "the longest" if diagnosis.table.is_capture else "the mean"
    yield f"- Duration: {microseconds(float(row[DURATION]))} us" + (
        f", {which} of {ranked.launches:,} equal launches" if ranked.launches > 1 else ""
    )
    lost = f"time lost: {'' if ranked.lost_is_known else 'at most '}{microseconds(ranked.lost_us)} us"
    share = float(diagnosis.shares.share[ranked.line])
    reached = (
        "not known" if math.isnan(share) else f"{percent(share)} of the peak of {diagnosis.shares.bound(ranked.line)}"
    )
    yield f"- Roofline: {reached}; {lost}"
    if peak.bandwidth_gbps or peak.tera_ops:
        rates = [f"{dtype} {rate:g} T/s" for dtype, rate in peak.tera_ops.items()]
        yield f"- Peaks: {', '.join([f'{peak.bandwidth_gbps or 0:g} GB/s', *rates])}"
    cores = {"cube": diagnosis.peaks.cube_cores, "vector": diagnosis.peaks.vector_cores}
    if any(cores.values()):
        yield f"- Cores: {', '.join(f'{number} {kind}' for kind, number in cores.items() if number)}"
    yield from (f"- {name}: `{cell}`" for name in (*BASE, KERNEL_NAMES) if (cell := str(row.get(name, ""))))


def _findings(diagnosis: Diagnosis, ranked: RankedKernel) -> Iterator[str]:
    for number, finding in enumerate(diagnosis.findings(ranked.line), 1):
        rule = finding.rule
        cells = ", ".join(f"{name} {_value(name, cell)}" for name, cell in finding.cells.items())
        yield f"{number}. {rule.verdict}: {cells}."
        yield f"   - Rule: {rule.test}. Source: {rule.source}."
        yield f"   - What helps: {rule.advice.what}."
        apis = rule.advice.apis_of(diagnosis.table.device)
        yield from (f"   - {language}: {api}." for language, api in apis.items())


def _value(name: str, cell: str | float) -> str:
    if isinstance(cell, str):
        return cell
    return percent(cell) if name == ROOFLINE else f"{cell:.6g}"


def _block(code: str, language: str) -> str:
    """Returns code between fences that are longer than those within it."""
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall(r"`{3,}", code))])
    return f"{fence}{language}\n{code.rstrip()}\n{fence}"
