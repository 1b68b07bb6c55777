"""Replays that need several devices at once: a group of processes, one for each device.

torchrun's elastic launcher starts the ranks (agent.py); each runs the same jobs as the others
(rank_main.py) and hears of them from pytest (running.py, process.py), which tells from their answers what became
of a row. No torch in process.py, running.py, pool.py, exclusive.py and spec.py.
"""
