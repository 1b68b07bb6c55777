"""Implementations of kernels: what an author writes, which ones there are, and where a user's own lie.

implementation.py   what an implementation is, and what an author uses: `@implements`, `Prepared`, `Support`
directory.py        reads a user's folder of kernels, and the marks of a file without importing it
catalog.py          the implementations that a session can measure

Imports no torch, and no module of an implementation.
"""
