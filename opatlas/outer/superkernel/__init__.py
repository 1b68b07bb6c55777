"""Finds scopes of a capture that a SuperKernel may fuse, and predicts what that gains.

structure.py, kernel_types.yaml   layers, by the repeated sequence of kernel types; modules, steps, phases, families
scopes.py                         what splits a SuperKernel, and what each scope gains
advice.py                         which scope to try first, the plans, the checks
scopes_command.py                 the command, and runs with and without SuperKernels
"""
