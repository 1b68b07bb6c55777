"""Finds scopes of a capture that a SuperKernel may fuse, and predicts what that gains.

kernel_types.py, kernel_types.yaml   what cannot be fused, modules of layers, phases; a user's map of modules
timeline.py                          the kernels of a capture in the order of their start; excerpts, streams
structure.py                         layers, by the repeated sequence of kernel types; steps, phases, candidate scopes
gains.py                             what splits a SuperKernel, what a scope gains, and the verdict
analysis.py                          all of this for one capture; which scope to try first, and the experiment
command.py                           captures with and without SuperKernels; the command, and the page of the site
"""
