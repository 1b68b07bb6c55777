"""Kernels: their replays (`test_*.py`), the formulas of their results, and the implementations that are timed.

Importing this package and its replays does not import torch: pytest collects replays without a device. The modules of
`formulas` and `implementations` import torch when a replay looks a name up in them.
"""
