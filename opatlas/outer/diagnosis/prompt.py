"""What a model is asked for: one kernel with counters, verdicts and code, and the constraints of the answer."""

from __future__ import annotations

import re

from opatlas.show.result import text

from .diagnosis import Diagnosis, RankedKernel
from .shown import kernel_parts, peak_fields
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
    sections = {
        "The kernel, and its diagnosis": _block(
            text([*kernel_parts(diagnosis, ranked), peak_fields(diagnosis)]), "text"
        ),
        "Code": code,
        "Interface": arguments,
        "Constraints": _CONSTRAINTS.replace("{language}", language),
    }
    title = f"# Make the kernel {ranked.kernel_type} faster on {where}"
    return "\n\n".join([title, *(f"## {name}\n\n{content}" for name, content in sections.items())]) + "\n"


def _block(code: str, language: str) -> str:
    """Returns code between fences that are longer than those within it."""
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall(r"`{3,}", code))])
    return f"{fence}{language}\n{code.rstrip()}\n{fence}"
