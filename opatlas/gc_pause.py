"""Help for work on hundreds of thousands of objects at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Keeps the cyclic garbage collector off while many objects without cycles are made.

    It would look at all of them again and again as they grow in number, which takes as long as the
    work itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
