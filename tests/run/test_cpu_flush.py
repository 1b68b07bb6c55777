"""Which last-level caches there are, and how much is read to flush all that a row's threads may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.run.devices.cpu import cache_domains, plan_flush
from tests.support.fake_system import write_files

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
    plan = plan_flush(range(caches * cores), threads, machine(tmp_path, caches, cores, "32768K"))
    assert (plan.cache_bytes, plan.caches, plan.read_bytes) == (32 * MIB, caches, read * MIB)
