"""Finds scopes of a capture that a SuperKernel may fuse, and predicts what that gains.

kernel_types.yaml   patterns of kernel types with their sources: what cannot be fused, modules of layers, phases
kernel_types.py     reads them, and a user's map of modules
timeline.py         the kernels of a capture in the order of their start; excerpts, streams
repeats.py          layers, found by the repeated sequence of kernel types
scopes.py           steps, their phases, and candidate scopes: modules, layers, all layers
cuts.py             what splits a SuperKernel
gains.py            what a scope gains, and the verdict
analysis.py         all of this for one capture
advice.py           which scope to try first, lines of Python, the experiment
comparison.py       captures with and without SuperKernels
report.py           both as JSON

Imports neither torch nor pytest.
"""
