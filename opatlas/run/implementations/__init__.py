"""Implementations of kernels: what an author writes, which ones there are, and where a user's own lie.

contract.py         what an author uses: `@implements`, `Prepared`
support.py          what a library supports: refusals of rows
implementation.py   what an implementation is
marks.py            reads the marks of a file without importing it
directory.py        reads a user's folder of kernels
catalog.py          the implementations that a session can measure

Imports no torch, and no module of an implementation.
"""
