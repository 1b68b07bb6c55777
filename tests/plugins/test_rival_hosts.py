"""Rows whose implementations were measured on different hosts of a cluster are named in the comparison."""

from __future__ import annotations

from opatlas.plugins.rivals import host_lines


def test_rows_of_two_hosts_are_counted_and_named() -> None:
    hosts = {f"Toy-{size}": ("near", "far") for size in range(5)}
    lines = list(host_lines({**hosts, "Toy-same": ("near", "near")}, "torch", "mine"))
    assert lines[0].startswith("5 rows")
    assert lines[1].split()[0] == "Toy-0:"
    assert "torch on near" in lines[1]
    assert "mine on far" in lines[1]
    assert lines[-1].split()[:2] == ["and", "2"]


def test_nothing_is_told_of_one_host_or_where_a_duration_is_of_an_earlier_session() -> None:
    assert list(host_lines({"Toy-1": ("near", "near"), "Toy-2": ("", "far"), "Toy-3": ("", "")}, "torch", "mine")) == []
