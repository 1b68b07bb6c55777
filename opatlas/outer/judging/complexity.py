"""Scores how hard a task is, and gives the class C1 to C4 of the score.

C1 (up to 2.0) has pointwise operators, C2 (up to 3.0) reductions, norms, pools and scans, C3 (up to 4.0)
products, C4 convolutions, losses, attention and combinations.

The experiment on generated Triton-Ascend operators names these classes without its rule, so this rule is OpAtlas' own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from opatlas.outer.judging.source import CandidateSource

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
_INPUTS = re.compile(r"get_\w*inputs\w*")
_BUILTINS = frozenset({"sum", "max", "min", "any", "all"})


def complexity_of_task(source: str, name: str = "") -> str:
    """Returns the class of a task, from the operators that its classes and functions call and from its name.

    The score is the highest among the operators, plus 0.5 if they belong to two classes from C2 on. An operator without
    an entry has the score 1.0. Functions that make inputs do not count.

    Args:
        source: the task file, with the class Model.
        name: the name of the task ("level1/19_ReLU").

    Raises:
        SyntaxError: the source is not Python.
    """
    scores = [_POINTWISE, *_operator_scores(CandidateSource.parse(source).tree)]
    operators = name.lower().rpartition("/")[2]
    scores += [score for score, word in _WORDS if word.search(operators)]
    combined = len({class_of_score(score) for score in scores if score >= 2}) > 1
    return class_of_score(max(scores) + (_COMBINED if combined else 0))


def _operator_scores(tree: ast.Module) -> Iterator[float]:
    for part in tree.body:
        if not isinstance(part, ast.ClassDef | ast.FunctionDef) or _INPUTS.fullmatch(part.name):
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
