"""Readers of one file: each reads any content, or refuses it with the file's name."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import captures
import msgspec
import numpy as np
from ascend_databases import write_database
from nsys_exports import write_export
from simulated_attempts import attempt, loop

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import KNOWN_FINDINGS, read_known
from opatlas.capture.cases import Aggregate
from opatlas.data import journal, log as history
from opatlas.data.csv_files import read_table, read_text_csv
from opatlas.data.database import Database
from opatlas.data.op_mapping import MAPPING
from opatlas.outer.diagnosis.diagnosis import diagnose
from opatlas.outer.diagnosis.shown import diagnosis_as_json
from opatlas.outer.generation.attempts import ATTEMPTS, attempt_line
from opatlas.outer.generation.endpoint import ChatAnswer, ChatMessage, ChatRequest, RecordedAnswers, read_exchange
from opatlas.outer.generation.experiment import read_experiment
from opatlas.outer.generation.models_file import cost_of, read_models
from opatlas.outer.generation.score_command import make_report, report_as_json
from opatlas.outer.suites.texts import read_arguments, read_traces
from opatlas.row.record import LaunchedCase, Measurement, Record
from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.theory.catalog import built_in_catalog, database_kernels, read_catalog
from opatlas.theory.config_json import load_config_file
from opatlas.theory.patterns import Expression, Lengths, Pattern

from .target import Target, expect, packed, refusing

RUN = "20261121T163006-1f0c9a"
CELLS = captures.cells("16,32;64,32", "16,64")
_YAML = (
    b"- ",
    b"? ",
    b": ",
    b"!!python/object:os.system",
    b"!!binary",
    b"*x",
    b"&x",
    b"<<",
    b"~",
    b"2026-13-41",
    b"1:30",
)


def _reader(
    name: str,
    about: str,
    file: str,
    read: Callable[[Path], object],
    seeds: Iterable[bytes] | Callable[[], Iterable[bytes]],
    words: tuple[bytes, ...] = (),
) -> Target:
    """Returns a target that writes its inputs into a file, and reads it."""

    def check(data: bytes, folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        # Attempts of a model are those of a folder.
        with refusing(folder if file == ATTEMPTS else path):
            read(path)

    return Target(name, f"{about}, or refused by name", seeds if callable(seeds) else lambda: seeds, check, words)


def record(
    status: Status,
    measurement: Measurement | None = None,
    reason: str = "",
    kernel_type: str = "MatMulV3",
    cells: Mapping[str, str] = CELLS,
) -> dict[str, Any]:
    named = signature(kernel_type, cells)
    return Record(kernel_type, named, cells, status, reason, RUN, 1.7e9, measurement).to_json()


def _journal(mode: str, *records: dict[str, Any], prune: bool = False) -> bytes:
    lines = (asdict(journal.JournalHeader(RUN, mode, prune)), *records)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def journals() -> Iterator[bytes]:
    measurement = Measurement(
        samples_us=(10.5, 11.0, 10.75),
        instrument="wall-clock",
        cache_state="cold",
        device_kernels=1,
        helper_kernels={"MemSet": 0.5},
        checked_elements=64,
        total_elements=1024,
        assumptions=("lengths: 3",),
        counters={"a": 1.5},
    )
    sibling = Measurement((2.0,), "msprof", "warm", ran_as=LaunchedCase("MatMulV2", CELLS))
    message = {"message_bytes": "1024", "num_devices": "2", "dtype": "BF16", "topology_tier": "1"}
    yield _journal("all", record(Status.MEASURED, measurement), record(Status.FAILED, reason="ValueError: no"))
    yield _journal("all", record(Status.MEASURED, measurement, kernel_type="hcom_allReduce_", cells=message))
    yield _journal("missing-only", record(Status.MEASURED, sibling), prune=True)
    yield _journal("all", record(Status.INVALID, reason="a dimension"), prune=True) + b'{"kernel_type": "Ma'


OF_JOURNALS = (b'"measured"', b'"failed"', b'"version"', b'"samples_us"', b'"cells"', b'"ran_as"', b'"MatMulV2"', b"\n")


def _table(path: Path) -> None:
    frame = read_text_csv(path).to_pandas()
    lines = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))
    # A line without any cell is not a row; it is not even one of an only column.
    rows = [line for line in lines[1:] if line]
    expect([name.strip() for name in lines[0]] == [str(name).strip() for name in frame.columns], "another header")
    expect(frame.to_numpy().tolist() == rows, "cells differ from those of csv.reader")
    read_table(path).to_pandas()


HEADER = [*CELLS, "Average Duration(us)", "Remark"]
ROWS = [
    [*CELLS.values(), "3.5", "plain"],
    [*CELLS.values(), "", 'a "quoted", cell\nof two lines'],
    ["", "DT_BF16", "ND", "00", "", "", "true", " 2026-11-22 "],
]


def csv_text(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


_TABLES = (
    csv_text([HEADER, *ROWS]),
    b"\xef\xbb\xbf" + csv_text([HEADER, *ROWS[:1]]),
    csv_text([HEADER, *ROWS[:1]]).replace(b"\n", b"\r\n"),
)
_CATALOG = b"""
grids:
  tokens: [1, 16, 128]
