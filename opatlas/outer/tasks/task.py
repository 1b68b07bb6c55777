"""Reads task files without running them, and says how hard a task is.

A task is a Python file with a class `Model`, which defines the computation, and a function `get_inputs`, or
`get_inputs_dyn_list` for inputs of several shapes. `get_init_inputs` returns the arguments of Model.

{set}/level1/19_ReLU.py                         KernelBench; any folder with folders level1, level2, ...
.../kernelbench/numpy/19_relu/19_relu_numpy.py  AKG's twins of KernelBench's level 1, for numpy and mindspore
.../akg_kernels_bench/dynamic_shape/norm/*.py   AKG's own tasks
tasks/*.py                                      a folder of one's own, with subfolders
definition.json, definitions/*/*.json           definitions with workloads (definitions.py)
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import parse_python, read_file
from opatlas.outer.judging.rules import CandidateSource
from opatlas.outer.tasks.definitions import is_definition, place_of_definition, task_text
from opatlas.row.columns import is_file_name
from opatlas.text import Word

#: The class of a task, and the class of a candidate.
MODEL, MODEL_NEW = "Model", "ModelNew"
GET_INPUTS, GET_INPUTS_LIST, GET_INIT_INPUTS = "get_inputs", "get_inputs_dyn_list", "get_init_inputs"
_LARGEST_BYTES = 4 << 20
#: Characters of the digest of a file: few enough for a column, too many for a coincidence.
_DIGITS = 12
#: Folders of a set that is divided into levels.
_LEVEL = re.compile(r"level\d+")
#: Folders by whose names a set of AKG is recognized, and the names of the sets.
_AKG_SETS = {"akg_kernels_bench": "akg", "akg_kernels_bench_lite": "akg_lite"}
#: AKG's twins of KernelBench lie in `kernelbench/{kind}/{name}/{name}_{kind}.py`.
_AKG_TWINS = "kernelbench"
#: What a task file defines or imports at its top.
_PARTS = (
    re.compile(rb"^(?:class Model\b|Model\s*=|from\s.+\simport\s.*\bModel\b)", re.MULTILINE),
    re.compile(rb"^(?:def\s+|from\s.+\simport\s.*\b)?get_inputs(?:_dyn_list)?\b", re.MULTILINE),
)
_DYNAMIC = re.compile(rf"^(?:def\s+|from\s.+\simport\s.*\b)?{GET_INPUTS_LIST}\b".encode(), re.MULTILINE)
_IMPORTED = re.compile(rb"^(?:import|from)\s+(\w+)", re.MULTILINE)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_+-]+")


class TaskKind(Word):
    """The library whose arrays a task computes with."""

    TORCH = "torch"
    NUMPY = "numpy"
    MINDSPORE = "mindspore"


@dataclass(frozen=True)
class Task:
    """A task file.

    Attributes:
        name: path of the task within its set, without suffix ("level1/19_ReLU"); unique within the set.
        task_set: name of the set, in lower case ("kernelbench").
        path: the file.
        kind: the library whose arrays the inputs are.
        digest: hexadecimal digits that stand for the content of the file.
        is_dynamic: whether the file has inputs of several shapes (`get_inputs_dyn_list`).
        candidate: the name of a candidate's function; "": a candidate may have any form of those of docs/candidates.md.
    """

    name: str
    task_set: str
    path: Path
    kind: TaskKind
    digest: str
    is_dynamic: bool = False
    candidate: str = ""

    def __str__(self) -> str:
        return str(self.path)

    @property
    def full_name(self) -> str:
        """The set and the name ("kernelbench/level1/19_ReLU")."""
        return f"{self.task_set}/{self.name}"

    @property
    def kernel_type(self) -> str:
        """The kernel type of its rows: the full name as the name of a file ("kernelbench.level1.19_ReLU")."""
        return kernel_type_of(self.task_set, self.name)

    @property
    def is_unchanged(self) -> bool:
        """Whether the file is here, and as it was read first, on this host or on another."""
        try:
            return bool(self.source)
        except OpAtlasError:
            return False

    @property
    def complexity(self) -> str:
        """The class of the task, C1 to C4. Raises OpAtlasError as `source` does."""
        return complexity_of_task(self.source, self.name)

    @property
    def source(self) -> str:
        """The text of the file. Raises OpAtlasError if it cannot be read, or has changed since it was read first."""
        content = _read(self.path)
        if _digest(content) != self.digest:
            raise OpAtlasError(f"{self.path}: was changed meanwhile: run the command again")
        return content.decode("utf-8-sig")


def kernel_type_of(task_set: str, name: str) -> str:
    """Returns the kernel type of the rows of a task ("kernelbench.level1.19_ReLU")."""
    return f"{task_set}/{name}".replace("/", ".")


def read_tasks(path: Path) -> list[Task]:
    """Returns the tasks in a folder and its subfolders, or in one file, by full name. The files are not run.

    Files without Model or without inputs are not tasks. Hidden folders, `__pycache__`, and files whose names begin with
    `_` or `.` are left out.

    Raises:
        OpAtlasError: the file or folder does not exist; a file is not Python, or a definition without workloads; there
            is no task; two tasks of a set have one name; or a name cannot be part of the name of a CSV file.
    """
    root = path.resolve()
    if not root.exists():
        raise OpAtlasError(f"{path}: there is no such file or folder: name a task file, or a folder of task files")
    found: dict[str, Task] = {}
    for file in [root] if root.is_file() else _task_files(root):
        content = _read(file)
        if not all(pattern.search(content) for pattern in _PARTS):
            continue
        parse_python(file, content)
        is_dynamic = _DYNAMIC.search(content) is not None
        named = _name_and_set(*(place_of_definition(file, root) if is_definition(file) else (file, root)))
        task = Task(*named, file, _kind(content), _digest(content), is_dynamic)
        if not is_file_name(task.kernel_type):
            raise OpAtlasError(f"{task.path}: {task.kernel_type!r} cannot name a CSV file: rename the file")
        other = found.setdefault(task.kernel_type.lower(), task)
        if other is not task:
            raise OpAtlasError(f"{task.path}: {other.path} has the same name, {task.full_name}: rename one of them")
    if not found:
        raise OpAtlasError(
            f"{path}: holds no task: a task is a file NAME.py with a class {MODEL} and a function {GET_INPUTS}"
        )
    return sorted(found.values(), key=lambda task: _in_numbers(task.full_name))


def _name_and_set(path: Path, root: Path) -> tuple[str, str]:
    """Returns the name of a task within its set, and the name of the set.

    Both are the same whether the set is named, a folder of it, or the file, if the layout is a known one.
    """
    folders = path.parts[:-1]
    stem = part_of_name(path.stem)
    levels = [place for place, folder in enumerate(folders) if _LEVEL.fullmatch(folder)]
    if levels and levels[-1] > 0:
        task_set = part_of_name(folders[levels[-1] - 1]).lower()
        return "/".join([*map(part_of_name, folders[levels[-1] :]), stem]), task_set
    if folders[-3:-2] == (_AKG_TWINS,) and folders[-2] in set(TaskKind):
        return stem.removesuffix(f"_{folders[-2]}"), f"akg_{folders[-2]}"
    for folder, task_set in _AKG_SETS.items():
        if folder in folders:
            return "/".join([*map(part_of_name, folders[_last(folders, folder) + 1 :]), stem]), task_set
    top = root if root.is_dir() else root.parent
    within = path.relative_to(top).parts[:-1]
    return "/".join([*map(part_of_name, within), stem]), part_of_name(top.name).lower() or "tasks"


def _last(folders: tuple[str, ...], name: str) -> int:
    return len(folders) - 1 - folders[::-1].index(name)


def part_of_name(text: str) -> str:
    """Returns a folder or file as a part of a name: a point would separate parts of the kernel type."""
    return _NOT_IN_NAMES.sub("_", text).strip("_") or "_"


def _kind(content: bytes) -> TaskKind:
    imported = {name.decode() for name in _IMPORTED.findall(content)}
    kinds = [kind for kind in (TaskKind.MINDSPORE, TaskKind.TORCH, TaskKind.NUMPY) if kind.value in imported]
    return kinds[0] if kinds else TaskKind.TORCH


def _task_files(root: Path) -> Iterator[Path]:
    """Yields the Python files and the definitions of a folder and its subfolders in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        places = (Path(folder, name) for name in sorted(files) if name[0] not in "._")
        yield from (place for place in places if place.suffix == ".py" or is_definition(place))


