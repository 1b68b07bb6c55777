"""Which instrument is taken where the best one cannot be: the next one, unless it was asked for by name."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from opatlas.run.instruments import instrument
from opatlas.run.instruments.instrument import InstrumentMissing, MeasureSettings, open_instrument


@pytest.fixture(autouse=True)
def _offered(monkeypatch):
    def missing(kind, settings):
        raise InstrumentMissing("no such library")

    makers = SimpleNamespace(
        missing=missing, second=lambda kind, settings: "second", broken=lambda kind, settings: 1 / 0
    )
    monkeypatch.setitem(sys.modules, "toy_makers", makers)
    offered = {"best": "toy_makers:missing", "second": "toy_makers:second"}
    offered_by = {"toy": offered, "none": {"best": "toy_makers:missing"}, "broken": {"b": "toy_makers:broken"}}
    monkeypatch.setattr(instrument, "kind_named", lambda kind: SimpleNamespace(instruments=offered_by[kind]))


def test_the_next_best_replaces_a_missing_one():
    assert open_instrument("toy", MeasureSettings()) == "second"


def test_a_named_one_is_not_replaced():
    with pytest.raises(InstrumentMissing, match=r"^best: no such library$"):
        open_instrument("toy", MeasureSettings(instrument="best"))


def test_without_any_all_reasons_are_given():
    with pytest.raises(InstrumentMissing, match="best: no such library"):
        open_instrument("none", MeasureSettings())


def test_a_mistake_in_one_does_not_select_another():
    with pytest.raises(ZeroDivisionError):
        open_instrument("broken", MeasureSettings())