patterns:
  rows_of_two:
    axes: {m: tokens, k: [64, 128], pair: hidden}
    let: {half: k // 2, padded: "align(m, 16)"}
    where: [m * k <= 262144, half % 2 == 0]
    inputs: [[m, k], [min(half, 64)], null]
    outputs: [[m, half]]
    forms: [BF16;BF16;  -> BF16, FLOAT;FLOAT; | ND;ND; -> FLOAT]
kernels:
  Add: rows_of_two
  Sub: {pattern: [rows_of_two], core: AI_VECTOR_CORE, forms: {rows_of_two: [BF16;BF16; -> BF16]}}
"""
_MAPPING = b"""
operator_mappings:
  aten.add: {kernel_type: Add, query_mode: elementwise, alternate_kernel_types: [AddAiCore, add_kernel_0]}
  aten.view: {kernel_type: View, zero_cost: true}
  allreduce: {kernel_type: hcom_allReduce_, category: communication}
"""


def _catalog(path: Path) -> None:
    """Whatever the sizes are, expressions that were accepted have values: of numbers and of arrays."""
    for kernel in read_catalog(path).kernels.values():
        for expression in (each for pattern in kernel.patterns for each in _expressions(pattern)):
            for size in (1, 7, 64):
                value = expression.value(dict.fromkeys(expression.names, size))
                several = expression.value(dict.fromkeys(expression.names, np.array([size, size])))
                expect(np.all(several == value), f"{expression.text!r} is {value} of numbers and {several} of arrays")


def _expressions(pattern: Pattern) -> Iterator[Expression]:
    yield from (*pattern.let.values(), *pattern.where)
    for template in (*pattern.inputs, *pattern.outputs):
        yield from template or ()
    for cell in pattern.cells.values():
        cells = (cell.count, cell.each) if isinstance(cell, Lengths) else (cell,)
        yield from (each for each in cells if isinstance(each, Expression))


def _configs() -> Iterator[bytes]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    text = {"model_type": "llama", "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 16, **sizes}
    yield json.dumps({**text, "dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}).encode()
    nested = {**text, "model_type": "gemma3_text"}
    yield json.dumps({"model_type": "gemma3", "text_config": nested, "auto_map": {"AutoConfig": "a--b.C"}}).encode()
    # Kinds of layers, experts and stored weights.
    more = {"layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2}
    groups = {"a": {"weights": {"num_bits": 4}}}
    stored = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["re:.*"]}
    of_type = {"model_type": "qwen3_next", "moe_intermediate_size": 8, "mlp_only_layers": [0], "num_hidden_layers": 2}
    yield json.dumps({**text, **of_type, **more, "quantization_config": stored, "rope_parameters": {}}).encode()


def _config(path: Path) -> None:
    facts = load_config_file(path)
    expect(facts.hidden > 0 and facts.weights, f"a model without sizes: {facts}")


_KNOWN = b"""
- checks: [monotone, noisy]
  kernel_type: MatMul*
  row: "353,*"
  most: 3
  date: 2026-11-22
  reason: a slow kernel
- {checks: [noisy], date: 2026-11-22, reason: a small one}
"""


def _known(path: Path) -> None:
    for entry in read_known(path.parent, CHECKS):
        expect(entry.reason and set(entry.checks) <= {check.name for check in CHECKS}, f"a strange entry: {entry}")


_REQUEST = ChatRequest("small", (ChatMessage("user", "Write ReLU: 写"),), name="tasks/relu/0")
_ANSWER = ChatAnswer("```python\npass\n```", "stop", 10, 1_000, 2.5)
_EXCHANGE = {"request": {"model": "small", "messages": [{"role": "user", "content": "x"}], "top_p": 0.9}}


def _exchange(path: Path) -> None:
    expect(bool(read_exchange(path).request.key), "neither an exchange nor an error")
    answers = RecordedAnswers(path.parent)
    found = answers.find(_REQUEST)
    answers.record(_REQUEST, _ANSWER)
    expect(found is None or found.text is not None, "an answer without text")
    expect(answers.find(_REQUEST) == _ANSWER, "a recorded answer is not found")


_MODELS = (
    b"language: torch\ncost_limit: 5\nmodels:\n  small: {in: 0.27, out: 1.1}\n  'a b': {request: 0.001}\n",
    b"answers: .\nattempts: 3\nmodels: {small: {endpoint: http://h, max_tokens: 9}, demo: }\n",
)


def _models(path: Path) -> None:
    found = read_models(path)
    expect(bool(found.models), "neither a model nor an error")
    cost = cost_of(found.prices(), _REQUEST, _ANSWER)
    expect(math.isfinite(cost["cost_usd"]) and cost["cost_usd"] >= 0, f"a price of {cost}")


def _attempts() -> Iterator[bytes]:
    attempts = [
        *loop("a", "relu", 2, passes=True),
        *loop("b", "relu", 1, passes=False, complexity="C2"),
        attempt("b", "sort", within_1e3=True, duration_us=2.5, baseline_us=5.0, kernel_share=1.0, tokens_in=7),
    ]
    yield "".join(map(attempt_line, attempts)).encode()


def _scored(path: Path) -> None:
    experiment = read_experiment([path.parent])
    report = make_report(experiment)
    json.dumps(msgspec.to_builtins(report_as_json(experiment, report), enc_hook=str), allow_nan=False)
    for each in report["strategies"]:
        expect(each["passed"]["of"] == len(experiment.common_tasks), "a strategy lost a task")
    lines = path.read_bytes().count(b"\n") + 1
    expect(sum(each.attempts for each in experiment.runs) <= lines, "more attempts than lines")


_SHIPPED = Path(__file__).parents[2] / "opatlas" / "outer" / "suites" / "traces" / "decoder.txt"
_CALLS = b"""\
Operator: aten.add.Tensor
cnt: 156, ((T([1, 512, 768], f16), T([1, 512, 768], f16, stride=(1, 1, 512))), {'alpha': 2})
Operator: aten._index_put_impl_.default
cnt: 0, ((T([8], f32), [T([2], i64), None], T([], f32), True), {'dtype': torch.bool, 'device': 'cuda'})
cnt: 3, ((T([2], b8), -inf, (1, -2.5e-3)), {})
"""


def _calls(path: Path) -> None:
    for call in read_traces(path):
        expect(call.count >= 0, f"a negative count: {call}")
        again = read_arguments(str(call.arguments))
        expect(str(again) == str(call.arguments), f"other arguments when read again: {call}")
        expect(all(each.bytes >= 0 for each in again.tensors()), f"a tensor of negative size: {call}")


_OF_CATALOGS = (b"1%-0", b"m // (k-k)", b"m", b"k", b"hidden", b"generic", b"axes", b"->", b"(" * 150)
_OF_CONFIGS = (b'"rope_theta"', b'"experts_implementation"', b'"torch_dtype"', b'"num_experts"', b'"a/b"', b"-8", b"0")
_OF_ANSWERS = (b'"messages"', b'"answer"', b"null", b"1e999", b"\\ud800", b"{}", b"[]")
_OF_MODELS = (b"request:", b"endpoint:", b"models:", b".inf", b".nan", b"-1", b"&a", b"*a", b"? []", b"\xff")
_OF_ATTEMPTS = (b'"model"', b'"pass"', b'"C9"', b"1e308", b"5e-324", b"9223372036854775807", b"null", b"\\ud800", b"\n")
_OF_CALLS = (
    b"Operator:",
    b"cnt:",
    b"T(",
    b"stride=",
    b"__import__",
    b"torch.",
    b"inf",
    b"nan",
    b"{}",
    b"((",
    b"9" * 30,
)


def _capture(path: Path) -> None:
    found = diagnose(path)
    text = msgspec.json.encode(diagnosis_as_json(found), enc_hook=str)
    expect(b'"timelines"' in text, "no timeline")
    Aggregate().add_file(path)


def _written(write: Callable[[Path], Path]) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        with TemporaryDirectory() as folder:
            yield write(Path(folder, "seed")).read_bytes()

    return seeds


READERS = (
    _reader(
        "ascend-database",
        "launches are read",
        "ascend_pytorch_profiler_0.db",
        _capture,
        _written(lambda path: write_database(path, [captures.launch(), captures.launch(type="Add")])),
        (b"TASK", b"opType"),
    ),
    _reader(
        "nsys", "launches are read", "report1.sqlite", _capture, _written(write_export), (b"sizes = [[", b"aten::")
    ),
    _reader("table", "as csv.reader reads it", "MatMulV3.csv", _table, _TABLES, (b"Input Shapes", b"OP State")),
    _reader("journal", "records are read", f"{RUN}.jsonl", journal.read, journals, OF_JOURNALS),
    _reader(
        "history",
        "records of a run are read",
        history.file_path(Database(Path()), RUN).as_posix(),
        lambda path: history.read(Database(path.parent.parent), RUN),
        packed(journals),
        OF_JOURNALS,
    ),
    _reader("catalog", "each expression has a value", "catalog.yaml", _catalog, [_CATALOG], (*_YAML, *_OF_CATALOGS)),
    _reader(
        "op-mapping",
        "operators are read",
        MAPPING,
        lambda path: database_kernels(Database(path.parent), built_in_catalog()),
        [_MAPPING],
        (*_YAML, b"kernel_type", b"Add"),
    ),
    _reader("model", "the sizes of a model are read", "config.json", _config, _configs, _OF_CONFIGS),
    _reader("known-findings", "entries are read", KNOWN_FINDINGS, _known, [_KNOWN], (*_YAML, b"most", b"row")),
    _reader(
        "answers",
        "recorded exchanges are read",
        "answers.json",
        _exchange,
        [json.dumps({**_EXCHANGE, "answer": {"text": "y", "tokens_in": 3}}).encode()],
        _OF_ANSWERS,
    ),
    _reader("models", "models with prices that are numbers", "models.yaml", _models, _MODELS, _OF_MODELS),
    _reader("attempts", "evaluated without NaN", ATTEMPTS, _scored, _attempts, _OF_ATTEMPTS),
    _reader(
        "operator-calls",
        "the same arguments again, and nothing evaluated",
        "calls.txt",
        _calls,
        lambda: [_CALLS, _SHIPPED.read_bytes()],
        _OF_CALLS,
    ),
)
