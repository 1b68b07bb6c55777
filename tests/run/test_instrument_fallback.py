"""Which instrument is taken where the best one cannot be: the next one, unless it was asked for by name."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from opatlas.run.devices.device import DeviceKind, InstrumentMissing
from opatlas.run.instruments.instrument import MeasureSettings


@pytest.fixture(autouse=True)
def _offered(monkeypatch):
    def missing(kind, settings):
        raise InstrumentMissing("no such library")

    makers = SimpleNamespace(
        missing=missing, second=lambda kind, settings: "second", broken=lambda kind, settings: 1 / 0
    )
    monkeypatch.setitem(sys.modules, "toy_makers", makers)


def opened(named, *makers):
    kind = DeviceKind("toy")
    kind.instruments = {maker: f"toy_makers:{maker}" for maker in makers}
    return kind.open_instrument(MeasureSettings(instrument=named))


def test_the_next_best_replaces_a_missing_one():
    assert opened(None, "missing", "second") == "second"


def test_a_named_one_is_not_replaced():
    with pytest.raises(InstrumentMissing, match=r"^missing: no such library$"):
        opened("missing", "missing", "second")


def test_without_any_all_reasons_are_given():
    with pytest.raises(InstrumentMissing, match="missing: no such library"):
        opened(None, "missing")


def test_a_mistake_in_one_does_not_select_another():
    with pytest.raises(ZeroDivisionError):
        opened(None, "broken", "second")
