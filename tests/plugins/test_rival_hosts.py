"""Rows whose implementations were measured on different hosts of a cluster are named in the comparison."""

from __future__ import annotations

from opatlas.plugins.terminal import host_table


def test_rows_of_two_hosts_are_counted_and_named() -> None:
    rows = {f"Toy-{size}": "near" for size in range(6)}
    (table,) = host_table(rows, {**dict.fromkeys(rows, "far"), "Toy-5": "near"}, "torch", "mine")
    assert table.columns == ("row", "torch", "mine")
    assert table.rows[0] == ("Toy-0", "near", "far")
    assert len(table.rows) + table.left_out == 5


def test_one_host_or_a_duration_of_an_earlier_session_needs_no_table() -> None:
    assert not list(host_table({"Toy-1": "near"}, {"Toy-1": "near", "Toy-2": "far"}, "torch", "mine"))
    assert not list(host_table({"Toy-3": ""}, {"Toy-3": ""}, "torch", "mine"))
