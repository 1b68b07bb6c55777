"""Pauses the cyclic garbage collector: for samples of a duration, and for work on hundreds of thousands of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keeps the cyclic garbage collector from starting by itself.

    A collection in a sample would lengthen it. While many objects without cycles are made, collections examine all of
    them again and again, which takes as long as the work itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
