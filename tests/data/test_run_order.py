"""Which of two runs is the newer, whatever the clocks and time zones of the machines."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterator

import pytest

from opatlas.data.manifest import RunOrder, run_id_time

EARLIER, LATER = "20261121T120000-aaaaaa", "20261121T120001-000000"


@pytest.fixture(params=["Asia/Shanghai", "America/New_York", "UTC"])
def _time_zone(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("_time_zone")
def test_the_time_in_a_run_id_is_utc_in_every_time_zone() -> None:
    assert run_id_time("19700102T000001-1f0c9a") == 86_401
    # The first run has a manifest, whose time needs no time zone.
    order = RunOrder({"other": run_id_time(EARLIER) or 0.0})
    assert order.age("other") < order.age(LATER)


def test_a_run_without_a_time_is_older_than_one_with_and_newer_than_none() -> None:
    order = RunOrder()
    ordered = ["", "by hand", EARLIER, LATER]
    assert all(map(operator.lt, map(order.age, ordered), map(order.age, ordered[1:])))


def test_a_run_of_a_clock_that_was_ahead_is_older_than_all_others() -> None:
    order = RunOrder({"measured-in-2099": 4.1e9}, {"20990101T000000-1f0c9a", "measured-in-2099"})
    assert order.age("20990101T000000-1f0c9a") < order.age(EARLIER)
    assert order.age("measured-in-2099") < order.age(EARLIER)


def test_different_runs_of_the_same_second_have_an_order() -> None:
    order = RunOrder()
    assert len({order.age(f"20261121T120000-{n:06x}") for n in range(3)}) == 3


@pytest.mark.parametrize(
    "run_id", ["99999999T999999-x", "x", "\uff12\uff10\uff12\uff161121T120000-x", "20261121T1200001"]
)
def test_an_id_without_a_time_has_none(run_id: str) -> None:
    assert run_id_time(run_id) is None