def _read(path: Path) -> bytes:
    """Returns the text of a task."""
    if is_definition(path):
        return task_text(path)
    return read_file(path, _LARGEST_BYTES, "correct the path or its rights")


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:_DIGITS]


def _in_numbers(name: str) -> list[tuple[int, str]]:
    """Returns a sort key by which 9_Tall precedes 10_3D."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


#: Classes of how hard a task is. C1 (a score up to 2.0) has pointwise operators, C2 (up to 3.0) reductions, norms,
#: pools and scans, C3 (up to 4.0) products, C4 convolutions, losses, attention and combinations. The experiment on
#: generated Triton-Ascend operators names these classes without its rule, so this rule is OpAtlas' own.
CLASSES = ("C1", "C2", "C3", "C4")
_POINTWISE, _ROW, _SORT, _PRODUCT, _LOSS, _COMPOSITE = 1.0, 2.5, 3.0, 3.5, 4.2, 4.5
#: Added for a task that combines operators of two classes from C2 on.
_COMBINED = 0.5


def class_of_score(score: float) -> str:
    """Returns the class of a score."""
    return CLASSES[sum(score > limit for limit in (2.0, 3.0, 4.0))]


#: Names of torch, numpy and mindspore in lower case; the first pattern that fits a name decides.
_OPERATORS = (
    (
        _COMPOSITE,
        re.compile(
            r"(?:lazy)?conv(?:_?transpose|_?tbc)?_?(?:[123]d)?(?:_?transpose)?|depthwiseconv2d|conv(?:olve|olution)"
            r"|scaled_dot_product_attention|multihead_?attention\w*|transformer\w*|from_pretrained|from_config"
            r"|(?:lstm|gru|rnn)(?:cell)?"
        ),
    ),
    (_LOSS, re.compile(r"\w*loss(?:_\w+)?|(?:binary_)?cross_entropy\w*|kl_div|cosine_similarity|cosinesimilarity")),
    (
        _PRODUCT,
        re.compile(
            r"matmul|batchmatmul|mm|bmm|addmm|addmv|addbmm|baddbmm|einsum|linear|lazylinear|bilinear|dense|dot|vdot|mv"
            r"|inner|outer|tensordot|kron|chain_matmul|multi_dot"
        ),
    ),
    (_SORT, re.compile(r"sort|argsort|msort|topk|kthvalue|unique|median")),
    (
        _ROW,
        re.compile(
            r"\w*norm(?:[123]d)?(?:alize)?|normalize|\w*softmax\w*|softmin|logsumexp"
            r"|\w*pool(?:ing)?_?(?:[123]d)?|cum(?:sum|prod|max|min)|arg(?:max|min)"
            r"|logcumsumexp|(?:nan)?(?:sum|mean|prod|var|std)|a?max|a?min|reduce(?:sum|mean|max|min|prod)|var_mean|std_mean"
            r"|cosine_similarity|any|all|count_nonzero|trace"
        ),
    ),
)
#: Words of a task's name. A file for numpy spells a loss or a convolution out, so that only its name says what it is.
_WORDS = (
    (_COMPOSITE, re.compile(r"(?<![a-z])conv(?!ert)|attention|transformer|lstm|(?<![a-z])gru(?![a-z])")),
    (_LOSS, re.compile(r"loss|cross_?entropy")),
    (_PRODUCT, re.compile(r"matmul|matri(?:x|ces).*multiplication|gemm|(?<![a-z])bmm(?![a-z])")),
    (_ROW, re.compile(r"norm(?!al(?!iz))|softmax|pool|cumsum|cumprod|reduction|argm(?:ax|in)")),
)
_INPUT_MAKERS = re.compile(r"get_\w*inputs\w*")
_BUILTINS = frozenset({"sum", "max", "min", "any", "all"})


def complexity_of_task(source: str, name: str = "") -> str:
    """Returns the class of a task, from the operators that its classes and functions call and from its name.

    The score is the highest among the operators, plus 0.5 if they belong to two classes from C2 on. An operator without
    an entry has the score 1.0. Functions that make inputs do not count.

    Args:
        source: the task file, with the class Model.
        name: the name of the task ("level1/19_ReLU").
    """
    scores = [_POINTWISE, *_operator_scores(CandidateSource(source).tree)]
    operators = name.lower().rpartition("/")[2]
    scores += [score for score, word in _WORDS if word.search(operators)]
    combined = len({class_of_score(score) for score in scores if score >= 2}) > 1
    return class_of_score(max(scores) + (_COMBINED if combined else 0))


def _operator_scores(tree: ast.Module) -> Iterator[float]:
    for part in tree.body:
        if not isinstance(part, ast.ClassDef | ast.FunctionDef) or _INPUT_MAKERS.fullmatch(part.name):
            continue
        for node in ast.walk(part):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                yield _PRODUCT
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if isinstance(node.func, ast.Name) and called in _BUILTINS:
                    continue
                for score, pattern in _OPERATORS:
                    if pattern.fullmatch(called.lower()):
                        yield score
                        break
