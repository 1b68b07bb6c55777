"""Finds scopes of a capture that a SuperKernel may fuse, and predicts what that gains.

timeline.py                       the kernels of a capture in the order of their start; excerpts, streams
structure.py, kernel_types.yaml   layers, by the repeated sequence of kernel types; modules, steps, phases, families
scopes.py                         what splits a SuperKernel, what a scope gains, which one to try first, the plans
command.py                        runs with and without SuperKernels; the command, and the page of the site
"""
