"""The suite of OpInfo: its list, its cases on a CPU, the operators that are left out, and overrides of all of them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from operator_kernels import watermark, write_kernels, write_watermarks

import opatlas
from opatlas.outer.suites import listing, override
from opatlas.outer.suites.case import SuiteRow, make_call
from opatlas.outer.suites.operators import _LEFT_OUT, Call, find_overload, functional_of, is_no_operator, name_of
from opatlas.outer.suites.opinfo import _samples
from opatlas.outer.suites.texts import folder_of, overload_of, read_arguments
from opatlas.row.columns import ARGUMENTS, FUNCTIONAL, INPUT_DTYPES, SAMPLE
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.kernel_call import flat_tensors
from opatlas.run.registry import Rows
from opatlas.run.runner import Runner

pytestmark = pytest.mark.usefixtures("forks")
ROOT = Path(__file__).parents[2]
#: Operators of each kind: elementwise, reductions, indices, products, several results.
OPERATORS = (
    *("add.Tensor", "addbmm.default", "argmax.default", "max.dim", "mm.default", "relu.default", "sort.default"),
    *("sort.stable", "sum.default", "sum.dim_IntList"),
)
#: Operators with samples of some dtype, without in-place and out variants: BackendBench has 271.
LEAST_OPERATORS = 271


@pytest.fixture(scope="module")
def rows() -> Rows:
    return listing.list_suite("opinfo", "cpu", OPERATORS).rows


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm"))


def run(runner: Runner, kernel_type: str, cells: Mapping[str, str]) -> RowOutcome:
    job = Job("opatlas.bench.test_listed", str(ROOT / "bench/test_listed.py"), "test_operator", kernel_type, cells, 60)
    return runner.run(job)


def cases(rows: Rows) -> Iterator[tuple[str, Mapping[str, str]]]:
    return ((name, cells) for name, own in rows.items() for cells in own)


def test_the_list_has_variants_dtypes_and_samples_of_all_kinds(rows: Rows) -> None:
    assert {"add__Tensor", "add___Tensor", "add__out", "relu__default", "relu___default", "sort__values"} <= set(rows)
    assert {cells[FUNCTIONAL] for cells in rows["add__out"]} == {"add__Tensor"}
    assert not any(cells[FUNCTIONAL] for cells in rows["add__Tensor"])
    dtypes = Counter(cells[SAMPLE].split("/")[2] for cells in rows["add__Tensor"])
    assert set(dtypes) == {"float32", "bfloat16", "int64", "bool"}
    # A sample is a row of its own, whatever its shapes.
    assert len({cells[SAMPLE] for cells in rows["add__Tensor"]}) == len(rows["add__Tensor"])
    # Tensors of size 0 are among them.
    assert any("0" in cells["Input Shapes"].replace(";", ",").split(",") for cells in rows["add__Tensor"])
    assert rows["add__Tensor"][0][INPUT_DTYPES] == "FLOAT;FLOAT"


def test_no_test_is_looked_for_among_the_callers_of_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Mock(return_value=[])
    monkeypatch.setattr(inspect, "stack", search)
    assert len(_samples.__wrapped__("nn.functional.relu", "float32")) > 1
    assert not search.called


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_torch_itself_is_right_in_every_case(rows: Rows, runner: Runner, step: int) -> None:
    found = [(name, run(runner, name, cells)) for name, cells in [*cases(rows)][::step]]
    wrong = [
        (name, outcome.reason) for name, outcome in found if outcome.status not in (Status.MEASURED, Status.CHECKED)
    ]
    assert not wrong
    # It is timed by the calls by which kernels are judged, whose inputs differ each time.
    assert all(outcome.judged is not None for _, outcome in found)
    # Nothing is timed where there are no elements.
    assert {Status.MEASURED, Status.CHECKED} == {outcome.status for _, outcome in found}


@pytest.mark.parametrize("change", ["digest", "number", "opinfo"])
def test_a_sample_of_another_torch_is_refused(rows: Rows, runner: Runner, change: str) -> None:
    _, name, dtype, number, digest = rows["mm__default"][0][SAMPLE].split("/")
    parts = {"opinfo": name, "dtype": dtype, "number": number, "digest": digest}
    parts[change] = {"digest": "0" * 12, "number": "9999", "opinfo": "no.such"}[change]
    cells = {**rows["mm__default"][0], SAMPLE: "/".join(["opinfo", *parts.values()])}
    assert run(runner, "mm__default", cells).status is Status.INVALID


def test_an_operator_that_torch_lacks_is_unsupported(rows: Rows, runner: Runner) -> None:
    assert run(runner, "no_such__default", rows["mm__default"][0]).status is Status.UNSUPPORTED
    assert run(runner, "bernoulli__default", rows["mm__default"][0]).status is Status.UNSUPPORTED


def test_operators_that_cannot_be_checked_are_no_operators_of_a_suite() -> None:
    reasons = {"bernoulli.default": "random", "select.int": "view", "equal.default": "no-tensor", "add.Tensor": ""}
    for name, reason in {**reasons, **_LEFT_OUT}.items():
        # A name that is the fusion of two names is the name of no operator.
        overload = find_overload(name)
        assert overload is not None, name
        assert is_no_operator(overload) == reason


def overridden_as_expected(folder: Path, samples: Mapping[str, Call]) -> list[str]:
    """Overrides operators by watermarks; returns those whose results are not the watermark of their kernel."""
    wrong = []
    prepared = {name: call.cloned() for name, call in samples.items()}
    with opatlas.use(folder, device="cpu") as override, torch.no_grad():
        found = {name: call() for name, call in prepared.items()}
        assert set(samples) <= set(override.overloads)
    for name, returned in found.items():
        tensors = list(flat_tensors(returned))
        functional = functional_of(prepared[name].overload)
        number = watermark(folder_of(name_of(functional) if functional is not None else name))
        if not tensors or not all(torch.equal(each, torch.full_like(each, number)) for each in tensors):
            wrong.append(name)
    return wrong


def sample_calls(rows: Rows) -> dict[str, Call]:
    """Returns for each operator the call of its first row that has elements."""
    calls: dict[str, Call] = {}
    for name, cells in cases(rows):
        if overload_of(name) not in calls:
            row = SuiteRow(name, cells, torch.device("cpu"))
            row.make_call()
            if all(each.numel() for each in row.call.cloned().results()):
                calls[overload_of(name)] = row.call
    return calls


def check_overrides(rows: Rows, folder: Path) -> int:
    samples = sample_calls(rows)
    counts = {name: len(list(flat_tensors(call.cloned()()))) for name, call in samples.items()}
    functional = [name for name, call in samples.items() if functional_of(call.overload) is None]
    expected = {name: call.cloned().results() for name, call in samples.items()}
    write_watermarks(folder, [(folder_of(name), counts[name]) for name in functional])
    # Variants of operators with a kernel are derived from it.
    derived = {
        name: call
        for name, call in samples.items()
        if name in functional or name_of(functional_of(call.overload)) in functional  # type: ignore[arg-type]
    }
    assert overridden_as_expected(folder, derived) == []
    # After the override torch computes again.
    for name, call in samples.items():
        again = call.cloned().results()
        assert all(map(_same, expected[name], again)), name
    return len(derived)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def test_each_operator_runs_its_kernel_while_it_is_overridden(rows: Rows, tmp_path: Path) -> None:
    assert check_overrides(rows, tmp_path / "watermarks") == len(rows)


@pytest.mark.slow
def test_the_whole_suite(tmp_path: Path) -> None:
    """At least 271 operators have cases, each of which runs its kernel while it is overridden."""
    rows = listing.list_suite("opinfo", "cpu").rows
    functional = {name for name, cells in cases(rows) if not cells[FUNCTIONAL]}
    assert len(functional) >= LEAST_OPERATORS
    assert check_overrides(rows, tmp_path / "watermarks") > 2 * LEAST_OPERATORS


KERNELS = {
    # Calls the operator that it overrides, and another one that is overridden.
    "add__Tensor": """
