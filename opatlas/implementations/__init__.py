"""Implementations of kernels: what an author writes, which ones there are, and where a user's own lie.

contract.py   what an author uses: `@implements`, `Prepared`

Imports no torch, and no module of an implementation: marks are read from the source.
"""
