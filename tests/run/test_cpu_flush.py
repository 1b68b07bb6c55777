"""Which last-level caches there are, and how much is read to flush all that a row's threads may use."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from replaying import job_of

from opatlas.row.status import Status
from opatlas.run.devices import cpu
from opatlas.run.devices.cpu import (
    EXPENSIVE_READ_BYTES,
    CpuFlush,
    FlushPlan,
    cache_domains,
    evictor,
    flush_bytes,
    least_flush_bytes,
    plan_flush,
)
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.formula import pointwise
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.registry import replays
from opatlas.run.runner import Runner
from tests.support.fake_system import write_files
from tests.support.wrapper import Wrapper

MIB = 1 << 20


def machine(root: Path, caches: int, cores: int, size: str) -> Path:
    """A machine with some last-level caches, each shared by some cores that have 1 MiB for themselves."""
    texts = {}
    for core in range(caches * cores):
        folder = f"sys/devices/system/cpu/cpu{core}/cache"
        first = core // cores * cores
        levels = (("1", "Data", "48K", core), ("1", "Instruction", "32K", core), ("2", "Unified", "1024K", core))
        for index, (level, kind, of, shared) in enumerate(
            (*levels, ("3", "Unified", size, f"{first}-{first + cores - 1}"))
        ):
            for name, text in (("level", level), ("type", kind), ("size", of), ("shared_cpu_list", shared)):
                texts[f"{folder}/index{index}/{name}"] = f"{text}\n"
    return write_files(root, texts)


def test_each_last_level_cache_is_a_domain_of_its_cores(tmp_path: Path) -> None:
    domains = cache_domains(range(1, 8), machine(tmp_path, caches=2, cores=4, size="32768K"))
    assert sorted(sorted(domain.cores) for domain in domains) == [[1, 2, 3], [4, 5, 6, 7]]
    assert {(domain.size_bytes, domain.private_bytes) for domain in domains} == {(32 * MIB, MIB)}


@pytest.mark.parametrize(
    ("caches", "cores", "threads", "read"),
    [
        (1, 8, 8, 64),  # one cache, read twice over
        (1, 8, 2, 64),
        (4, 8, 32, 4 * 64),  # each of four caches
        (9, 2, 8, 8 * 64),  # each thread may be alone with a cache
        (2, 1, 2, 2 * 64),  # a virtual machine whose cores are sockets
    ],
)
def test_every_cache_that_the_threads_may_use_is_read_twice(
    tmp_path: Path, caches: int, cores: int, threads: int, read: int
) -> None:
    domains = cache_domains(range(caches * cores), machine(tmp_path, caches, cores, "32768K"))
    assert flush_bytes(domains, threads) == read * MIB
    assert least_flush_bytes(domains, threads) == 2 * threads * MIB


def test_a_cache_that_evicting_by_line_undercuts_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path, caches=1, cores=2, size="491520K")
    monkeypatch.setattr(cpu, "evictor", lambda: lambda address, size: None)
    plan = plan_flush(range(2), 2, root)
    assert (plan.cache_bytes, plan.whole_bytes, plan.read_bytes, plan.by_line) == (
        480 * MIB,
        960 * MIB,
        EXPENSIVE_READ_BYTES,
        True,
    )
    monkeypatch.setattr(cpu, "evictor", lambda: None)
    plan = plan_flush(range(2), 2, root)
    assert (plan.read_bytes, plan.by_line) == (960 * MIB, False)


def test_evicting_keeps_the_content_of_memory() -> None:
    evict = evictor()
    if evict is None:
        pytest.skip("this machine has no instruction that evicts a line, or lets no process write code")
    values = torch.arange(100_003, dtype=torch.int32)
    values += 1
    evict(values.data_ptr(), values.nbytes)
    evict(values.data_ptr() + 3, 1)
    evict(values.data_ptr(), 0)
    assert torch.equal(values, torch.arange(1, 100_004, dtype=torch.int32))


PLAN = FlushPlan(MIB, 1, whole_bytes=2 * MIB, read_bytes=MIB // 2, by_line=True)


@pytest.fixture
def evicted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Address and size of what is evicted by line."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(cpu, "evictor", lambda: lambda address, size: found.append((address, size)))
    return found


def test_a_flush_by_line_evicts_each_tensor_once_and_reads_the_whole_caches_for_a_larger_row(
    evicted: list[tuple[int, int]],
) -> None:
    flush = CpuFlush(PLAN)
    small, large = torch.zeros(1000), torch.zeros(MIB)
    flush([small, small[5:], small.view(10, 100)])
    assert evicted == [(small.data_ptr(), small.nbytes)]
    flush([small, large])
    flush(None)
    assert len(evicted) == 1


_WEIGHT = torch.ones(8, 8)
_LINEAR = torch.nn.Linear(8, 8, bias=False)
_LINEAR.weight.data = _WEIGHT


@pointwise
def eight(x, *_, **__):
    return x * 8


@replays("Eight", npu=None)
def eight_times(row, replay):
    """Of ones the product with a matrix of ones: each element eight."""
    weight, x = _WEIGHT.clone(), row.ones(8, 8)

    def of_closure(x):
        return x @ weight

    calls = {
        "function": (lambda x, w: x @ w, weight),
        "function of C": (torch.matmul, weight),
        "method of C": (torch.Tensor.matmul, weight),
        "operator": (torch.ops.aten.mm.default, weight),
        "mapping": (lambda x, w: x @ w["weight"], {"weight": weight}),
        "closure": (of_closure,),
        "partial": (partial(torch.matmul, other=weight),),
        "module": (_LINEAR,),
    }
    impl, *others = calls[row.cells["call"]]
    replay(impl, x, *others, expected=eight)


@pytest.mark.parametrize(
    ("call", "by_line"),
    [
        *((call, True) for call in ("function", "function of C", "method of C", "operator", "mapping")),
        *((call, False) for call in ("closure", "partial", "module")),
    ],
)
def test_the_whole_caches_are_read_for_a_kernel_that_may_keep_tensors_of_its_own(
    monkeypatch: pytest.MonkeyPatch, evicted: list[tuple[int, int]], call: str, by_line: bool
) -> None:
    monkeypatch.setattr(cpu, "plan_flush", lambda cores, threads: PLAN)
    job = job_of("Eight", "8,8 | FLOAT -> 8,8 | FLOAT", f"{__name__}.eight_times")
    job.cells["call"] = call
    outcome = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, threads=1)).run(job)
    assert outcome.status is Status.MEASURED, outcome.reason
    # Input, weight and result.
    assert len(evicted) == (3 if by_line else 0)


def test_tensors_without_memory_of_their_own_cannot_be_evicted(evicted: list[tuple[int, int]]) -> None:
    dense = torch.eye(9)
    for without in (dense.to_sparse(), dense.to_sparse_csr(), dense.to("meta"), Wrapper(dense)):
        CpuFlush(PLAN)([dense, without])
    assert evicted == []