import torch


def NAME(x, y, *, alpha=1):
    return torch.relu(torch.add(x, y, alpha=alpha)) + 1000
""",
    "relu__default": "def NAME(x):\n    return x * 0 - 1\n",
    "mm__default": """
from opatlas import Unsupported


def NAME(x, y):
    raise Unsupported("never")
""",
    "sort__default": "def NAME(x, dim=-1, descending=False):\n    return x\n",
    "sum__default": """
from opatlas import Prepared


def NAME(x, *, dtype=None):
    return Prepared(lambda: x.flatten()[0])
""",
}


def test_a_kernel_may_call_the_operator_that_it_overrides(tmp_path: Path) -> None:
    folder = write_kernels(tmp_path / "mine", KERNELS)
    x, eye = torch.tensor([-3.0, 2.0]), torch.eye(2)
    with opatlas.use(folder, device="cpu") as override:
        assert {"add.Tensor", "add_.Tensor", "add.out", "relu.default", "relu_.default"} <= set(override.overloads)
        assert (x + x).tolist() == [1000.0, 1004.0]
        assert (x + 1).tolist() == [1000.0, 1003.0]
        assert x.clone().add_(x).tolist() == [1000.0, 1004.0]
        assert torch.add(x, x, out=torch.zeros(2)).tolist() == [1000.0, 1004.0]
        assert torch.relu(x).tolist() == [-1.0, -1.0]
        # A call that the kernel refuses is torch's.
        assert torch.mm(eye, eye).tolist() == eye.tolist()
        assert x.sum().item() == -3.0
        # Another number of results than torch's is an error, and no crash.
        with pytest.raises(opatlas.OpAtlasError, match="sort"):
            torch.sort(x)
        with pytest.raises(opatlas.OpAtlasError, match="overridden"):
            opatlas.use(folder, device="cpu")
    assert (x + x).tolist() == [-6.0, 4.0]


def test_an_override_lasts_until_it_is_undone(tmp_path: Path) -> None:
    folder = write_kernels(tmp_path / "mine", {"relu__default": KERNELS["relu__default"]})
    x = torch.ones(1)
    # Nobody refers to the override.
    opatlas.use(folder, device="cpu")
    assert torch.relu(x).item() == -1.0
    with pytest.raises(opatlas.OpAtlasError):
        opatlas.use(folder, device="cpu")
    for each in [*override._ACTIVE]:
        each.undo()
        each.undo()
    assert torch.relu(x).item() == 1.0


@pytest.mark.parametrize(
    ("kernels", "device"),
    [
        ({"relu__default": "import no_such_module\n\n\ndef NAME(x): ...\n"}, "cpu"),
        ({"no_such__default": "def NAME(x): ...\n"}, "cpu"),
        ({"relu__default": "def NAME(x): ...\n"}, "tpu"),
    ],
)
def test_a_folder_that_cannot_override_is_refused(tmp_path: Path, kernels: Mapping[str, str], device: str) -> None:
    folder = write_kernels(tmp_path / "mine", kernels)
    with pytest.raises(opatlas.OpAtlasError):
        opatlas.use(folder, device=device)
    assert torch.relu(torch.ones(1)).item() == 1.0


def _made(name: str, arguments: str, device: str = "cpu") -> Call:
    overload = find_overload(name)
    assert overload is not None
    return make_call(overload, read_arguments(arguments), torch.device(device), 3)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("index_put_.default", "((T([64, 1, 8], f32), [T([64], i64)], T([64, 1, 8], f32)), {})"),
        ("index_put.default", "((T([64, 8], f32), [T([8, 8], i32)], T([8, 8, 8], f32)), {})"),
        ("scatter_.src", "((T([4, 64], f32), -1, T([4, 64], i64), T([4, 64], f32)), {})"),
        ("scatter.src", "((T([64, 4], f32), 0, T([32, 4], i64), T([32, 4], f32)), {})"),
    ],
)
def test_no_two_writes_of_a_case_are_of_one_element(name: str, arguments: str) -> None:
    """Which of them counts is not defined, and differs between a GPU and the formula."""
    call = _made(name, arguments)
    (index,) = (each for each in call.tensors() if not each.is_floating_point())
    axis = call.bound().get("dim")
    lines = index.reshape(1, -1) if axis is None else index.movedim(axis, -1)
    assert all(line.unique().numel() == line.numel() for line in lines)
    assert int(index.max()) < 64


def test_a_case_that_makes_a_tensor_makes_it_on_the_device() -> None:
    assert _made("arange.default", "((512,), {'pin_memory': False})", "meta")().device.type == "meta"


def test_a_call_that_torch_refuses_here_is_unsupported(runner: Runner) -> None:
    """A GPU has no INT8 product of few rows, a CPU no FP8: traces are recorded on another device."""
    cells = {SAMPLE: "trace/0", ARGUMENTS: "((T([8, 8], i8), T([4, 8], i8)), {})"}
    job = Job("opatlas.bench.test_listed", "", "test_operator", "_int_mm__default", cells, 60)
    assert runner.run(job).status is Status.UNSUPPORTED


def test_an_in_place_case_does_not_resize_its_first_argument(rows: Rows, runner: Runner) -> None:
    own = rows["addbmm___default"]
    # torch resizes a self of shape (1,) to that of the result.
    assert {cells["Input Shapes"].split(";")[0] for cells in own} == {"5,10"}
    assert {run(runner, "addbmm___default", cells).status for cells in own} == {Status.MEASURED}
